"""How a training is kept and gone on with: by CheckpointManager, BackupAndRestore or PreemptionCheckpointHandler."""

from worker.training.checkpoints.files import MODEL_FILE, CheckpointError, Checkpoints, Position
from worker.training.checkpoints.method import Method, open_method, where_kept

__all__ = ["MODEL_FILE", "CheckpointError", "Checkpoints", "Method", "Position", "open_method", "where_kept"]
