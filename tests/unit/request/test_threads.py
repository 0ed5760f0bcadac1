"""--threads: read from every source, and set in the environment of the tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_making import Load, MakeSpec

from orchestrator.core.errors import UsageError
from orchestrator.core.job.cpu_budget import INTER_OP, INTRA_OP, VARIABLES, Cores
from orchestrator.host.cores import usable_cores
from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
from orchestrator.store.runs.paths import RunPaths

LAYOUT = RunPaths(Path("/runs/job"))


def test_default_is_none(load_here: Load) -> None:
    spec = load_here().spec
    assert spec.threads is None
    assert spec.cores == usable_cores()


@pytest.mark.parametrize(
    ("toml", "environ", "flag", "threads"),
    [
        (None, {}, "3", 3),
        (None, {"ORCH_THREADS": "2"}, None, 2),
        ("threads = 5", {}, None, 5),
        ("threads = 5", {"ORCH_THREADS": "auto"}, None, None),
        ("threads = 5", {"ORCH_THREADS": "2"}, "Auto", None),
        ('threads = "auto"', {}, None, None),
    ],
)
def test_threads_are_read_from_every_source(
    load_here: Load, toml: str | None, environ: dict[str, str], flag: str | None, threads: int | None
) -> None:
    assert load_here(toml, environ, threads=flag).spec.threads == threads


@pytest.mark.parametrize(
    ("toml", "flag", "message"),
    [
        (None, "0", "--threads: must be between 1 and 4,096, not 0"),
        (None, "5000", "--threads: must be between 1 and 4,096, not 5000"),
        (None, "many", '--threads: "many" is not a whole number'),
        ("threads = 1.5", None, "orch.toml, line 1: threads: 1.5 is not a whole number; or write auto"),
        ("threads = true", None, "orch.toml, line 1: threads: true is not a whole number; or write auto"),
    ],
)
def test_other_values_are_refused(load_here: Load, toml: str | None, flag: str | None, message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_here(toml, threads=flag)
    assert str(error.value) == message


def test_threads_set_the_variables_of_tensorflow(make_spec: MakeSpec) -> None:
    plan = placeholder_plan(make_spec(threads=3, cores=Cores(8, 8)), LAYOUT, {})
    for task in plan.tasks:
        assert {name: task.env[name] for name in VARIABLES if name in task.env} == {
            INTRA_OP: "3",
            INTER_OP: "3",
        }


def test_no_variable_is_set_by_default(make_spec: MakeSpec) -> None:
    plan = placeholder_plan(make_spec(cores=Cores(8, 8)), LAYOUT, {})
    assert not any(name in task.env for task in plan.tasks for name in VARIABLES)


def test_variables_of_the_user_are_kept(make_spec: MakeSpec) -> None:
    """Neither inherited variables, nor those of --env."""
    spec = make_spec(threads=3, env={INTER_OP: "9"})
    plan = placeholder_plan(spec, LAYOUT, {INTRA_OP: "7"})
    for task in plan.tasks:
        assert INTRA_OP not in task.env
        assert task.env[INTER_OP] == "9"
    assert plan.budgets[None].users == (INTRA_OP, INTER_OP)


def test_config_shows_the_budget(make_spec: MakeSpec) -> None:
    spec = make_spec(threads=3, cores=Cores(2, 2))
    plan = placeholder_plan(spec, LAYOUT, {"OMP_NUM_THREADS": "1"})
    assert config_document(spec, plan)["cpu_budget"] == {
        "cores": 2.0,
        "tasks": 2,
        "share": 1,
        "threads": 3,
        "env": {INTRA_OP: "3", INTER_OP: "3"},
        "set_already": ["OMP_NUM_THREADS"],
    }
    (line,) = (line for line in config_lines(spec, plan) if line.startswith("threads"))
    assert line == (
        "threads      2 cores for 2 tasks: TF_NUM_INTRAOP_THREADS=3, TF_NUM_INTEROP_THREADS=3;"
        " set already: OMP_NUM_THREADS"
    )
