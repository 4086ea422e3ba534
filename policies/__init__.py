"""What to do: pure models, catalogues and decisions. No I/O, no clock, no network."""
