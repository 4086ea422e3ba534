"""What the recovery policies would have been worth: a trace of faults replayed through the code that decides."""
