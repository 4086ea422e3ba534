"""The supervisor of one run: the ledger, the executor and the backends it drives through ports."""
