"""`orch report`: any run can be kept as a file, and what cannot be done is said in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from orch_command import Orch
from pages import embedded
from run_records import make_run

FAILS = 'print("last line", flush=True)\nraise ValueError("bad </script> shape")\n'


def test_report_of_a_failed_run(orch: Orch) -> None:
    orch.script("train.py", FAILS)
    assert orch("up", "-q", "--name", "digits", "-n", "2", "--", "train.py").code == 1
    done = orch("report")
    run = orch.run_dir().name
    assert (done.code, done.out, done.err) == (0, f"report-{run}.html\n", "")
    path = orch.directory / f"report-{run}.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in orch.directory.iterdir() if entry.suffix == ".html"] == [path.name]
    data = embedded(path.read_bytes())
    (document,) = data["runs"]
    assert "ValueError: bad </script> shape (train.py:2)" in document["end"]["cause"]["line"]
    assert "Traceback" in document["end"]["exception"]
    assert any("ValueError" in line for line in document["end"]["lines"])
    assert "last line" in data["log-0"]["text"]


def test_reports_of_several_runs_are_compared(orch: Orch) -> None:
    for name, workers in (("alpha", "1"), ("beta", "2")):
        assert orch("up", "-q", "--name", name, "-n", workers, "--", "true").code == 0
    done = orch("report", "alpha", "beta", "alpha", "-o", "both.html", "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document["report"] == str(orch.directory / "both.html")
    found = embedded((orch.directory / "both.html").read_bytes())
    assert [run["name"] for run in found["comparison"]["runs"]] == ["alpha", "beta"]
    assert {"kind": "option", "name": "workers", "values": ["1", "2"]} in found["comparison"]["differences"]


def test_report_of_a_live_run_is_a_snapshot(orch: Orch) -> None:
    started = orch.start("up", "-n", "1", "--", "sh", "-c", "echo on; exec sleep 600")
    started.until_out("on")
    assert orch("report", "-o", "now.html").code == 0
    (document,) = embedded((orch.directory / "now.html").read_bytes())["runs"]
    assert document["run"]["live"] and document["end"] is None
    assert orch("down").code == 0
    started.finish()


def test_markdown_and_standard_output(orch: Orch) -> None:
    orch.script("train.py", FAILS)
    assert orch("up", "-q", "--name", "digits", "--workers", "1", "--", "train.py").code == 1
    done = orch("report", "--markdown")
    assert done.code == 0 and done.out.startswith("### `digits`: failed after ")
    assert "**Cause:** `worker:0 failed: ValueError: bad </script> shape (train.py:2)`" in done.out
    assert orch("report", "-o", "-").out.startswith("<!doctype html>")
    assert not list(orch.directory.glob("*.html"))


@pytest.mark.parametrize("make", ["file", "link", "dangling link"])
def test_existing_output_is_replaced_only_with_force(orch: Orch, make: str) -> None:
    assert orch("up", "-q", "--", "true").code == 0
    out, target = orch.directory / "out.html", orch.directory / "target"
    if make == "file":
        out.write_text("mine")
    else:
        out.symlink_to(target.name)
    if make == "link":
        target.write_text("mine")
    done = orch("report", "-o", "out.html")
    assert (done.code, done.out) == (2, "")
    assert "out.html: exists; --force replaces it" in done.err
    assert make == "dangling link" or out.read_text() == "mine"
    assert make != "dangling link" or not target.exists()
    assert orch("report", "-o", "out.html", "--force").code == 0
    # The file that a link leads to is replaced, not the link.
    assert out.is_symlink() == (make != "file")
    assert "runs" in embedded(out.read_bytes())
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "."), "is a directory; name a file in it"),
        (("-o", "none/such.html"), "none: is not a directory"),
        (("-o", "/proc/report.html"), "cannot be written"),
        (("-o", "/dev/null", "--force"), "is not a regular file"),
        (("--open", "--markdown"), "--open needs a report in a file"),
    ],
)
def test_output_that_cannot_be_written_is_refused(orch: Orch, words: tuple[str, ...], said: str) -> None:
    assert orch("up", "-q", "--", "true").code == 0
    done = orch("report", *words)
    assert (done.code, done.out) == (2, "") and said in done.err
    assert Path("/dev/null").is_char_device()


def test_unknown_run_is_refused(orch: Orch) -> None:
    done = orch("report", "none-such")
    assert done.code == 3 and "no run 'none-such'" in done.err


def test_open_starts_the_browser_or_says_that_there_is_none(orch: Orch) -> None:
    assert orch("up", "-q", "--", "true").code == 0
    script = orch.directory / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {orch.directory}/opened\n')
    script.chmod(0o755)
    done = orch("report", "-o", "a.html", "--open", env={"BROWSER": f"{script} %s"})
    assert (done.code, done.err) == (0, "")
    assert (orch.directory / "opened").read_text() == f"file://{orch.directory}/a.html\n"
    nowhere = {"BROWSER": None, "DISPLAY": None, "WAYLAND_DISPLAY": None, "PATH": str(orch.directory)}
    done = orch("report", "-o", "b.html", "--open", env=nowhere)
    assert (
        done.code == 0 and "no browser was found" in done.err and str(orch.directory / "b.html") in done.err
    )


def report_of(orch: Orch) -> tuple[dict, str]:  # type: ignore[type-arg]
    done = orch("report", "-o", "damaged.html", "--force")
    assert done.code == 0, done.err
    (document,) = embedded((orch.directory / "damaged.html").read_bytes())["runs"]
    return document, done.err


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no events", ""),
        ("torn events", ""),
        ("no record", "run.json is damaged or missing"),
        ("no result", ""),
        ("no samples", ""),
        ("damaged samples", ""),
        ("no logs", ""),
        ("no index", ""),
    ],
)
def test_damaged_run_is_shown_as_far_as_it_can_be_read(orch: Orch, damage: str, said: str) -> None:
    assert orch("up", "-q", "-n", "1", "--", "echo", "hello").code == 0
    run = orch.run_dir()
    match damage:
        case "no events":
            (run / "events.jsonl").unlink()
        case "torn events":
            data = (run / "events.jsonl").read_bytes()
            (run / "events.jsonl").write_bytes(data[: len(data) * 2 // 3])
        case "no record":
            (run / "run.json").write_text("{")
        case "no result":
            (run / "result.json").unlink()
        case "no samples":
            (run / "samples.jsonl").unlink(missing_ok=True)
        case "damaged samples":
            row = '{"time":1.0,"task":"worker:0","loss":NaN}\n{"time":1e999,"task":"worker:0"}\n{"time"'
            (run / "samples.jsonl").write_text(row)
        case "no logs":
            shutil.rmtree(run / "logs")
        case "no index":
            (run / "logs" / "index").unlink()
    document, err = report_of(orch)
    assert document["run"]["state"] == "succeeded" and document["end"]["outcome"] == "succeeded"
    assert (said in err and any(said in remark for remark in document["run"]["remarks"])) or not said


def test_pruned_run_says_so(orch: Orch) -> None:
    assert orch("up", "-q", "-n", "1", "--", "true").code == 0
    run = orch.run_dir()
    for name in ("events.jsonl", "samples.jsonl"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "logs")
    document, err = report_of(orch)
    assert "its events and logs have been removed" in err
    assert document["end"]["tasks"][0]["task"] == "worker:0"


def test_lost_run_has_a_report(orch: Orch) -> None:
    make_run("lost", directory=str(orch.directory)).close()
    document, _ = report_of(orch)
    assert document["run"]["state"] == "lost" and document["end"]["outcome"] == "lost"


def test_copied_directory_is_reported_as_a_copy(orch: Orch) -> None:
    assert orch("up", "-q", "--name", "mine", "-n", "1", "--", "true").code == 0
    run = orch.run_dir()
    shutil.copytree(run, run.with_name("copy"))
    done = orch("report", "copy", "-o", "copy.html")
    assert done.code == 0 and "this is a copy of a run's directory" in done.err


@pytest.mark.parametrize(("version", "code"), [(2, 125), (0, 0)])
def test_run_of_another_version(orch: Orch, version: int, code: int) -> None:
    assert orch("up", "-q", "--name", "mine", "-n", "1", "--", "true").code == 0
    path = orch.run_dir() / "run.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema_version": version}))
    done = orch("report", "-o", "a.html")
    assert done.code == code
    assert ("was written by a newer orch" in done.err) == bool(code)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a directory to another user")
def test_run_of_another_user_is_skipped(orch: Orch) -> None:
    assert orch("up", "-q", "--name", "mine", "-n", "1", "--", "true").code == 0
    run = orch.run_dir()
    os.chown(run, 65534, 65534)
    done = orch("report", "mine")
    assert done.code == 3 and f"{run.name}: skipped" in done.err
    os.chown(run, 0, 0)


def test_secrets_stay_masked(orch: Orch) -> None:
    words = (
        "up",
        "-q",
        "-n",
        "1",
        "-e",
        "API_TOKEN=abc-secret",
        "--",
        "sh",
        "-c",
        "true",
        "--password=abc-secret",
    )
    assert orch(*words).code == 0
    assert orch("report", "-o", "a.html").code == 0
    assert orch("report", "--markdown").out.count("abc-secret") == 0
    found = json.dumps(embedded((orch.directory / "a.html").read_bytes()))
    assert "abc-secret" not in found and "API_TOKEN" in found
