"""Checkpoints on disk, looked at without TensorFlow: which there are, which are whole, and whether they can be read.

from orchestrator.checkpoints import list_checkpoints, verify

for found in list_checkpoints(run.checkpoint_dir):
    print(found.prefix, found.number, found.problems or "whole")
"""

from __future__ import annotations

from orchestrator.checkpoints.kinds import CheckpointInfo, CheckpointKind
from orchestrator.checkpoints.listing import list_checkpoints
from orchestrator.checkpoints.verification import Verification, verify

__all__ = ["CheckpointInfo", "CheckpointKind", "Verification", "list_checkpoints", "verify"]
