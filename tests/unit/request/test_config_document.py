"""`orch config`: documented fields, placeholder ports, masked secrets."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from spec_making import Load, MakeSpec

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.plan.places import local_places
from orchestrator.core.plan.plan import build_plan
from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
from orchestrator.store.runs.paths import RunPaths

LAYOUT = RunPaths(Path("/state/job-placeholder"))


def document(spec: Any) -> dict[str, Any]:
    made = config_document(spec, placeholder_plan(spec, LAYOUT, {}))
    read: dict[str, Any] = json.loads(json.dumps(made))
    return read


def test_documented_fields_are_present(make_spec: MakeSpec) -> None:
    config = document(make_spec(roles={"worker": 3}))
    assert config["schema_version"] == 1
    assert [(task["task"], task["role"], task["index"]) for task in config["tasks"]] == [
        ("worker:0", "worker", 0),
        ("worker:1", "worker", 1),
        ("worker:2", "worker", 2),
    ]
    for task in config["tasks"]:
        assert task["argv"] == ["/usr/bin/python3", "t.py"]
        assert json.loads(task["env"]["TF_CONFIG"]) == task["tf_config"]


def test_ports_are_marked_as_placeholders(make_spec: MakeSpec) -> None:
    config = document(make_spec())
    assert config["placeholder_ports"] is True
    assert [(task["address"], task["placeholder_port"]) for task in config["tasks"]] == [
        ("127.0.0.1:10001", True),
        ("127.0.0.1:10002", True),
    ]


def test_plan_differs_from_up_only_in_ports(make_spec: MakeSpec) -> None:
    spec = make_spec(env={"A": "1"})
    shown = placeholder_plan(spec, LAYOUT, {"no_proxy": "x"})
    real = build_plan(
        spec, local_places(["127.0.0.1:10001", "127.0.0.1:10002"]), LAYOUT, 1, {"no_proxy": "x"}
    )
    assert shown == real


@pytest.mark.parametrize("form", ["document", "lines"])
def test_secrets_are_masked(make_spec: MakeSpec, form: str) -> None:
    spec = make_spec(env={"API_KEY": "abcdef", "PLAIN": "visible"})
    text = (
        json.dumps(document(spec))
        if form == "document"
        else "\n".join(config_lines(spec, placeholder_plan(spec, LAYOUT, {})))
    )
    assert "abcdef" not in text and "***" in text and "visible" in text


@pytest.mark.parametrize("value", ["it's", "a\nb\tc", "\x1b[31mred\\ 'x'\x07", "ü\x9b2J\u2028"])
def test_shown_value_is_printable_and_quoted_for_a_shell(make_spec: MakeSpec, value: str) -> None:
    spec = make_spec(env={"ODD": value})
    lines = config_lines(spec, placeholder_plan(spec, LAYOUT, {}))
    line = next(line for line in lines if "ODD=" in line)
    assert line.isprintable()
    shown = subprocess.run(
        ["bash", "-c", f'{line.removeprefix("  env   ")}; printf %s "$ODD"'], capture_output=True, check=True
    )
    assert shown.stdout.decode() == value


def test_text_output(make_spec: MakeSpec) -> None:
    spec = make_spec(timeout_s=5400.0, env={"ODD": "a b"})
    lines = config_lines(spec, placeholder_plan(spec, LAYOUT, {}))
    assert lines[:8] == [
        "run          job: 2 workers",
        "command      t.py",
        "cwd          /somewhere",
        "time limits  whole run 1h30m, start 2m, stall none",
        "grace        10s, after a failure 500ms",
        "start        spawn: it is not a Python script",
        "threads      1 core for 2 tasks: TensorFlow's own pools, of 1 thread each",
        "ports        placeholders: `orch up` replaces them by free ones",
    ]
    assert "worker:1  127.0.0.1:10002 (placeholder port)" in lines
    assert "  argv  /usr/bin/python3 t.py" in lines
    assert "  env   ODD='a b'" in lines
    tf_config = next(line for line in lines if "TF_CONFIG=" in line)
    (word,) = shlex.split(tf_config.removeprefix("  env   "))
    assert json.loads(word.removeprefix("TF_CONFIG="))["task"]["index"] == 0


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, []),
        ({"on_failure": "restart"}, ["on failure   restart, 3 times at most"]),
        (
            {"on_failure": "restart-task", "max_restarts": 9},
            ["on failure   restart-task, each task 9 times at most"],
        ),
        (
            {"on_failure": "continue", "memory_limit_bytes": 2 * 10**9},
            ["on failure   continue", "memory       2 GB a task at most"],
        ),
    ],
)
def test_changed_defaults_are_shown(
    make_spec: MakeSpec, options: dict[str, object], shown: list[str]
) -> None:
    spec = make_spec(**options)
    lines = config_lines(spec, placeholder_plan(spec, LAYOUT, {}))
    assert [line for line in lines if line.startswith(("on failure", "memory"))] == shown


def test_private_network_is_shown(make_spec: MakeSpec) -> None:
    spec = make_spec(network=NetworkOption.PRIVATE)
    assert document(spec)["spec"]["network"] == "private"
    shown = [line for line in config_lines(spec, placeholder_plan(spec, LAYOUT, {})) if "network" in line]
    assert shown == ["network      private: only tasks of this run reach each other"]


def test_hosts_are_in_the_plan(load_here: Load) -> None:
    spec = load_here(hosts="a:2,[fd00::1]:1", workers=3).spec
    plan = placeholder_plan(spec, LAYOUT, {})
    document = config_document(spec, plan)
    tasks = document["tasks"]
    assert isinstance(tasks, list)
    assert [(task["host"], task["address"]) for task in tasks] == [
        ("a", "a:10001"),
        ("a", "a:10002"),
        ("fd00::1", "[fd00::1]:10003"),
    ]
    assert document["cpu_budget"] is None
    lines = config_lines(spec, plan)
    assert "host         a:2: 2 tasks" in lines and "host         [fd00::1]:1: 1 task" in lines
    assert "worker:0  a:10001 (placeholder port and address)" in lines
