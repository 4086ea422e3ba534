"""What `rerail doctor` judges: findings from what was read of a cluster, a store and a run. Pure."""
