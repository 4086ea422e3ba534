"""Fault sources: one module per source, and the watcher that merges them."""
