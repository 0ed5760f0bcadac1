"""Streams between clients, supervisor and agents."""
