"""JobSpec: refused fields, immutability, JSON, masked secrets."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from spec_making import MakeSpec

from orchestrator.core.job.roles import MOST_TASKS
from orchestrator.core.job.run_name import default_name
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.text.secrets import mask_secrets


def test_tasks_are_in_order(make_spec: MakeSpec) -> None:
    assert [str(task) for task in make_spec(roles={"worker": 3}).tasks] == [
        "worker:0",
        "worker:1",
        "worker:2",
    ]


def test_order_of_roles_is_fixed(make_spec: MakeSpec) -> None:
    spec = make_spec(roles={"ps": 1, "worker": 1, "chief": 1})
    assert [str(task) for task in spec.tasks] == ["chief:0", "worker:0", "ps:0"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"roles": {"worker": 0}}, "must be at least 1, not 0"),
        ({"roles": {"worker": -1}}, "must be at least 1, not -1"),
        ({"roles": {"boss": 1}}, "'boss' is not a task type"),
        ({"roles": {"ps": 1}}, "parameter servers need a worker"),
        ({"roles": {}}, "at least 1 item"),
        ({"name": ""}, "is not a name; use 1 to 63"),
        ({"name": ".hidden"}, '".hidden" is not a name'),
        ({"name": "a/b"}, '"a/b" is not a name'),
        ({"name": "a" * 64}, "1 to 63"),
        ({"name": "a\n"}, "is not a name"),
        ({"env": {"TF_CONFIG": "x"}}, "TF_CONFIG is set by orch for each task"),
        ({"env": {"ORCH_RUN_ID": "x"}}, "ORCH_RUN_ID is set by orch for each task"),
        ({"env": {"": "x"}}, "not the name of an environment variable"),
        ({"env": {"A=B": "x"}}, "not the name of an environment variable"),
        ({"env": {"A": "x\0y"}}, "NUL"),
        ({"cwd": Path("here")}, "here is not an absolute path"),
        ({"grace_s": -1.0}, "not a length of time"),
        ({"grace_s": float("nan")}, "not a length of time"),
        ({"timeout_s": 0.0}, "leave it out for no limit"),
        ({"wrokers": 3}, "Extra inputs"),
        ({"roles": {"worker": 1, "ps": 4001}}, "a job has at most 4,000 tasks, not 4,001"),
        ({"roles": {"worker": 3600, "ps": 401}}, "a job has at most 4,000 tasks, not 4,001"),
    ],
)
def test_invalid_field_is_refused(make_spec: MakeSpec, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_spec(**changes)


def test_spec_is_deeply_frozen(make_spec: MakeSpec) -> None:
    given_env = {"A": "1"}
    spec = make_spec(env=given_env)
    given_env["A"] = "2"
    assert spec.env == {"A": "1"}
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"
    with pytest.raises(TypeError):
        cast(MutableMapping[str, str], spec.env)["A"] = "3"
    with pytest.raises(TypeError):
        cast(MutableMapping[str, int], spec.roles)["worker"] = 9


def test_defaults_are_frozen(make_spec: MakeSpec) -> None:
    with pytest.raises(TypeError):
        cast(MutableMapping[str, str], make_spec().env)["A"] = "3"


names = st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True).filter(
    lambda name: name != "TF_CONFIG" and not name.startswith("ORCH_")
)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(
    env=st.dictionaries(names, texts, max_size=4),
    workers=st.integers(1, MOST_TASKS),
    grace=st.floats(0, 1e6),
)
def test_json_can_be_read_back(env: dict[str, str], workers: int, grace: float) -> None:
    spec = JobSpec.model_validate(
        {
            "roles": {"worker": workers},
            "name": "job",
            "command": {"kind": "executable", "words": ["x"], "argv": ["/x"], "serves": False},
            "directory": "/somewhere",
            "cwd": "/somewhere",
            "env": env,
            "grace_s": grace,
        }
    )
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_masked_spec_has_no_secrets(make_spec: MakeSpec) -> None:
    spec = make_spec(env={"HF_TOKEN": "abc", "PLAIN": "seen", "URL": "http://me:pw@host/x"})
    masked = spec.masked()
    assert dict(masked.env) == {"HF_TOKEN": "***", "PLAIN": "seen", "URL": "http://***@host/x"}
    assert "abc" not in masked.model_dump_json() and "pw" not in masked.model_dump_json()
    assert spec.env["HF_TOKEN"] == "abc"


@pytest.mark.parametrize(
    "name",
    [
        "A_TOKEN",
        "client_secret",
        "PASSWORD",
        "DB_PASSWD",
        "API_KEY",
        "AWS_CREDENTIALS",
        "AUTHORIZATION",
        "MYSQL_PWD",
    ],
)
def test_secret_is_recognised_by_name(name: str) -> None:
    assert mask_secrets({name: "x"}) == {name: "***"}


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("/home/me/mnist", "mnist"),
        ("/", "run"),
        ("/a/Mein Ordner!", "Mein-Ordner"),
        ("/a/.hidden", "hidden"),
        ("/a/日本", "run"),
        ("/a/" + "x" * 99, "x" * 63),
    ],
)
def test_default_name_from_directory(directory: str, name: str) -> None:
    assert default_name(Path(directory)) == name


@given(st.text(min_size=1, max_size=80).filter(lambda part: "\0" not in part))
def test_default_name_is_always_valid(part: str) -> None:
    name = default_name(Path("/") / part.replace("/", "_"))
    JobSpec.model_validate(
        {
            "roles": {"worker": 1},
            "name": name,
            "command": {"kind": "executable", "words": ["x"], "argv": ["/x"], "serves": False},
            "directory": "/somewhere",
            "cwd": "/somewhere",
        }
    )
