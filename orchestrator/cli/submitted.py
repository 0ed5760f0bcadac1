"""The batch script of `orch up` on a login node: starts the run in a directory on the first node of its job.

Its arguments are the directory and, if root uses the state of another user, that user.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orchestrator.cli import words
from orchestrator.cli.parameters import Screen
from orchestrator.cli.up_run import run_once
from orchestrator.client.stop import end_unstarted
from orchestrator.client.submit import submitted_request
from orchestrator.core.errors import OrchError
from orchestrator.core.state.events import StopReason
from orchestrator.core.state.result import Cause, CauseKind
from orchestrator.engines.slurm import is_cancelled, is_ending
from orchestrator.store.ownership import accept_owner
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.slurm_jobs import own_job


def main(root: str, *owner: str) -> int:
    for user in owner:
        accept_owner(int(user))
    try:
        code = run_once(submitted_request(Path(root)), Screen(), None).code
        cause = _cancelled()
    except OrchError as error:
        words.say(str(error))
        code = error.exit_code
        cause = _cancelled()
        # If Slurm ends the job, that may be the error. It may start the job again, and the run then begins.
        if cause is None and not is_ending(own_job(os.environ), os.environ):
            cause = Cause(task=None, kind=CauseKind.REFUSED, text=str(error))
    view = RunView.open(RunPaths(Path(root)))
    if cause is not None and view is not None and not view.record.supervisor_pid:
        # No supervisor has taken the run: its nodes were refused, or its job was cancelled.
        reason = StopReason.TERMINATE if cause.kind is CauseKind.NOTICE else None
        end_unstarted(view, reason, cause, cancels=False)
    return code


def _cancelled() -> Cause | None:
    job = own_job(os.environ)
    if job is None or not is_cancelled(job):
        return None
    text = f"Slurm's job {job} was cancelled; no task had started"
    return Cause(task=None, kind=CauseKind.NOTICE, text=text)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
