"""From the ledger to metrics, JSON and a self-contained HTML page."""
