"""What runs on another host beside the agent: stage 1, the keeper and the relay. It is sent there as text."""
