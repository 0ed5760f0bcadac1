"""The task that caused a failure, and advice on it (pure)."""
