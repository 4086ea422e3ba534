"""A real Kubernetes cluster on one Linux machine, for tests: ``python -m rig up`` and ``down`` (as root)."""
