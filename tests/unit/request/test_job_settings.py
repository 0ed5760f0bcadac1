"""Options about failures, limits and the start of tasks, from every source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from spec_making import Load

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import FailurePolicy, KerasOption, NetworkOption, StartOption


def test_failure_and_limit_options_have_defaults(load_here: Load) -> None:
    spec = load_here().spec
    assert (spec.on_failure, spec.max_restarts, spec.network) == (FailurePolicy.ABORT, 3, NetworkOption.HOST)
    assert (spec.start_timeout_s, spec.stall_timeout_s, spec.memory_limit_bytes) == (120.0, None, None)


@pytest.mark.parametrize(
    "source",
    [
        {
            "start_timeout": "off",
            "stall_timeout": "90",
            "on_failure": "restart-task",
            "memory_limit": "1.5GiB",
        },
        {
            "toml": 'start-timeout = "off"\nstall-timeout = 90\non-failure = "restart-task"\n'
            "memory-limit = 1610612736"
        },
        {
            "environ": {
                "ORCH_START_TIMEOUT": "off",
                "ORCH_STALL_TIMEOUT": "1m30s",
                "ORCH_ON_FAILURE": "restart-task",
                "ORCH_MEMORY_LIMIT": "1536MiB",
            }
        },
    ],
    ids=["flags", "file", "variables"],
)
def test_failure_and_limit_options_are_read_from_every_source(
    load_here: Load, source: dict[str, object]
) -> None:
    spec = load_here(**source).spec
    assert (spec.start_timeout_s, spec.stall_timeout_s) == (None, 90.0)
    assert (spec.on_failure, spec.memory_limit_bytes) == (FailurePolicy.RESTART_TASK, 1536 << 20)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({"max_restarts": "5"}, FailurePolicy.RESTART),
        ({"max_restarts": "0"}, FailurePolicy.ABORT),
        ({"max_restarts": "5", "on_failure": "restart-task"}, FailurePolicy.RESTART_TASK),
        ({"max_restarts": "5", "on_failure": "abort"}, FailurePolicy.ABORT),
    ],
)
def test_max_restarts_implies_restart_unless_a_policy_is_given(
    load_here: Load, given: dict[str, object], policy: FailurePolicy
) -> None:
    assert load_here(**given).spec.on_failure is policy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start_timeout": "0"}, "--start-timeout: a time-out of 0"),
        ({"stall_timeout": "soon"}, '--stall-timeout: "soon" is not a duration'),
        ({"on_failure": "retry"}, '--on-failure: "retry" is not known; did you mean "restart"?'),
        ({"max_restarts": "-1"}, "--max-restarts: must be between 0 and"),
        ({"memory_limit": "0"}, "--memory-limit: 0 bytes"),
        ({"memory_limit": "2 apples"}, "--memory-limit: "),
        ({"network": "vpn"}, '--network: "vpn" is not known'),
        ({"toml": "memory-limit = 1.5"}, "memory-limit: 1.5 is not a size"),
    ],
)
def test_mistake_names_its_source(load_here: Load, given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_here(**given)
    assert message in str(error.value)


def test_start_options_have_defaults(load_here: Load) -> None:
    spec = load_here().spec
    assert (spec.start, spec.preload, spec.fixes, spec.keras) == (
        StartOption.AUTO,
        (),
        True,
        KerasOption.AUTO,
    )


@pytest.mark.parametrize(
    "source",
    [
        {"start": "spawn", "preload": ["numpy", "xml.dom"], "no_fixes": True, "keras": "3"},
        {"toml": 'start = "spawn"\npreload = ["numpy", "xml.dom"]\nno-fixes = true\nkeras = 3'},
        {"toml": 'start = "spawn"\npreload = "numpy xml.dom"\nno-fixes = true\nkeras = "3"'},
        {
            "environ": {
                "ORCH_START": "spawn",
                "ORCH_PRELOAD": "numpy,xml.dom",
                "ORCH_NO_FIXES": "1",
                "ORCH_KERAS": "3",
            }
        },
    ],
    ids=["flags", "file", "file-as-text", "variables"],
)
def test_start_options_are_read_from_every_source(load_here: Load, source: dict[str, object]) -> None:
    spec = load_here(**source).spec
    assert (spec.start, spec.preload, spec.fixes, spec.keras) == (
        StartOption.SPAWN,
        ("numpy", "xml.dom"),
        False,
        KerasOption.THREE,
    )


@pytest.mark.parametrize(
    ("flags", "source", "says"),
    [
        ({"start": "fork"}, "--start", "write auto or spawn"),
        ({"keras": "2"}, "--keras", "write auto, 3 or legacy"),
        ({"keras": True}, "--keras", "true is not known"),
        ({"preload": ["not a/module"]}, "--preload", "not the name of a Python module"),
        ({"preload": ["-c"]}, "--preload", "not the name of a Python module"),
        ({"preload": [","]}, "--preload", "no module is named"),
        ({"preload": [3]}, "--preload", "put it in quotes"),
        ({"no_fixes": "perhaps"}, "--no-fixes", "neither true nor false"),
    ],
)
def test_mistake_in_a_start_option_names_its_source(
    load_here: Load, flags: dict[str, object], source: str, says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load_here(**flags)
    assert str(refused.value).startswith(source) and says in str(refused.value)


def test_environment_variable_overrides_a_switch_in_orch_toml(load_here: Load) -> None:
    assert load_here("no-fixes = true", {"ORCH_NO_FIXES": "0"}).spec.fixes


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (["nosuchmodule"], "has no module nosuchmodule; install it, or leave the option out"),
        (["json", "jsom"], 'has no module jsom; did you mean "json"?'),
        (["nosuchmodule.part"], "has no module nosuchmodule;"),
    ],
)
def test_module_to_preload_must_exist(load_here: Load, tmp_path: Path, modules: list[str], says: str) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").touch()
    (tmp_path / "scripts" / "beside.py").touch()
    command = [sys.executable, "scripts/train.py"]
    assert load_here(command=command, preload=["xml.dom", "beside"]).spec.preload == ("xml.dom", "beside")
    with pytest.raises(UsageError) as refused:
        load_here(command=command, preload=modules)
    assert str(refused.value).startswith("--preload") and says in str(refused.value)
