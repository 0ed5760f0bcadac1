"""Records the end of a run whose Slurm job was started again."""

from __future__ import annotations

from contextlib import closing

from orchestrator.core.errors import OrchError
from orchestrator.core.lifecycle.outcome import Findings, run_result
from orchestrator.core.state.events import Event
from orchestrator.core.state.result import RunResult
from orchestrator.store.runs import run_end
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.writer import RunStore

# Seconds for a shared file system to release the lock of the earlier run, whose supervisor has ended.
_RELEASE_S = 10.0


def close_earlier(run: RunView, next_id: str) -> None:
    """Record the end of a run whose job now has the run `next_id`."""
    try:
        with closing(RunStore.adopt(run.paths.root, None, _RELEASE_S)) as store:
            result = _result(run, run.refresh())
            if result.cause is not None:
                text = f"{result.cause.text}; Slurm has started the job again: {next_id}"
                cause = result.cause.model_copy(update={"text": text})
                result = result.model_copy(update={"cause": cause})
            store.write_result(result)
    except (OrchError, OSError):
        return  # another process has recorded the end


def _result(run: RunView, events: list[Event]) -> RunResult:
    """Return the result. The run is lost if its supervisor was killed before it began to end the tasks."""
    record, last_mono = run.record, events[-1].mono if events else 0.0
    state = run_end.mark_lost(run.state, last_mono)
    if state.teardown is None:
        return run_end.result_from_events(record.id, state, record.checkpoint_dir, "Slurm ended its job")
    findings = Findings(took_s=last_mono - record.started_mono, gives_way=state.notice is not None)
    return run_result(record.id, state, findings, record.checkpoint_dir)
