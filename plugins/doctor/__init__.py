"""The looks of `rerail doctor`: what is read of a cluster, a store and a run, and handed to ``policies.doctor``."""
