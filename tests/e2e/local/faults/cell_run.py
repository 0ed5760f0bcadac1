"""run_cell(): runs a cell and checks how the run ended, that nothing is left, and that all documents agree.

cell_run.py NAME DIRECTORY      runs a cell in a mount namespace, with orch's files on a small disk
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).parents[3] / "support"))

import leftovers
from cells import Cell, CellFailure, Culprit, Ends, Kind, Moment, NotAvailable, Way, Who, require
from kept_scene import KeptScene
from scene import Scene
from small_disk import NoDisk, SmallDisk
from tensorflow_scene import TensorFlowScene

from orchestrator.client import api
from orchestrator.core.state.events import TaskStarted
from orchestrator.core.state.result import CauseKind, RunResult
from orchestrator.host.network import probe_private_network

# Room for all files of several short runs.
_DISK_BYTES = 8 << 20
_FOUND = 78
# Longer than any wait inside.
_TIMEOUT_S = 240
_SCENES: dict[Way, type[Scene]] = {Way.KEPT: KeptScene, Way.TENSORFLOW: TensorFlowScene}


def run_cell(cell: Cell, directory: Path) -> None:
    """Run one cell in `directory`. CellFailure (or AssertionError) for any finding, NotAvailable if it cannot run here.

    XDG_STATE_HOME must belong to this cell alone.
    """
    if cell.needs_disk:
        _run_on_small_disk(cell, directory)
    else:
        _run_here(cell, directory)


def _run_here(cell: Cell, directory: Path) -> None:
    """Run a cell in this process, on any disk."""
    require_possible(cell)
    here = directory / "here"
    here.mkdir()
    scene = _SCENES.get(cell.way, Scene)(cell, here)
    result: RunResult | None = None
    with scene.started(), scene.run.view.keep_open() if cell.vanishes else nullcontext():
        scene.reach_the_moment()
        cell.inject(scene)
        if cell.expect is not None:
            result = scene.result()
            if result.outcome != "lost":
                leftovers.require_no_task_left(scene)
            if scene.client is not None:
                _check_client(cell, scene)
    if result is not None:
        _check_run(cell, scene, result)
    if isinstance(scene, KeptScene):
        scene.check_next_run()
    leftovers.require_nothing_left(scene)
    if cell.check is not None:
        assert result is not None
        cell.check(scene, result)


def require_possible(cell: Cell) -> None:
    """NotAvailable if this machine does not allow the options of the cell."""
    if cell.options.get("network") == "private" and (refused := probe_private_network()) is not None:
        raise NotAvailable(refused.reason)


def _check_client(cell: Cell, scene: Scene) -> None:
    assert scene.client is not None
    code = scene.client.wait(leftovers.GONE_WITHIN_S)
    wanted = f"{cell.client_code}: {scene.client_output()}"
    require(code == cell.client_code, Kind.EXIT_CODE, f"{code}, not {wanted}")


def _check_run(cell: Cell, scene: Scene, result: RunResult) -> None:
    assert cell.expect is not None
    seen = (result.outcome, result.cause and result.cause.kind)
    fitting = [ends for ends in (cell.expect, *cell.or_ends) if (ends.outcome, ends.kind) == seen]
    check_end(fitting[0] if fitting else cell.expect, scene, result)
    if cell.vanishes:
        require(not scene.run.dir.exists(), Kind.FILE, scene.run.dir)
        return
    if result.outcome == "lost":
        # The next command tidies up after a killed supervisor.
        api.tidy()
        require(not api.tidy(), Kind.PROCESS, "after tidy()")
    else:
        leftovers.require_whole_events(scene)
        if cell.moment is Moment.BEFORE_SPAWN and result.outcome == "stopped":
            has_started = any(isinstance(event, TaskStarted) for event in scene.events())
            require(not has_started, Kind.EVENTS, "a task started after the stop")
    if "of the agent" in cell.fault and result.cause is not None and result.cause.kind is CauseKind.ORCH:
        require("agent" in result.cause.text, Kind.CAUSE, result.cause)
    leftovers.require_whole_logs(scene)
    # result.json, the status and the returned result agree.
    written, shown = scene.run.view.result(), scene.run.status().run.state
    require(written == result, Kind.EVENTS, f"written {written}, returned {result}")
    require(shown == result.outcome, Kind.EVENTS, f"{shown}, not {result.outcome}")


def check_end(ends: Ends, scene: Scene, result: RunResult) -> None:
    """CellFailure unless the run ended as it must."""
    cause, first = result.cause, result.first_failure
    for kind, seen, wanted in (
        (Kind.OUTCOME, result.outcome, ends.outcome),
        (Kind.EXIT_CODE, result.exit_code, ends.exit_code),
        (Kind.CAUSE, None if cause is None else cause.kind, ends.kind),
        (Kind.CAUSE, None if cause is None else _culprit(cause.task, scene), ends.cause),
        (Kind.CAUSE, None if first is None else _culprit(first.task, scene), ends.first),
        (Kind.CAUSE, result.attempts, ends.attempts),
    ):
        require(seen == wanted, kind, f"{seen}, not {wanted}, in {result.model_dump_json(indent=1)}")


def _culprit(task: str | None, scene: Scene) -> Culprit | None:
    if task is None:
        return None
    return Who.VICTIM if task == scene.victim_name else Who.PEERS


def _run_on_small_disk(cell: Cell, directory: Path) -> None:
    """Run a cell in a new process; NotAvailable if no disk can be mounted."""
    try:
        with SmallDisk(Path(os.environ["XDG_STATE_HOME"]), _DISK_BYTES) as disk:
            argv = [*disk.before(directory), sys.executable, __file__, cell.name, str(directory)]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except NoDisk as reason:
        raise NotAvailable(str(reason)) from reason
    kind, _, text = done.stdout.partition("\n")
    if done.returncode == _FOUND and kind == NotAvailable.__name__:
        raise NotAvailable(text)
    if done.returncode == _FOUND:
        raise CellFailure(Kind(kind), text)
    require(done.returncode == 0, Kind.OTHER, f"{done.returncode}: {done.stdout}{done.stderr}")


def _main(name: str, directory: str) -> int:
    from matrix import BY_NAME

    try:
        _run_here(BY_NAME[name], Path(directory))
    except NotAvailable as reason:
        print(NotAvailable.__name__, reason, sep="\n")
        return _FOUND
    except Exception as error:
        print(error.kind if isinstance(error, CellFailure) else Kind.OTHER)
        traceback.print_exception(error, file=sys.stdout)
        return _FOUND
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
