"""How to do it: everything that touches the world. Imports policies, never workflows."""
