"""The tasks' side: the agent that owns them and the built-in training program; never imports orchestrator."""
