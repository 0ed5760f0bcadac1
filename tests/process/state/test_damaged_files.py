"""Every command with an ended run, for each kind of damage to each of its files."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from made_runs import Cli, Made, Output, Place
from orch_command import ORCH
from run_damage import FEW, FEWEST, TABLES, cases, file_of

from orchestrator.store.runs.paths import RunPaths


def damage(paths: RunPaths, which: str, how: str) -> None:
    path = file_of(paths, which)
    if not path.exists() and which in ("sample.json", "control"):
        path.write_text("{}")
    TABLES[which][how](path)


def assert_sane(*outputs: Output) -> None:
    for one in outputs:
        assert "Traceback" not in one.err and "fault in orch" not in one.err, one.err


@pytest.mark.parametrize(("which", "how"), cases(FEW))
def test_damaged_failed_run_stays_failed(which: str, how: str, made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.failed)
    damage(paths, which, how)
    run = paths.run_id
    status = cli("status", run, "--json")
    assert_sane(status)
    assert status.code == 0, status.err
    document = json.loads(status.out)
    assert (document["run"]["id"], document["run"]["state"], document["run"]["exit_code"]) == (
        run,
        "failed",
        3,
    )
    listed = cli("ls", "--all", "--json")
    assert_sane(listed)
    assert [(row["id"], row["state"]) for row in json.loads(listed.out)["runs"]] == [(run, "failed")]
    logs = cli("logs", run)
    assert_sane(logs)
    assert logs.code == 0
    assert "said by worker:1" in logs.out
    assert which == "log" or "said by worker:0" in logs.out
    outputs = [
        cli(*words)
        for words in (("status", run), ("ls", "--all"), ("logs", run, "-t"), ("logs", run, "--json"))
    ]
    assert_sane(*outputs)
    assert [one.code for one in outputs] == [0, 0, 0, 0]
    assert cli("attach", run).code == 3
    waited = cli("wait", run)
    assert_sane(waited)
    assert waited.code == 3
    ended = cli("down", run, "--json")
    assert_sane(ended)
    assert (ended.code, json.loads(ended.out)["ended"], json.loads(ended.out)["swept"]) == (0, [], 0)
    # The result that `down` wrote in place of a missing one has the same exit code.
    assert cli("wait", run).code == 3


@pytest.mark.parametrize(("which", "how"), cases(FEWEST, without=("result.json", "log", "sample.json")))
def test_damaged_lost_run_stays_lost(which: str, how: str, made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.lost)
    damage(paths, which, how)
    run = paths.run_id
    status = cli("status", run, "--json")
    assert_sane(status)
    document = json.loads(status.out)
    assert (document["run"]["state"], status.code) == ("lost", 0)
    assert {task["state"] for task in document["tasks"]} <= {"lost"}
    listed = cli("ls", "--all", "--json")
    assert [(row["id"], row["state"]) for row in json.loads(listed.out)["runs"]] == [(run, "lost")]
    assert cli("attach", run).code == 3
    assert cli("wait", run).code == 125
    ended = cli("down", run)
    assert_sane(listed, ended)
    assert ended.code == 0
    result = json.loads(paths.result.read_text())
    assert (result["run_id"], result["outcome"], result["exit_code"]) == (run, "lost", 125)
    assert cli("wait", run).code == 125


def test_run_without_events_and_result_is_lost(made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.failed)
    paths.events.unlink()
    paths.result.unlink()
    assert json.loads(cli("status", "--json").out)["run"]["state"] == "lost"
    assert cli("wait").code == 125


def only(paths: RunPaths, *kept: str) -> None:
    for path in paths.root.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_outcome_is_read_from_the_result_alone(made: Made, place: Place, cli: Cli) -> None:
    """The lock cannot be probed, and the record that names a machine is missing."""
    paths = place(made.failed)
    only(paths, "result.json")
    paths.lock.mkdir()
    assert json.loads(cli("status", paths.run_id, "--json").out)["run"]["state"] == "failed"
    assert cli("wait", paths.run_id).code == 3
    ended = cli("down", paths.run_id)
    assert ended.code == 0, ended.err


def test_unknown_machine_is_named_as_unknown(made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.lost)
    only(paths, "logs")
    paths.lock.mkdir()
    ended = cli("down", paths.run_id)
    assert ended.code == 125
    assert "its record does not name the supervisor" in ended.err and "of this machine" not in ended.err


@pytest.mark.parametrize("kept", [("checkpoints", "result.json"), ("result.json",)])
def test_trimmed_run_without_a_record_is_shown(
    kept: tuple[str, ...], made: Made, place: Place, cli: Cli
) -> None:
    paths = place(made.failed)
    only(paths, *kept)
    status = cli("status", paths.run_id)
    assert (status.code, "failed" in status.out) == (0, True)
    assert "have been removed" in status.err and "prune" not in status.err
    assert "has removed its logs" in cli("logs", paths.run_id).err
    assert cli("prune", "--keep", "0", "--all", "--checkpoints").code == 0
    assert not paths.root.exists()


def test_directory_with_only_checkpoints_is_a_lost_run(made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.failed)
    only(paths, "checkpoints")
    assert [row["state"] for row in json.loads(cli("ls", "--all", "--json").out)["runs"]] == ["lost"]


def test_damaged_result_is_kept_beside_the_new_one(made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.failed)
    half = paths.result.read_bytes()[:100]
    paths.result.write_bytes(half)
    assert cli("down").code == 0
    assert json.loads(paths.result.read_text())["exit_code"] == 3
    assert paths.result.with_name("result.json.damaged").read_bytes() == half
    assert cli("down").code == 0
    assert sorted(path.name for path in paths.root.glob("*result*")) == ["result.json", "result.json.damaged"]


@pytest.mark.parametrize("file", ["run.json", "events.jsonl", "result.json"])
def test_newer_format_is_refused_in_one_sentence(file: str, made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.failed)
    path = file_of(paths, file)
    if file == "events.jsonl":
        path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":2', 1))
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    before = path.read_bytes()
    run = paths.run_id
    verbs = (
        [("wait", run)]
        if file == "result.json"
        else [(verb, run) for verb in ("status", "logs", "wait", "down")]
    )
    for words in verbs:
        output = cli(*words)
        assert output.code == 125
        assert output.err.count("\n") == 1
        assert "written by a newer orch" in output.err and "upgrade" in output.err
    listed = cli("ls", "--all")
    assert listed.code == 0
    assert "newer" in listed.err or "failed" in listed.out
    assert cli("prune", "--keep", "0", "--all").code == 0
    assert path.read_bytes() == before


def test_damage_is_reported(made: Made, place: Place, cli: Cli) -> None:
    paths = place(made.failed)
    assert cli("status").err == ""
    paths.record.write_text("{")
    assert "run.json is damaged" in cli("status").err


_READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.mark.parametrize(
    ("words", "code"), [(("status",), 0), (("ls",), 0), (("logs",), 0), (("wait",), 125), (("down",), 0)]
)
def test_read_only_state_directory_is_readable(
    words: tuple[str, ...], code: int, made: Made, place: Place, state_dir: Path
) -> None:
    paths = place(made.lost)
    inside = ["unshare", "--mount", "sh", "-c", _READ_ONLY, str(state_dir)]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts cannot be made here (needs root)")
    done = subprocess.run(
        [*inside, str(ORCH), *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert "lost" in done.stdout + done.stderr or "said by" in done.stdout or words == ("down",)
    assert not paths.result.exists()


_NO_LOCK_FILE = frozenset({"a directory", "a link", "a link to itself", "a pipe", "a socket"})


@pytest.mark.parametrize(("which", "how"), cases(FEWEST))
def test_damaged_run_is_pruned_when_over(which: str, how: str, made: Made, place: Place, cli: Cli) -> None:
    damage(place(made.failed), which, how)
    lost = place(made.lost)
    if which != "result.json":
        damage(lost, which, how)
    dry = cli("prune", "--keep", "0", "--all", "--dry-run")
    assert_sane(dry)
    assert dry.code == 0
    pruned = cli("prune", "--keep", "0", "--all")
    assert_sane(pruned)
    if which == "lock" and how in _NO_LOCK_FILE:
        # A lock that is not a file cannot be taken: the run is not removed, and the reason is reported.
        assert pruned.code == 125 and pruned.err.count("is left as it is") == 2
        return
    assert pruned.code == 0
    assert json.loads(cli("ls", "--all", "--json").out)["runs"] == [], (dry, pruned)
