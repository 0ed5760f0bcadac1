"""The assertions of orchestrator.testing on real runs: when they hold, and their messages."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import Cluster, TaskFailed, UsageError
from orchestrator.client.api import Run
from orchestrator.core.state.result import CauseKind
from orchestrator.testing import (
    assert_chief_checkpoint,
    assert_failed_first,
    assert_joined_cluster,
    assert_succeeded,
)

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[4]
# Writes checkpoints 1, 2 (truncated) and 3 as the chief does, with the tests' own writer.
WRITES = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests/support")!r})
from bundle_files import shard_path, write_bundle
shared = Path(os.environ["ORCH_CHECKPOINT_DIR"])
if os.environ["ORCH_TASK"] == "worker:0":
    for number in (1, 2, 3):
        write_bundle(shared / f"ckpt-{{number}}", 100)
    os.truncate(shard_path(shared / "ckpt-2", 0, 1), 10)
"""
FAILS = """
import os, time
if os.environ["ORCH_TASK"] == "worker:1":
    raise ValueError("of its own")
time.sleep(600)
"""
# Fails after some steps in the first attempt.
FAILS_ONCE = """
import os, sys
os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "training", "step": 5}\\n')
sys.exit(os.environ["ORCH_ATTEMPT"] == "1" and os.environ["ORCH_TASK"] == "worker:1")
"""


# Reports what the bootstrap of a script with TensorFlow does.
JOINS = """
import os, sys
os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"trains": true, "cluster": %s}\\n' % sys.argv[1].encode())
"""


