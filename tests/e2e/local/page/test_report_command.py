"""`orch report`: any run can be kept as a file. A request that cannot be served is reported in one sentence."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from orch_command import Done, Orch
from pages import WrittenRun, embedded, write_run

FAILS = 'print("last line", flush=True)\nraise ValueError("bad </script> shape")\n'


@pytest.fixture(scope="module")
def failed(shared_orch: Orch) -> Done:
    done = shared_orch.run("-q", "--name", "digits", "-n", "2", script=FAILS)
    assert done.code == 1
    return done


def document_of(path: Path) -> Any:
    (document,) = embedded(path.read_bytes())["runs"]
    return document


def test_report_of_a_failed_run(failed: Done, shared_orch: Orch) -> None:
    run = failed.run.name
    done = shared_orch("report", run)
    assert (done.code, done.out, done.err) == (0, f"report-{run}.html\n", "")
    path = shared_orch.directory / f"report-{run}.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(shared_orch.directory.glob("*.html")) == [path]
    end = document_of(path)["end"]
    assert "ValueError: bad </script> shape (train.py:2)" in end["cause"]["line"]
    assert "Traceback" in end["exception"] and any("ValueError" in line for line in end["lines"])
    assert "last line" in embedded(path.read_bytes())["log-0"]["text"]
    path.unlink()


def test_markdown_and_standard_output(failed: Done, shared_orch: Orch) -> None:
    done = shared_orch("report", failed.run.name, "--markdown")
    assert done.code == 0 and done.out.startswith("### `digits`: failed after ")
    assert ": ValueError: bad </script> shape (train.py:2)`" in done.out
    assert shared_orch("report", failed.run.name, "-o", "-").out.startswith("<!doctype html>")
    assert not list(shared_orch.directory.glob("*.html"))


def test_reports_of_several_runs_are_compared(failed: Done, shared_orch: Orch) -> None:
    assert shared_orch.run("-q", "--name", "beta", "-n", "1", script="").code == 0
    done = shared_orch("report", "digits", "beta", "digits", "-o", "both.html", "--json")
    both = shared_orch.directory / "both.html"
    assert done.code == 0 and done.document["report"] == str(both)
    found = embedded(both.read_bytes())["comparison"]
    assert [run["name"] for run in found["runs"]] == ["digits", "beta"]
    assert {"kind": "option", "name": "workers", "values": ["2", "1"]} in found["differences"]
    both.unlink()


def test_existing_output_is_replaced_only_with_force(orch: Orch) -> None:
    """The file that a link leads to is replaced, not the link."""
    run = write_run().name
    here = orch.directory
    for make in ("file", "link", "dangling"):
        out, target = here / f"{make}.html", here / f"{make}-target"
        if make != "file":
            out.symlink_to(target.name)
        if make != "dangling":
            out.write_text("mine")
        done = orch("report", run, "-o", out.name)
        assert (done.code, done.out) == (2, "")
        assert f"{out.name}: exists; --force replaces it" in done.err
        assert not target.exists() if make == "dangling" else out.read_text() == "mine"
        assert orch("report", run, "-o", out.name, "--force").code == 0
        assert out.is_symlink() == (make != "file")
        assert "runs" in embedded(out.read_bytes())
        assert stat.S_IMODE(out.stat().st_mode) == 0o600


REFUSED = (
    (("-o", "."), "is a directory; name a file in it"),
    (("-o", "none/such.html"), "none: is not a directory"),
    (("-o", "/proc/report.html"), "cannot be written"),
    (("-o", "/dev/null", "--force"), "is not a regular file"),
    (("--open", "--markdown"), "--open needs a report in a file"),
)


def test_what_cannot_be_reported_is_refused(orch: Orch, subtests: pytest.Subtests) -> None:
    run = write_run().name
    for words, said in REFUSED:
        with subtests.test(said):
            done = orch("report", run, *words)
            assert (done.code, done.out) == (2, "") and said in done.err
    assert Path("/dev/null").is_char_device()
    done = orch("report", "none-such")
    assert done.code == 3 and "no run 'none-such'" in done.err


def test_open_starts_the_browser_or_reports_that_there_is_none(orch: Orch) -> None:
    run = write_run().name
    script = orch.directory / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {orch.directory}/opened\n')
    script.chmod(0o755)
    words = ("report", run, "--open", "-o")
    done = orch(*words, "a.html", env={"BROWSER": f"{script} %s"})
    assert (done.code, done.err) == (0, "")
    assert (orch.directory / "opened").read_text() == f"file://{orch.directory}/a.html\n"
    nowhere = {"BROWSER": None, "DISPLAY": None, "WAYLAND_DISPLAY": None, "PATH": str(orch.directory)}
    done = orch(*words, "b.html", env=nowhere)
    assert done.code == 0 and "no browser was found" in done.err
    assert str(orch.directory / "b.html") in done.err


# -- runs that are not whole


def report_of(orch: Orch, run: Path) -> tuple[Any, str]:
    done = orch("report", run.name, "-o", "any.html", "--force")
    assert done.code == 0, done.err
    return document_of(orch.directory / "any.html"), done.err


def test_report_of_a_live_run_is_a_snapshot(orch: Orch) -> None:
    with WrittenRun(1) as run:
        run.start()
        document, _ = report_of(orch, run.store.paths.root)
    assert document["run"]["live"] and document["end"] is None


def test_lost_pruned_and_copied_runs_are_named_so(orch: Orch) -> None:
    document, _ = report_of(orch, write_run(is_lost=True))
    assert document["run"]["state"] == document["end"]["outcome"] == "lost"
    run = write_run()
    copy = shutil.copytree(run, run.with_name("copy"))
    assert "this is a copy of a run's directory" in report_of(orch, copy)[1]
    (copy / "run.json").write_text("{")
    document, err = report_of(orch, copy)
    remark = "run.json is damaged or missing"
    assert remark in err and any(remark in each for each in document["run"]["remarks"])
    for name in ("events.jsonl", "samples.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "logs")
    document, err = report_of(orch, run)
    assert "its events and logs have been removed" in err
    assert document["end"]["tasks"][0]["task"] == "worker:0"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a directory to another user")
def test_run_of_another_user_is_skipped(orch: Orch) -> None:
    run = write_run("mine")
    os.chown(run, 65534, 65534)
    done = orch("report", "mine")
    assert done.code == 3 and f"{run.name}: skipped" in done.err
    os.chown(run, 0, 0)
