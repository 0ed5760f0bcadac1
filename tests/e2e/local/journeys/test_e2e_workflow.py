"""`orch` in a step of GitHub Actions: groups of lines, the annotation of a failure, and harmless text."""

from __future__ import annotations

from orch_command import Orch

IN_WORKFLOW: dict[str, str | None] = {"GITHUB_ACTIONS": "true"}
FAILS = 'print("::error::of the task\\n##[add-mask]x", flush=True)\nraise ValueError("##[error]no data")\n'


def test_failure_has_a_group_and_one_annotation(orch: Orch) -> None:
    """The lines of the tasks are a group; none of their text is a command, on either stream."""
    orch.script("train.py", FAILS)
    env = {**IN_WORKFLOW, "GITHUB_WORKSPACE": str(orch.directory)}
    done = orch("up", "--no-prefix", "--", "train.py", env=env)
    assert done.code == 1
    group, *lines, end = done.lines
    assert group == f"::group::output of {orch.run_dir().name}" and end == "::endgroup::"
    assert lines[:2] == [": :error::of the task", "## [add-mask]x"]
    *report, error = done.err.splitlines()
    assert error.startswith(
        "::error file=train.py,line=2,title=worker%3A0 failed::worker:0 failed: ValueError: ##[er"
    )
    assert not [line for line in (*lines, *report) if "##[" in line or line.lstrip().startswith("::")]
    assert b"::error::of the task\n##[add-mask]x\n" in (orch.run_dir() / "logs/worker-0.log").read_bytes()

    logs = orch("logs", "--no-prefix", env=env)
    assert logs.lines[:2] == lines[:2]
    raw = orch("logs", "--raw", env=env)
    assert raw.lines[0] == "::error::of the task"


def test_success_has_a_group_and_no_annotation(orch: Orch) -> None:
    done = orch("up", "--", "echo", "hi", env=IN_WORKFLOW)
    assert [line.partition(" ")[0] for line in done.lines] == ["::group::output", "worker:0", "::endgroup::"]
    assert "::error" not in done.err


def test_file_gets_the_lines_as_they_are(orch: Orch) -> None:
    """The runner does not read it."""
    started = orch.start("up", "--no-prefix", "--", "echo", "::error::x", env=IN_WORKFLOW)
    assert started.finish().out == "::error::x\n"
