"""--chaos: read from every source, checked against the run's tasks, shown in the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spec_making import Load, MakeSpec

from orchestrator.core.errors import UsageError
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.job.spec import JobSpec
from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
from orchestrator.store.runs.paths import RunPaths

LAYOUT = RunPaths(Path("/state/job-placeholder"))
TWO = "kill worker:1 at ready; stop worker:0 at 30s for 25s"


def texts(spec: JobSpec) -> list[str]:
    return [str(fault) for fault in spec.chaos]


def test_default_is_no_fault(load_here: Load) -> None:
    assert load_here().spec.chaos == ()


@pytest.mark.parametrize(
    "source",
    [
        {"chaos": "kill 1 at ready; stop chief at 30s for 25s"},
        {"chaos": ["kill 1 at ready", "stop 0 at 30s for 25s"]},
        {"chaos": parse_chaos(TWO)},
        {"toml": 'chaos = "kill 1 at ready; stop chief at 30s for 25s"'},
        {"toml": 'chaos = ["kill 1 at ready", "stop 0 at 30s for 25s"]'},
        {"environ": {"ORCH_CHAOS": "kill 1 at ready; stop chief at 30s for 25s"}},
    ],
    ids=["flag", "list", "faults", "file", "file-list", "variable"],
)
def test_faults_are_read_from_every_source(load_here: Load, source: dict[str, Any]) -> None:
    assert texts(load_here(workers=2, **source).spec) == TWO.split("; ")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"chaos": "kill worker:2 at ready"}, "--chaos: there is no worker:2 in this run"),
        ({"chaos": "kill ps:0 at ready"}, "--chaos: there is no ps:0 in this run"),
        ({"environ": {"ORCH_CHAOS": "kill 7 at ready"}}, "ORCH_CHAOS: there is no worker:7 in this run"),
        ({"toml": 'chaos = "kill 0 at noon"'}, 'orch.toml, line 1: chaos: at character 11, "noon"'),
        ({"toml": "chaos = 3"}, "orch.toml, line 1: chaos: 3 is not a fault"),
        ({"toml": "chaos = []"}, "orch.toml, line 1: chaos: 0 faults"),
        ({"toml": 'chaos = ["kill 0 at ready", 3]'}, "orch.toml, line 1: chaos: 3 is not a fault"),
        ({"chaos": ["kill 0 at ready"] * 101}, "--chaos: 101 faults"),
    ],
)
def test_mistake_names_its_source(load_here: Load, source: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_here(workers=2, **source)
    assert str(refused.value).startswith(message)


def test_any_gets_a_seed_that_repeats_the_choice(load_here: Load) -> None:
    drawn = load_here(workers=3, chaos="kill any at step 20").spec.chaos
    assert drawn[0].seed is not None
    assert load_here(workers=3, chaos=str(drawn[0])).spec.chaos == drawn


@pytest.mark.parametrize(
    ("flags", "notice"),
    [
        ({"chaos": "kill 0 at step 20"}, "waits for progress, and /bin/true is not a Python program"),
        ({"chaos": "kill 0 at epoch 2"}, "waits for progress, and /bin/true is not a Python program"),
        ({"chaos": "kill 0 at ready in attempt 2"}, "needs another attempt: --on-failure restart"),
    ],
)
def test_fault_that_probably_never_comes_gives_a_notice(
    load_here: Load, flags: dict[str, Any], notice: str
) -> None:
    (shown,) = load_here(**flags).notices
    assert flags["chaos"].split()[0] in shown and notice in shown


def test_fault_that_can_come_gives_no_notice(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow\n")
    assert load_here(chaos="kill 0 at ready; kill 0 at 3s").notices == ()
    restarting = load_here(chaos="kill 0 at ready in attempt 2", on_failure="restart")
    assert restarting.notices == ()
    python = load_here(chaos="kill 0 at step 3", command=["train.py"])
    assert not [notice for notice in python.notices if "chaos" in notice]


def test_plan_shows_each_fault_and_its_task(make_spec: MakeSpec) -> None:
    spec = make_spec(chaos=parse_chaos("kill any#7 at step 20; stop worker:0 at 30s for 25s"))
    plan = placeholder_plan(spec, LAYOUT, {})
    shown = json.loads(json.dumps(config_document(spec, plan)))["chaos"]
    hit = spec.chaos[0].target(["worker:0", "worker:1"])
    assert shown == [
        {"fault": "kill any#7 at step 20", "task": hit},
        {"fault": "stop worker:0 at 30s for 25s", "task": "worker:0"},
    ]
    lines = config_lines(spec, plan)
    assert f"chaos        kill any#7 at step 20 ({hit})" in lines
    assert "chaos        stop worker:0 at 30s for 25s" in lines


def test_tasks_get_the_steps_of_planned_faults(make_spec: MakeSpec) -> None:
    faults = parse_chaos("kill 0 at step 50; kill 1 at step 20; kill 1 at epoch 2; stop 1 at step 20")
    for task in placeholder_plan(make_spec(chaos=faults), LAYOUT, {}).tasks:
        assert task.env["ORCH_PROGRESS_AT"] == "20,50"
    for task in placeholder_plan(make_spec(chaos=faults[2:3]), LAYOUT, {}).tasks:
        assert "ORCH_PROGRESS_AT" not in task.env


def test_spec_with_faults_can_be_read_back(make_spec: MakeSpec) -> None:
    spec = make_spec(chaos=parse_chaos("kill any#7 at step 20 in attempt 2; stop 0 at 30s for 25s"))
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
