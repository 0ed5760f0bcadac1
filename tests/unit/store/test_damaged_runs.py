"""The files of an ended run with damage of any kind: readers and commands still show what the other files hold."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from damage import ALL_DAMAGES, DAMAGES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orch_command import ORCH, Finished, Orch
from pages import write_run

from orchestrator.client import api
from orchestrator.client.view.tables import status_lines
from orchestrator.core.errors import NewerFormat, RunEnded
from orchestrator.store.logs.query import LogQuery, query_lines
from orchestrator.store.runs import catalog
from orchestrator.store.runs.event_file import EventTail
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


def state_of(orch: Orch, run: Path) -> str:
    state = orch("status", run.name, "--json").document["run"]["state"]
    assert isinstance(state, str)
    return state


def test_run_without_events_and_result_is_lost(orch: Orch) -> None:
    run = write_run(code=3)
    for name in ("events.jsonl", "result.json"):
        (run / name).unlink()
    assert (state_of(orch, run), orch("wait", run.name).code) == ("lost", 125)


def test_outcome_is_read_from_the_result_alone(orch: Orch) -> None:
    """The lock cannot be probed, and the record that names a machine is missing."""
    run = only(write_run(code=3), "result.json")
    (run / "lock").mkdir()
    assert state_of(orch, run) == "failed"
    assert (orch("wait", run.name).code, orch("down", run.name).code) == (3, 0)


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


def test_directory_with_only_checkpoints_is_a_lost_run(orch: Orch) -> None:
    assert state_of(orch, only(write_run(code=3), "checkpoints")) == "lost"


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


def test_damage_is_reported(orch: Orch) -> None:
    run = write_run()
    assert orch("status", run.name).err == ""
    (run / "run.json").write_text("{")
    assert "run.json is damaged" in orch("status", run.name).err


_READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


def test_read_only_state_directory_is_readable(state_dir: Path) -> None:
    run = write_run(is_lost=True)

    def read_only(*words: str) -> subprocess.CompletedProcess[str]:
        inside = ["unshare", "--mount", "sh", "-c", _READ_ONLY, str(state_dir), *words]
        return subprocess.run(inside, capture_output=True, text=True, check=False)

    if read_only("true").returncode:
        pytest.skip("mounts cannot be made here (needs root)")
    for words, code in ((("logs", run.name), 0), (("wait", run.name), 125)):
        done = read_only(str(ORCH), *words)
        assert done.returncode == code, done.stderr
        assert "lost" in done.stdout + done.stderr or "a line of" in done.stdout
    assert read_only(str(ORCH), "down", run.name).returncode == 0
    assert not (run / "result.json").exists()


# -- any bytes

_places = st.floats(0, 1, allow_nan=False)
_garbage = st.binary(max_size=40) | st.sampled_from(
    [b"\0" * 5000, b"\n", b"null", b'"', b"{", b"1e999", b"-1", b"9" * 500, b'"\\ud800"', b"NaN"]
)
# Replace the bytes between two places.
_changes = st.lists(st.tuples(_places, _places, _garbage), min_size=1, max_size=4)
_FILES = ("run.json", "events.jsonl", "result.json", "sample.json", "samples.jsonl", "logs/index")


def changed(data: bytes, changes: list[tuple[float, float, bytes]]) -> bytes:
    for begin, end, new in changes:
        first = int(begin * len(data))
        data = data[:first] + new + data[max(first, int(end * len(data))) :]
    return data


@pytest.fixture
def originals() -> list[tuple[Path, dict[str, bytes]]]:
    runs = [write_run(code=3), write_run(is_lost=True)]
    return [
        (run, {name: (run / name).read_bytes() for name in _FILES if (run / name).exists()}) for run in runs
    ]


@settings(
    max_examples=int(os.environ.get("ORCH_TEST_EXAMPLES", "40")), suppress_health_check=list(HealthCheck)
)
@given(damages=st.dictionaries(st.sampled_from(_FILES), _changes, min_size=1, max_size=3))
def test_reading_never_fails(
    damages: dict[str, list[tuple[float, float, bytes]]], originals: list[tuple[Path, dict[str, bytes]]]
) -> None:
    for run, whole in originals:
        for name, data in whole.items():
            (run / name).write_bytes(changed(data, damages.get(name, [])))
        with suppress(NewerFormat):
            read_all(run)
    catalog.survey()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(changes=_changes)
def test_complete_lines_after_damage_are_read(
    changes: list[tuple[float, float, bytes]], originals: list[tuple[Path, dict[str, bytes]]], tmp_path: Path
) -> None:
    whole = originals[0][1]["events.jsonl"]
    path = tmp_path / "events.jsonl"
    path.write_bytes(whole)
    wanted = EventTail(path).read()
    path.write_bytes(changed(whole, changes) + b"\n" + whole)
    assert EventTail(path).read()[-len(wanted) :] == wanted
