"""`stream=True`: the lines of a live run in the standard output of the process that started it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from kept_session import kept_session
from waiting import until

from orchestrator import Cluster, RunStopped, Session, UsageError
from orchestrator.client.view.cell import CellView, TextOutput
from orchestrator.client.view.log_line import LineStyle
from orchestrator.store.logs.lines import Chunk

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")
# Each task prints a line and waits for the file `go`.
TALKS = """
import os, time
print(f"\\x1b[2Jhello from {os.environ['ORCH_TASK']} {os.environ['ORCH_ATTEMPT']}", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("bye from", os.environ["ORCH_TASK"])
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with kept_session(tmp_path_factory.mktemp("stream")) as session:
        yield session


def lines_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lines of")]


def test_lines_are_shown_while_the_run_is_live(session: Session, tmp_path: Path) -> None:
    shown = io.StringIO()

    def has(attempt: int) -> bool:
        said = shown.getvalue().splitlines()
        return all(f"worker:{n} | hello from worker:{n} {attempt}" in said for n in (0, 1))

    talks = session.up(2, [sys.executable, "-c", TALKS], tmp_path, stream=True)
    with redirect_stdout(shown), talks as run:
        until(lambda: has(1))
        run.restart()
        # The view of `run` takes the events, which are shown, too.
        until(lambda: run.status().run.attempt == 2)
        until(lambda: has(2))
        (tmp_path / "go").touch()
        run.wait()
        print("after wait")
    lines = shown.getvalue().splitlines()
    assert lines_threads() == []
    assert lines[-1] == "after wait" and "worker:1 | bye from worker:1" in lines
    assert any(line.startswith("orch: restarted on request; attempt 2") for line in lines)
    assert "\x1b" not in shown.getvalue()


def test_flood_is_bounded_and_its_end_is_shown(session: Session) -> None:
    shown = io.StringIO()
    floods = session.up(command=["sh", "-c", "seq 1 400000; echo end"], stream=True)
    with redirect_stdout(shown), floods as run:
        run.wait()
    lines = shown.getvalue().splitlines()
    notes = [line for line in lines if line.startswith("... ")]
    assert lines[-1] == "worker:0 | end" and len(lines) < 100_000
    assert notes and all("skipped (worker:0)" in note for note in notes)


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left")


def test_stream_that_fails_does_not_affect_the_run(session: Session) -> None:
    greets = session.up(command=["echo", "hello"], stream=True)
    warned = pytest.warns(RuntimeWarning, match="no space left; `orch logs` shows them")
    with redirect_stdout(Broken()), warned, greets as run:
        assert run.wait().succeeded
    # A character that it cannot encode is replaced.
    shown = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(shown, "ascii")) as stream:
        with session.up(command=["printf", "schön \\377"], stream=True) as run:
            run.wait()
        assert shown.getvalue() == b"worker:0 | sch?n ?\n"
        stream.detach()


def test_lines_of_a_run_that_the_block_stops(tmp_path: Path) -> None:
    shown = io.StringIO()
    ends = "trap 'echo ending; exit 0' TERM; echo began; while :; do sleep 0.01; done"
    with redirect_stdout(shown), Cluster(command=["sh", "-c", ends], directory=tmp_path, stream=True):
        until(lambda: "began" in shown.getvalue())
    assert shown.getvalue().startswith("worker:0 | began\n")
    assert shown.getvalue().endswith("worker:0 | ending\n")


def test_interrupted_wait_shows_the_rest(session: Session) -> None:
    shown = io.StringIO()
    main = threading.main_thread().ident
    assert main is not None
    sleeps = session.up(command=["sh", "-c", "echo began; sleep 600"], stream=True)
    with redirect_stdout(shown), pytest.raises(KeyboardInterrupt), sleeps as run:
        until(lambda: "began" in shown.getvalue())
        signal.pthread_kill(main, signal.SIGINT)
        run.wait()
    assert lines_threads() == [] and not run.view.is_live
    with pytest.raises(RunStopped):
        run.wait()


def test_interpreter_exits_while_lines_are_shown(tmp_path: Path) -> None:
    """In a notebook, the block may be entered in one cell and never left."""
    program = """
import orchestrator, sys
cluster = orchestrator.Cluster(command=["sh", "-c", "while :; do echo line; done"], stream=True)
run = cluster.__enter__()
run.wait_ready()
sys.exit(7)
"""
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")


def test_forked_process_may_wait_for_the_run(session: Session) -> None:
    shown = io.StringIO()
    with redirect_stdout(shown), session.up(command=["echo", "hello"], stream=True) as run:
        child = os.fork()
        if child == 0:
            try:
                os._exit(run.wait().exit_code)
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        run.wait()
    assert shown.getvalue() == "worker:0 | hello\n"


def test_nothing_is_shown_unless_asked(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    with session.up(command=["echo", "hello"]) as run:
        run.wait()
    assert capsys.readouterr() == ("", "")
    with pytest.raises(UsageError):
        Cluster(command=["true"], streams=True)  # type: ignore[call-arg]


def test_rate_of_a_flood_is_limited() -> None:
    """Afterwards, all lines of a quiet task are shown again."""
    now, printed = 0.0, 0
    shown = io.StringIO()
    view = CellView(TextOutput(shown, {}), LineStyle(), lambda: now)

    def painted(lines: int) -> tuple[int, bool]:
        """Print so many lines and paint a frame. Return how many were shown, and whether some were skipped."""
        nonlocal printed
        data = b"a line of a task\n" * lines
        view.show([Chunk("worker:0", 1, None, printed, data)])
        printed += len(data)
        view.frame(now)
        text = shown.getvalue()
        shown.seek(0)
        shown.truncate()
        return text.count("worker:0 | "), "... " in text

    assert painted(4_000) == (4_000, False)
    total = 0
    for _ in range(600):
        now += 0.1
        total += painted(10_000)[0]
    assert total < 5_000 + 60 * 400
    now += 3_600
    painted(0)
    for _ in range(100):
        now += 1
        assert painted(20) == (20, False)
