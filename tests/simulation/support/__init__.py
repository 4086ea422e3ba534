"""A world in virtual time around real supervisors: one seed drives everything that happens in it."""