def finished(directory: Path, text: str, *words: str, **options: object) -> Run:
    (directory / "task.py").write_text(text)
    with Cluster(2, ["task.py", *words], directory, start="spawn", **options) as run:
        run.wait(check=False)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """A failed run and a run that wrote checkpoints, shared by the tests."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("runs")
        patch.setenv("XDG_STATE_HOME", str(directory))
        yield {"failed": finished(directory, FAILS), "wrote": finished(directory, WRITES)}


def check_message(error: pytest.ExceptionInfo[AssertionError], *parts: str) -> None:
    text = str(error.value)
    assert [part for part in parts if part not in text] == [], text


def test_assert_succeeded(runs: dict[str, Run]) -> None:
    assert assert_succeeded(runs["wrote"]).run_id == runs["wrote"].id
    failed = runs["failed"]
    with pytest.raises(AssertionError) as error:
        assert_succeeded(failed)
    check_message(
        error,
        f"\n{failed.id} did not succeed: failed\n",
        "orch: worker:1 failed: ValueError: of its own",
        str(failed.log("worker:1")),
        f"run directory: {failed.dir}",
    )

    cause = "worker:1 failed: ValueError: of its own (task.py:LINE)"
    assert re.sub(r"py:\d+", "py:LINE", str(error.value).partition("\n")[0]) == cause
    with pytest.raises(TaskFailed) as failure:
        failed.wait()
    assert re.sub(r"py:\d+", "py:LINE", str(failure.value)) == f"{cause}; see {failed.log('worker:1')}"


def test_assert_failed_first(runs: dict[str, Run]) -> None:
    failed = runs["failed"]
    first = assert_failed_first(failed, "worker:1", exit_code=1, exception="of its own")
    assert (first.task, first.exit_code) == ("worker:1", 1)
    for message, options in (
        ("worker:1 was the first to fail, not worker:0: exit 1, ValueError", {"task": "worker:0"}),
        ("with exit code 1 instead of 3", {"task": "worker:1", "exit_code": 3}),
        ("with signal None instead of 9", {"task": "worker:1", "signal": signal.SIGKILL}),
        ("not 'KeyError'", {"task": "worker:1", "exception": "KeyError"}),
    ):
        with pytest.raises(AssertionError) as error:
            assert_failed_first(failed, **options)  # type: ignore[arg-type]
        check_message(error, message, str(failed.dir))
    with pytest.raises(AssertionError) as error:
        assert_failed_first(runs["wrote"], "worker:1")
    check_message(error, f"no task of {runs['wrote'].id} failed: it succeeded")
    with pytest.raises(UsageError):
        assert_failed_first(failed, "unknown")


def test_first_failure_of_restarted_run_is_found(tmp_path: Path) -> None:
    run = finished(tmp_path, FAILS_ONCE, on_failure="restart")
    assert_succeeded(run)
    assert assert_failed_first(run, "worker:1").exit_code == 1


def test_assert_joined_cluster(tmp_path: Path) -> None:
    joined, alone = (finished(tmp_path, JOINS, tasks) for tasks in ("2", "1"))
    assert assert_joined_cluster(joined).succeeded
    with pytest.raises(AssertionError) as error:
        assert_joined_cluster(alone)
    check_message(
        error, "task.py never joined the cluster: 2 independent copies were trained. Create a Multi"
    )
    refused = finished(tmp_path, JOINS, "1", expect_cluster=True).wait(check=False)
    assert refused.cause is not None
    assert (refused.exit_code, refused.cause.kind) == (1, CauseKind.NOT_DISTRIBUTED)


def test_assert_chief_checkpoint(runs: dict[str, Run]) -> None:
    run = runs["wrote"]
    assert [one.number for one in assert_chief_checkpoint(run, at_least=2)] == [1, 3]
    assert [one.number for one in assert_chief_checkpoint(run, number=3)] == [3]
    for message, options in (
        ("the chief (worker:0) wrote 2 of 3 whole checkpoints into", {"at_least": 3}),
        ("wrote no whole checkpoint of number 2 into", {"number": 2}),
    ):
        with pytest.raises(AssertionError) as error:
            assert_chief_checkpoint(run, **options)
        check_message(
            error, message, "ckpt-2: ckpt-2.data-00000-of-00001 is cut off: 10 of 100 bytes", "ckpt-1: whole"
        )
    with pytest.raises(AssertionError) as error:
        assert_chief_checkpoint(runs["failed"])
    check_message(error, "wrote no whole checkpoint into", "there is none at all", "ValueError: of its own")


def test_older_checkpoints_do_not_count(runs: dict[str, Run], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for path in runs["wrote"].checkpoint_dir.iterdir():
        (tmp_path / "kept" / path.name).write_bytes(path.read_bytes())
        os.utime(tmp_path / "kept" / path.name, (1e9, 1e9))
    run = finished(tmp_path, "", checkpoint_dir=tmp_path / "kept")
    with pytest.raises(AssertionError) as error:
        assert_chief_checkpoint(run)
    check_message(error, "wrote no whole checkpoint", "ckpt-3: older than this run")


def test_checkpoint_is_verified_by_interpreter_of_chief(tmp_path: Path) -> None:
    """The interpreter of this chief cannot read checkpoints; its message identifies it."""
    own = tmp_path / "bin" / "python3"
    own.parent.mkdir()
    # Runs tasks with the tests' Python, but fails when it is asked to verify a checkpoint.
    own.write_text(
        '#!/bin/sh\ncase "$*" in *verify_checkpoint*) echo "interpreter of the chief" >&2; exit 9;; esac\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    own.chmod(0o700)
    roles = {"chief": {"command": f"{shlex.quote(str(own))} task.py"}}
    run = finished(tmp_path, WRITES.replace("worker:0", "chief:0"), roles=roles)
    with pytest.raises(AssertionError) as error:
        assert_chief_checkpoint(run, number=3, verify=True)
    check_message(error, "ckpt-3 could not be verified: ", "interpreter of the chief")


@pytest.mark.slow
def test_verification_finds_invalid_checksums(runs: dict[str, Run]) -> None:
    """The tests' writer writes no checksums: TensorFlow refuses the checkpoint, which looks complete."""
    with pytest.raises(AssertionError) as error:
        assert_chief_checkpoint(runs["wrote"], number=3, verify=True)
    check_message(error, "ckpt-3, which the chief (worker:0) wrote, is damaged:")
