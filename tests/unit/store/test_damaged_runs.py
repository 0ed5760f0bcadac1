"""The files of an ended run with damage of any kind: readers and commands still show what the other files hold."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from acting_as import in_child, needs_root
from damage import ALL_DAMAGES, DAMAGES
from namespaces import change_mounts
from orch_command import Finished, Orch
from pages import write_run

from orchestrator.client import api
from orchestrator.client.view.tables import status_lines
from orchestrator.core.errors import RunEnded
from orchestrator.store.logs.query import LogQuery, query_lines
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView


def read_all(run: Path) -> tuple[str, str]:
    """Read everything that the commands read of a run. Return its state and its log lines."""
    view = RunView.open(RunPaths(run))
    assert view is not None and not view.is_live and (not view.can_be_swept or view.is_original)
    status = api.status_of(view)
    shown = [status.model_dump_json(), *status_lines(status, 80, colour=True), *view.remarks()]
    "\n".join(shown).encode()
    columns = view.history()
    assert {len(values) for values in columns.values()} == {len(columns["time"])}
    json.dumps(columns, allow_nan=False)
    with suppress(RunEnded):
        api.Run(view).wait(timeout_s=0)
    batches = query_lines(view.paths.logs, LogQuery(), lambda: True)
    text = "\n".join(line.text for batch in batches for line in batch)
    text.encode()
    return status.run.state, text


def test_any_damage_changes_neither_the_outcome_nor_other_logs(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    for state, damages in (("failed", ALL_DAMAGES), ("lost", DAMAGES)):
        place = write_run(code=3, is_lost=state == "lost")
        (place / "control").touch()
        whole = place.rename(tmp_path / state)
        for name, damage in damages.items():
            if state == "lost" and name.startswith("result.json"):
                continue
            with subtests.test(name, state=state):
                run = shutil.copytree(whole, place)
                damage(run)
                found, text = read_all(run)
                assert (found, "a line of worker:1" in text) == (state, True)
                assert "a line of worker:0" in text or name.startswith("logs/worker-0.log")
            shutil.rmtree(place)


def sane(done: Finished) -> Finished:
    assert "Traceback" not in done.err and "fault in orch" not in done.err, done.err
    return done


def assert_all_verbs_agree(orch: Orch, run: Path, state: str, code: int) -> None:
    """`down` writes a missing result. The exit code is the same afterwards."""

    def verb(*words: str) -> Finished:
        return sane(orch.within(*words))

    status, listed = verb("status", run.name, "--json"), verb("ls", "--all", "--json")
    document = status.document["run"]
    assert (status.code, document["id"], document["state"]) == (0, run.name, state), status.err
    assert document["exit_code"] == (code if state == "failed" else None)
    assert [(row["id"], row["state"]) for row in listed.document["runs"]] == [(run.name, state)]
    for words, text in ((("logs",), "a line of worker:1"), (("report", "--markdown"), f"`: {state}")):
        shown = verb(*words, run.name)
        assert (shown.code, text in shown.out) == (0, True), shown
    assert (verb("attach", run.name).code, verb("wait", run.name).code) == (3, code)
    ended = verb("down", run.name, "--json")
    assert (ended.code, ended.document["ended"], ended.document["swept"]) == (0, [], 0)
    assert verb("wait", run.name).code == code


def assert_is_pruned(orch: Orch, run: Path) -> None:
    """A lock that is not a file cannot be taken: the run stays, and the reason is reported."""
    is_file = not os.path.lexists(run / "lock") or stat.S_ISREG((run / "lock").lstat().st_mode)
    pruned = sane(orch("prune", "--keep", "0", "--all"))
    assert pruned.code == (0 if is_file else 125), pruned.err
    assert ("is left as it is" in pruned.err) == run.exists() == (not is_file)


def check_verbs(orch: Orch, subtests: pytest.Subtests, failed: Iterable[str], lost: Iterable[str]) -> None:
    for state, code, names in (("failed", 3, failed), ("lost", 125, lost)):
        for name in names:
            with subtests.test(name, state=state):
                run = write_run(code=3, is_lost=state == "lost")
                (run / "control").touch()
                ALL_DAMAGES[name](run)
                assert_all_verbs_agree(orch, run, state, code)
                assert_is_pruned(orch, run)
            shutil.rmtree(run, ignore_errors=True)


def test_damaged_run_has_one_outcome_for_all_verbs(orch: Orch, subtests: pytest.Subtests) -> None:
    """The cases are four of those of the test above."""
    failed, lost = ("result.json: cut off", "events.jsonl: a pipe"), ("run.json: cut off", "lock: missing")
    check_verbs(orch, subtests, failed, lost)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_run_with_any_damage_has_one_outcome_for_all_verbs(orch: Orch, subtests: pytest.Subtests) -> None:
    kinds = [name for name in ALL_DAMAGES if not name.startswith("result.json")]
    check_verbs(orch, subtests, ALL_DAMAGES, kinds)


@pytest.fixture
def orch(orch: Orch) -> Iterator[Orch]:
    """Remove the runs afterwards: those without a record could not be ended."""
    yield orch
    shutil.rmtree(orch.state / "orch/runs", ignore_errors=True)


def only(run: Path, *kept: str) -> Path:
    """Remove all other files."""
    for path in run.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return run


def test_state_is_read_from_what_is_left(orch: Orch) -> None:
    """Without events and result nothing shows the end. With a result alone, it is the outcome; no record names a
    machine, and the lock cannot be probed."""
    for files, state, code in (
        (("run.json", "lock", "logs"), "lost", 125),
        (("checkpoints",), "lost", 125),
        (("result.json",), "failed", 3),
    ):
        run = only(write_run(code=3), *files)
        if state == "failed":
            (run / "lock").mkdir()
            assert orch("down", run.name).code == 0
        assert orch("status", run.name, "--json").document["run"]["state"] == state, files
        assert orch("wait", run.name).code == code, files


def test_unknown_machine_is_named_as_unknown(orch: Orch) -> None:
    run = only(write_run(is_lost=True), "logs")
    (run / "lock").mkdir()
    ended = orch("down", run.name)
    assert ended.code == 125
    assert "its record does not name the supervisor" in ended.err and "of this machine" not in ended.err


def test_trimmed_run_without_a_record_is_shown(orch: Orch) -> None:
    for kept in (("checkpoints", "result.json"), ("result.json",)):
        run = only(write_run(code=3), *kept)
        status = orch("status", run.name)
        assert (status.code, "failed" in status.out) == (0, True)
        assert "have been removed" in status.err and "prune" not in status.err
        assert "has removed its logs" in orch("logs", run.name).err
        assert orch("prune", "--keep", "0", "--all", "--checkpoints").code == 0
        assert not run.exists()


def test_damaged_result_is_kept_beside_the_new_one(orch: Orch) -> None:
    run = write_run(code=3)
    half = (run / "result.json").read_bytes()[:100]
    (run / "result.json").write_bytes(half)
    for _ in range(2):
        assert orch("down", run.name).code == 0
        assert sorted(path.name for path in run.glob("*result*")) == ["result.json", "result.json.damaged"]
    assert json.loads((run / "result.json").read_text())["exit_code"] == 3
    assert (run / "result.json.damaged").read_bytes() == half


def test_newer_format_is_refused_in_one_sentence(orch: Orch, subtests: pytest.Subtests) -> None:
    for file in ("run.json", "events.jsonl", "result.json"):
        with subtests.test(file):
            run = write_run(code=3)
            path = run / file
            before = re.sub('"schema_version":( ?)1', r'"schema_version":\g<1>2', path.read_text(), count=1)
            path.write_text(before)
            for verb in ("wait",) if file == "result.json" else ("status", "logs", "wait", "down", "report"):
                done = orch(verb, run.name)
                assert (done.code, done.err.count("\n")) == (125, 1)
                assert "written by a newer orch" in done.err and "upgrade" in done.err
            listed = orch("ls", "--all")
            assert listed.code == 0 and ("newer" in listed.err or "failed" in listed.out)
            assert orch("prune", "--keep", "0", "--all").code == 0
            assert path.read_text() == before
            shutil.rmtree(run)


@needs_root
def test_read_only_state_directory_is_readable(orch: Orch, state_dir: Path) -> None:
    run = write_run(is_lost=True)
    read_only = f"mount --bind {state_dir} {state_dir}; mount -o remount,ro,bind {state_dir}"

    def verbs() -> list[Finished]:
        change_mounts(read_only)
        return [orch(verb, run.name) for verb in ("logs", "wait", "down")]

    logs, wait, down = in_child(verbs)
    assert (logs.code, "a line of" in logs.out) == (0, True)
    assert (wait.code, "lost" in wait.err, down.code) == (125, True, 0)
    assert not (run / "result.json").exists()
