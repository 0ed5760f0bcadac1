"""Runs in the background, and the verbs that show them: status, ps, ls, wait, attach."""

from __future__ import annotations

import time

from orch_command import Orch
from waiting import until

_SLEEPER = ("sh", "-c", "echo here; exec sleep 600")
_UNTIL_GO = ("sh", "-c", "echo here; until [ -e go ]; do sleep 0.1; done; exit $(cat go)")


def _end_with(orch: Orch, code: int) -> None:
    (orch.directory / "new").write_text(str(code))
    (orch.directory / "new").rename(orch.directory / "go")


def test_detached_run_prints_id_and_continues(orch: Orch) -> None:
    done = orch("up", "-dq", "-n", "2", "--", *_SLEEPER)
    assert (done.code, done.lines, done.err) == (0, [orch.run_dir().name], "")
    until(lambda: orch.status()["run"]["state"] == "running")
    assert orch("down", "-q").code == 0
    assert orch.status()["run"]["state"] == "stopped"


def test_wait_ready(orch: Orch) -> None:
    done = orch("up", "--wait", "ready", "-n", "2", "--json", "--", *_SLEEPER)
    assert done.code == 0
    assert done.document["run"]["state"] == "running"
    assert [task["state"] for task in done.document["tasks"]] == ["running", "running"]


def test_wait_ready_fails_with_task(orch: Orch) -> None:
    script = orch.script("serves.py", "import sys\nsys.exit(5)\nimport tensorflow\n")
    done = orch("up", "--wait", "ready", "--start", "spawn", "--", script)
    assert done.code == 5
    assert "orch: worker:0 failed: exit 5" in done.err


def test_wait_done(orch: Orch) -> None:
    assert orch("up", "--wait", "done", "--", "true").code == 0
    failed = orch("up", "--wait", "done", "--json", "--", "sh", "-c", "exit 9")
    assert failed.code == 9
    assert failed.document["cause"]["text"] == "exit 9"


def test_status_document(orch: Orch) -> None:
    before = time.time()
    assert orch("up", "--wait", "ready", "-n", "2", "--", *_SLEEPER).code == 0
    until(lambda: orch.status()["tasks"][1]["memory_bytes"] is not None)
    document = orch("status", "--json").document
    assert document["schema_version"] == 1
    run = document["run"]
    assert set(run) >= {"id", "name", "state", "attempt", "started_at", "dir"}
    assert (run["name"], run["state"], run["attempt"]) == ("here", "running", 1)
    assert run["dir"] == str(orch.run_dir()) and run["id"] == orch.run_dir().name
    assert before - 1 <= run["started_at"] <= time.time() + 1
    assert [task["task"] for task in document["tasks"]] == ["worker:0", "worker:1"]
    for index, task in enumerate(document["tasks"]):
        assert (task["role"], task["index"], task["state"]) == ("worker", index, "running")
        host, _, port = task["address"].rpartition(":")
        assert host == "127.0.0.1" and 0 < int(port) < 65536
        assert task["pid"] > 0 and task["uptime_s"] > 0
        assert task["cpu_percent"] >= 0 and task["memory_bytes"] > 0
        assert (task["restarts"], task["exit_code"], task["signal"], task["progress"]) == (
            0,
            None,
            None,
            None,
        )


def test_status_of_ended_run(orch: Orch) -> None:
    orch("up", "-q", "-n", "2", "--", "sh", "-c", "[ $ORCH_TASK = worker:1 ] && exit 3; exec sleep 600")
    tasks = orch.status()["tasks"]
    assert [(task["state"], task["exit_code"], task["signal"]) for task in tasks] == [
        ("stopped", None, 15),
        ("failed", 3, None),
    ]
    shown = orch("ps").lines
    assert shown[0].startswith(orch.run_dir().name) and "failed" in shown[0] and "exit code 3" in shown[0]
    assert shown[2].split()[:4] == ["TASK", "STATE", "PID", "UP"]
    assert [line.split()[:2] for line in shown[3:]] == [["worker:0", "stopped"], ["worker:1", "failed"]]
    assert orch("status", "here", "--color", "never").lines == shown


def test_runs_are_found_by_id_prefix_and_name(orch: Orch) -> None:
    """From another directory, a run is found only if it is named."""
    assert orch("up", "-q", "--name", "alpha", "--", "true").code == 0
    assert orch("up", "-q", "--name", "beta", "--", "true").code == 0
    alpha, beta = orch.run_dirs()
    assert orch.status()["run"]["id"] == beta.name
    for word in (alpha.name, alpha.name[:-2], "alpha"):
        assert orch.status(word)["run"]["id"] == alpha.name
    elsewhere = orch.directory / "elsewhere"
    elsewhere.mkdir()
    assert orch("status", cwd=elsewhere).code == 3
    assert orch("status", "beta", "--json", cwd=elsewhere).document["run"]["id"] == beta.name
    assert orch("ls", cwd=elsewhere).out == ""
    assert [run["id"] for run in orch("ls", "--all", "--json", cwd=elsewhere).document["runs"]] == [
        beta.name,
        alpha.name,
    ]


