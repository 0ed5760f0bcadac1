"""Sends orders to the supervisor of a live run, which may be on a node of a Slurm job."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from orchestrator.links.control import ANSWER_TIMEOUT_S, ask
from orchestrator.links.orders import ControlOrder
from orchestrator.store.runs.liveness import is_of_this_host
from orchestrator.store.runs.reader import RunView

# Seconds for Slurm to start a step on the node, and for the step to import its modules.
_STEP_S = 30.0


def ask_run(view: RunView, order: ControlOrder, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any] | None:
    """Send an order to a live run and return its answer, as links.control.ask() does; None without an answer."""
    job = view.record.job
    if job is None or is_of_this_host(view.record):
        return ask(view.paths.control, order, timeout_s)
    from orchestrator.engines.slurm import step_words
    from orchestrator.host.isolation import isolated
    from orchestrator.store.runs.slurm_jobs import plain_environ

    path = str(view.paths.control)
    words = [
        *step_words(job, view.record.host),
        *isolated("orchestrator.links.control", path, str(timeout_s)),
    ]
    try:
        done = subprocess.run(
            words,
            input=order.model_dump_json().encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s + _STEP_S,
            env=plain_environ(),
            start_new_session=True,  # a Ctrl-C ends this command, not the step
        )
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return answer if isinstance(answer, dict) else None
