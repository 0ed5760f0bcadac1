"""The assertions of orchestrator.testing on real runs: when they hold, and their messages."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Session, TaskFailed, UsageError
from orchestrator.client.api import Run
from orchestrator.core.state.result import CauseKind
from orchestrator.testing import (
    assert_chief_checkpoint,
    assert_failed_first,
    assert_joined_cluster,
    assert_succeeded,
)

ROOT = Path(__file__).resolve().parents[4]
# Writes checkpoints 1, 2 (truncated) and 3 as the chief does, with the tests' own writer.
WRITES = f"""
import os, sys
from pathlib import Path
from typing import Any
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


Finish = Callable[..., Run]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finish]:
    """Runs a script in two tasks of one session: finished(TEXT, *words, **options)."""
    state = tmp_path_factory.mktemp("state")

    def finish(text: str, *words: str, **options: Any) -> Run:
        directory = tmp_path_factory.mktemp("run")
        (directory / "task.py").write_text(text)
        with session.up(2, ["task.py", *words], directory, start="spawn", **options) as run:
            run.wait(check=False)
        return run

    with pytest.MonkeyPatch.context() as patch, Session() as session:
        patch.setenv("XDG_STATE_HOME", str(state))
        yield finish


@pytest.fixture(scope="module")
def failed(finished: Finish) -> Run:
    return finished(FAILS)


@pytest.fixture(scope="module")
def wrote(finished: Finish) -> Run:
    return finished(WRITES)


def refuses(check: Callable[[], object], *parts: str) -> str:
    """Check that an assertion fails with these texts, and return its message."""
    with pytest.raises(AssertionError) as error:
        check()
    text = str(error.value)
    assert [part for part in parts if part not in text] == [], text
    return text


def test_assert_succeeded(failed: Run, wrote: Run) -> None:
    assert assert_succeeded(wrote).run_id == wrote.id
    message = refuses(
        lambda: assert_succeeded(failed),
        f"\n{failed.id} did not succeed: failed\n",
        "orch: worker:1 failed: ValueError: of its own",
        str(failed.log("worker:1")),
        f"run directory: {failed.dir}",
    )
    cause = "worker:1 failed: ValueError: of its own (task.py:LINE)"
    assert re.sub(r"py:\d+", "py:LINE", message.partition("\n")[0]) == cause
    with pytest.raises(TaskFailed) as failure:
        failed.wait()
    assert re.sub(r"py:\d+", "py:LINE", str(failure.value)) == f"{cause}; see {failed.log('worker:1')}"


def test_assert_failed_first(failed: Run, wrote: Run) -> None:
    first = assert_failed_first(failed, "worker:1", exit_code=1, exception="of its own")
    assert (first.task, first.exit_code) == ("worker:1", 1)
    rows: dict[str, Any] = {
        "worker:1 was the first to fail, not worker:0: exit 1, ValueError": {"task": "worker:0"},
        "with exit code 1 instead of 3": {"exit_code": 3},
        "with signal None instead of 9": {"signal": signal.SIGKILL},
        "not 'KeyError'": {"exception": "KeyError"},
    }
    for message, options in rows.items():
        wrong = partial(assert_failed_first, failed, **{"task": "worker:1", **options})
        refuses(wrong, message, str(failed.dir))
    refuses(lambda: assert_failed_first(wrote, "worker:1"), f"no task of {wrote.id} failed: it succeeded")
    with pytest.raises(UsageError):
        assert_failed_first(failed, "unknown")


def test_first_failure_of_restarted_run_is_found(finished: Finish) -> None:
    run = finished(FAILS_ONCE, on_failure="restart")
    assert_succeeded(run)
    assert assert_failed_first(run, "worker:1").exit_code == 1


def test_assert_joined_cluster(finished: Finish) -> None:
    assert assert_joined_cluster(finished(JOINS, "2")).succeeded
    alone = finished(JOINS, "1")
    never = "task.py never joined the cluster: 2 independent copies were trained. Create a Multi"
    refuses(lambda: assert_joined_cluster(alone), never)
    refused = finished(JOINS, "1", expect_cluster=True).wait(check=False)
    assert refused.cause is not None
    assert (refused.exit_code, refused.cause.kind) == (1, CauseKind.NOT_DISTRIBUTED)


def test_assert_chief_checkpoint(failed: Run, wrote: Run) -> None:
    assert [one.number for one in assert_chief_checkpoint(wrote, at_least=2)] == [1, 3]
    assert [one.number for one in assert_chief_checkpoint(wrote, number=3)] == [3]
    found = ("ckpt-2: ckpt-2.data-00000-of-00001 is cut off: 10 of 100 bytes", "ckpt-1: whole")
    fewer = "the chief (worker:0) wrote 2 of 3 whole checkpoints into"
    refuses(lambda: assert_chief_checkpoint(wrote, at_least=3), fewer, *found)
    missing = "wrote no whole checkpoint of number 2 into"
    refuses(lambda: assert_chief_checkpoint(wrote, number=2), missing, *found)
    nothing = ("wrote no whole checkpoint into", "there is none at all", "ValueError: of its own")
    refuses(lambda: assert_chief_checkpoint(failed), *nothing)


def test_older_checkpoints_do_not_count(finished: Finish, wrote: Run, tmp_path: Path) -> None:
    for path in wrote.checkpoint_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        os.utime(tmp_path / path.name, (1e9, 1e9))
    run = finished("", checkpoint_dir=tmp_path)
    refuses(lambda: assert_chief_checkpoint(run), "wrote no whole checkpoint", "ckpt-3: older than this run")


def test_checkpoint_is_verified_by_interpreter_of_chief(finished: Finish, tmp_path: Path) -> None:
    """The interpreter of this chief cannot read checkpoints; its message identifies it."""
    own = tmp_path / "python3"
    # Runs tasks with the tests' Python, but fails when it is asked to verify a checkpoint.
    own.write_text(
        '#!/bin/sh\ncase "$*" in *verify_checkpoint*) echo "interpreter of the chief" >&2; exit 9;; esac\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    own.chmod(0o700)
    roles = {"chief": {"command": f"{shlex.quote(str(own))} task.py"}}
    run = finished(WRITES.replace("worker:0", "chief:0"), roles=roles)
    message = ("ckpt-3 could not be verified: ", "interpreter of the chief")
    refuses(lambda: assert_chief_checkpoint(run, number=3, verify=True), *message)


@pytest.mark.slow
def test_verification_finds_invalid_checksums(wrote: Run) -> None:
    """The tests' writer writes no checksums: TensorFlow refuses the checkpoint, which looks complete."""
    damaged = "ckpt-3, which the chief (worker:0) wrote, is damaged:"
    refuses(lambda: assert_chief_checkpoint(wrote, number=3, verify=True), damaged)
