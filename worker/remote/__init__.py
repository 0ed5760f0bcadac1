"""Programs that run on another host beside the agent: stage 1, the keeper and the relay."""
