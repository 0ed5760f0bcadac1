"""The plan: preloaded modules, forked tasks, and the bootstrap in a task's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_making import MakeSpec

from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.core.job.start_method import StartMethod
from orchestrator.core.plan.places import local_places
from orchestrator.core.plan.plan import RunPlan, build_plan, preload_plan, takes_bootstrap
from orchestrator.store.runs.paths import RunPaths

LAYOUT = RunPaths(Path("/state/job-1"))
ADDRESSES = ("127.0.0.1:5000", "127.0.0.1:5001")
PYTHON = "/usr/bin/python3"
FORK = StartMethod(fork=True, reason="train.py imports tensorflow", modules=("tensorflow", "keras"))


def command(*options: str, kind: CommandKind = CommandKind.SCRIPT, **changes: object) -> Command:
    fields: dict[str, object] = {
        "kind": kind,
        "words": ("t.py",),
        "argv": (PYTHON, *options, "t.py"),
        "serves": True,
        "interpreter": (PYTHON, *options),
    }
    return Command.model_validate(fields | changes)


def plan_of(spec: JobSpec, attempt: int = 1, **environ: str) -> RunPlan:
    return build_plan(spec, local_places(ADDRESSES), LAYOUT, attempt, environ)


def test_bootstrap_of_a_python_task_has_its_files(make_spec: MakeSpec) -> None:
    bootstrap = plan_of(make_spec(command=command()), PYTHONPATH="/mine").tasks[1].bootstrap
    assert bootstrap == {
        "task": "worker:1",
        "exception_file": "/state/job-1/exceptions/worker-1.json",
        "stacks_file": "/state/job-1/stacks/worker-1.txt",
        "fixes": True,
        "hooks": True,
        "keep_tf_config": True,
        "pythonpath": "/mine",
    }


def test_python_path_of_the_task_is_kept(make_spec: MakeSpec) -> None:
    spec = make_spec(command=command(), env={"PYTHONPATH": "/theirs"})
    bootstrap = plan_of(spec, PYTHONPATH="/mine").tasks[0].bootstrap
    assert bootstrap is not None and bootstrap["pythonpath"] == "/theirs"
    bootstrap = plan_of(make_spec(command=command())).tasks[0].bootstrap
    assert bootstrap is not None and bootstrap["pythonpath"] is None


def test_fixes_can_be_turned_off(make_spec: MakeSpec) -> None:
    bootstrap = plan_of(make_spec(command=command(), fixes=False)).tasks[0].bootstrap
    assert bootstrap is not None and bootstrap["fixes"] is False and bootstrap["hooks"] is True


def test_builtin_program_has_no_hooks(make_spec: MakeSpec) -> None:
    bootstrap = plan_of(make_spec(command=command("-P", kind=CommandKind.BUILTIN))).tasks[0].bootstrap
    assert bootstrap is not None and bootstrap["fixes"] is False and bootstrap["hooks"] is False


def test_other_programs_have_no_bootstrap(make_spec: MakeSpec) -> None:
    spec = make_spec(command=command(kind=CommandKind.EXECUTABLE, interpreter=()))
    assert plan_of(spec).tasks[0].bootstrap is None


@pytest.mark.parametrize(
    ("options", "open_"),
    [
        ((), True),
        (("-u", "-B"), True),
        (("-I",), False),
        (("-uE",), False),
        (("-S",), False),
        (("-X", "importtime", "-S"), False),
        (("-XIES",), True),
        (("-W", "-E"), True),
        (("-WIgnore",), True),
        (("-uWE", "-P"), True),
        (("--check-hash-based-pycs", "always"), True),
    ],
)
def test_python_options_that_prevent_the_bootstrap(options: tuple[str, ...], open_: bool) -> None:
    assert takes_bootstrap(command(*options)) is open_


def test_no_preload_without_forked_tasks(make_spec: MakeSpec) -> None:
    spec = make_spec(command=command())
    assert preload_plan(spec, LAYOUT, {}) is None
    assert not any(task.fork for task in plan_of(spec).tasks)


def test_preloader_has_the_common_environment(make_spec: MakeSpec) -> None:
    spec = make_spec(command=command("-B", start=FORK, legacy_keras=True), env={"MINE": "1"})
    preload = preload_plan(spec, LAYOUT, {"HOME": "/h"})
    assert preload is not None
    assert (preload.argv, preload.cwd, preload.modules) == ((PYTHON, "-B"), spec.cwd, FORK.modules)
    first, second = (dict(task.env) for task in plan_of(spec, HOME="/h").tasks)
    assert dict(preload.env) == {
        name: value for name, value in first.items() if second[name] == value and name != "ORCH_ATTEMPT"
    }
    assert all(task.fork for task in plan_of(spec).tasks)


def test_legacy_keras_variable_is_set_unless_the_user_sets_it(make_spec: MakeSpec) -> None:
    legacy = command(legacy_keras=True)
    assert plan_of(make_spec(command=legacy)).tasks[0].env["TF_USE_LEGACY_KERAS"] == "1"
    assert "TF_USE_LEGACY_KERAS" not in plan_of(make_spec(command=command())).tasks[0].env
    assert (
        "TF_USE_LEGACY_KERAS" not in plan_of(make_spec(command=legacy), TF_USE_LEGACY_KERAS="0").tasks[0].env
    )
    own = make_spec(command=legacy, env={"TF_USE_LEGACY_KERAS": "0"})
    assert plan_of(own).tasks[0].env["TF_USE_LEGACY_KERAS"] == "0"
