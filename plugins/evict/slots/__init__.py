"""Own-the-drain slots: another healer wants a node emptied; we empty it, and tell the healer when it may go on."""
