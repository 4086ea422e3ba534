"""The ``rerail`` command."""
