"""Nodes: marks, quarantine, release."""
