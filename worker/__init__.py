"""The tasks' side: the agent that owns them, what is in them, and the examples; never imports orchestrator."""
