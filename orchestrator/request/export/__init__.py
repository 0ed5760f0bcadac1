"""Renders a job for schedulers that orch does not drive itself."""
