"""Fault drills: inject, run, judge."""
