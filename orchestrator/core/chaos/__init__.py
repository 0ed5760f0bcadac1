"""Faults that a user plans for a run (pure)."""
