"""The checkpoint store: exclusive create, commits, lineage, resolve, verify and retention."""
