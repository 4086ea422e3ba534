"""The steps of a Workflow: each decides and acts by the run's ledger, tells Argo by files, and may be lost anywhere."""
