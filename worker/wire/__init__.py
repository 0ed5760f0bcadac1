"""The messages between orchestrator and worker, and their codec. Standard library only; both import it."""
