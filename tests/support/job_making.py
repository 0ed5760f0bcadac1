"""The job of making.py, under the name that most tests import."""

from making import JOB, changed, policies

__all__ = ["JOB", "changed", "policies"]