def test_ls(orch: Orch) -> None:
    assert orch("ls").out == ""
    orch("up", "-q", "--", "sh", "-c", "exit 3")
    assert orch("up", "-d", "-n", "2", "--name", "live", "--", *_SLEEPER).code == 0
    until(lambda: orch.status()["run"]["state"] == "running")
    header, *rows = orch("ls").lines
    titles = ["RUN", "STATE", "EXIT", "TOOK", "AGE", "TASKS", "SIZE", "NAME", "DIRECTORY", "COMMAND"]
    assert header.split() == titles, "no LOSS, since no run reported one"
    assert [row.split()[1] for row in rows[:2]] == ["running", "failed"]
    assert rows[0].endswith("  sh -c 'echo here; exec sleep 600'") and rows[1].endswith("  sh -c 'exit 3'")
    assert rows[2].startswith("2 runs")
    (live, failed) = orch("--json", "ls").document["runs"]
    assert live["state"] == "running" and failed["state"] == "failed"
    assert live["size_bytes"] > 0 and live["age_s"] >= 0
    assert (live["exit_code"], failed["exit_code"]) == (None, 3)
    assert failed["command"] == "sh -c 'exit 3'"


def test_ls_has_the_last_loss(orch: Orch) -> None:
    bar = "10/10 - 1s - 100ms/step - loss: {}"
    for loss in ("0.2500", "nan"):
        script = orch.script(f"train_{loss}.py", f"print('Epoch 1/1')\nprint({bar.format(loss)!r})\n")
        assert orch("up", "-q", "--", script).code == 0
    bad, good = orch("ls", "--json").document["runs"]
    assert (good["loss"], good["bad_loss"]) == (0.25, None)
    assert (bad["loss"], bad["bad_loss"]) == (None, "nan")
    assert [line.split()[4] for line in orch("ls").lines[:3]] == ["LOSS", "nan", "0.25"]


def test_log_dir_is_found_by_other_verbs(orch: Orch) -> None:
    logs = orch.directory / "my logs"
    assert orch("up", "-q", "--log-dir", "my logs", "--", "echo", "words").code == 0
    (run,) = [entry for entry in logs.iterdir() if entry.is_dir()]
    assert (run / "result.json").exists()
    assert run.stat().st_mode & 0o777 == 0o700
    assert (run / "logs" / "worker-0.log").read_bytes() == b"words\n"
    assert orch("logs", "--no-prefix").out == "words\n"
    assert orch("status", "--json").document["run"]["dir"] == str(run)
    assert orch.status()["run"]["dir"] == str(run)


def test_wait_returns_exit_code_of_run(orch: Orch) -> None:
    assert orch("up", "-d", "--", *_UNTIL_GO).code == 0
    late = orch("wait", "--timeout", "100ms")
    assert late.code == 124 and "still runs after 0.1 s" in late.err
    waiting = orch.start("wait", "--json")
    _end_with(orch, 6)
    done = waiting.finish()
    assert done.code == 6
    assert done.document["exit_code"] == 6
    assert orch("wait").code == 6, "the code of an ended run, at any later time"


def test_attach_without_terminal(orch: Orch) -> None:
    """It shows earlier and new lines, ends with the run and returns its exit code."""
    assert orch("up", "--wait", "ready", "-n", "2", "--", *_UNTIL_GO).code == 0
    attached = orch.start("attach", "--tasks", "1")
    attached.until_out("worker:1 | here\n")
    _end_with(orch, 4)
    done = attached.finish()
    assert done.code == 4
    assert "worker:0" not in done.out
    assert "failed" in done.err


def test_attach_begins_with_the_last_lines(orch: Orch) -> None:
    """A line that another task began before them is shown whole."""
    counts = (
        "until [ -e lines ]; do sleep 0.1; done; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); done"
    )
    wait = "until [ -e go ]; do sleep 0.1; done"
    program = f"case $ORCH_TASK in worker:0) {counts}; {wait};; *) printf half-; {wait}; echo whole;; esac"
    assert orch("up", "--wait", "ready", "-n", "2", "--", "sh", "-c", program).code == 0
    until(lambda: orch("logs").lines == ["worker:1 | half-"])
    (orch.directory / "lines").touch()
    until(lambda: len(orch("logs").lines) == 31)
    attached = {2: orch.start("attach", "--tail", "2"), 20: orch.start("attach")}
    for started in attached.values():
        started.until_out("worker:0 | line 29\n")
    _end_with(orch, 0)
    for count, started in attached.items():
        lines = [f"worker:0 | line {number}" for number in range(30 - count, 30)]
        assert started.finish().lines == [*lines, "worker:1 | half-whole"]


def test_run_continues_after_leaving_attach(orch: Orch) -> None:
    assert orch("up", "--wait", "ready", "--", *_UNTIL_GO).code == 0
    for number in (2, 15):
        attached = orch.start("attach")
        attached.until_out("here")
        attached.signal(number)
        done = attached.finish()
        assert done.code == 0 and "it keeps running" in done.err
    assert orch.status()["run"]["state"] == "running"
    _end_with(orch, 0)
    assert orch("wait").code == 0


def test_run_continues_after_interrupted_wait(orch: Orch) -> None:
    waiting = orch.start("up", "--wait", "done", "--", *_SLEEPER)
    waiting.until_out("\n")
    waiting.signal(2)
    done = waiting.finish()
    assert done.code == 130 and "keeps running" in done.err
    until(lambda: orch.status()["run"]["state"] == "running")
