"""What orchestrator and worker say to each other: one codec and its messages. Standard library only; both import it."""
