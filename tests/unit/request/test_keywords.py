"""Keyword arguments of Cluster, Session and the fixtures: types and refusals; and the repr of what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import orchestrator
from orchestrator.client.launch import Cluster
from orchestrator.client.session import Session
from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import Strategy
from orchestrator.core.state.result import Cause, CauseKind, RunResult, TaskEnd
from orchestrator.pytest_plugin.clusters import ClustersOfTest, PreloadedClusters
from orchestrator.request.settings.declaration import Kind, Option, Where
from orchestrator.request.settings.keywords import Environment, RoleOptions, Time, UpOptions, Words
from orchestrator.request.settings.options import ROLE_OPTIONS, SETTINGS

KEYWORDS = [option for option in SETTINGS.values() if Where.KEYWORD in option.where]
TYPES: dict[Kind, Any] = {
    Kind.SWITCH: bool,
    Kind.TEXT: str,
    Kind.STEPS: str,
    Kind.PATH: str | Path,
    Kind.WORDS: Words,
    Kind.WHOLE_NUMBER: int,
    Kind.WORKERS: int | str,
    Kind.THREADS: int | Literal["auto"],
    Kind.DURATION: Time,
    Kind.LIMIT: Time,
    Kind.SIZE: int | str,
    Kind.GPU_MEMORY: int | str,
    Kind.ENVIRONMENT: Environment,
    Kind.MODULES: str | Sequence[str],
    Kind.DEBUGGED: str | Sequence[str],
    Kind.FAULTS: str | Sequence[str],
    Kind.STRATEGY: Literal[tuple(Strategy)],  # type: ignore[misc]
    Kind.DEVICE: str,
    Kind.MESH: str | Mapping[str, int],
    Kind.GPUS: str,
    Kind.HOSTS: str | Sequence[str],
}
STARTERS = [Cluster.__init__, Session.up, ClustersOfTest.__call__, PreloadedClusters.__call__]


def declared_type(option: Option) -> Any:
    return Literal[tuple(option.choices)] if option.kind is Kind.CHOICE else TYPES[option.kind]


def alternatives(annotation: Any) -> set[Any]:
    """The members of a union, and of its literals."""
    if get_origin(annotation) is Literal:
        return {str(word) for word in get_args(annotation)}
    members = get_args(annotation) if "Union" in str(get_origin(annotation)) else ()
    return set().union(*map(alternatives, members)) if members else {annotation}


def test_keywords_are_those_of_the_declarations() -> None:
    assert {*get_type_hints(UpOptions), "workers", "command"} == {*(each.name for each in KEYWORDS), "roles"}
    assert set(get_type_hints(RoleOptions)) == {"count", *ROLE_OPTIONS}


@pytest.mark.parametrize(
    "option", [o for o in KEYWORDS if o.name not in ("workers", "command")], ids=lambda o: o.name
)
def test_type_is_that_of_the_values(option: Option) -> None:
    hint = get_type_hints(UpOptions)[option.name]
    assert alternatives(hint) == {*alternatives(declared_type(option)), type(None)}


@pytest.mark.parametrize("option", ROLE_OPTIONS.values(), ids=lambda o: o.name)
def test_type_of_a_role_is_that_of_the_values(option: Option) -> None:
    assert alternatives(get_type_hints(RoleOptions)[option.name]) == alternatives(declared_type(option))


@pytest.mark.parametrize("start", STARTERS, ids=lambda start: start.__qualname__)
def test_functions_that_start_clusters_have_typed_keywords(start: Callable[..., object]) -> None:
    parameters = inspect.signature(start).parameters
    assert parameters["options"].annotation == "Unpack[UpOptions]"
    assert (
        parameters["workers"].annotation == "int | str | None" and parameters["command"].annotation == "Words"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrokers": 2}, 'unknown option "wrokers"; did you mean "workers"?'),
        ({"zzz": 2}, 'unknown option "zzz"; known: workers, command, name, replace, timeout'),
        ({"dry_run": True}, 'unknown option "dry_run"; known: workers'),
        ({"detach": True}, "detach has an effect in `orch up` only; the run continues while"),
        ({"wait": "done"}, "wait has an effect in `orch up` only; call run.wait_ready() or run.wait()"),
        ({"timestamps": True}, "timestamps has an effect in `orch up` only; leave it out"),
        (
            {"workers": 2, "roles": {"worker": {"count": 3}}},
            "roles: count of worker: given already (--workers); keep one of them",
        ),
        (
            {"roles": {"ps": {"count": 3}}, "ps": 2},
            "roles: count of ps: given already (--ps); keep one of them",
        ),
        ({"roles": {"ps": {"cuont": 3}}}, 'roles: ps has an unknown key "cuont"; did you mean "count"?'),
        ({"command": 3}, "the command: 3 is not a command; write a text or a list of texts"),
        ({"stop_on_nan": 2}, "--stop-on-nan: 2 is neither true nor false"),
    ],
)
def test_wrong_keywords_are_refused_at_once(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    for start in (Cluster, Session().up):
        with pytest.raises(UsageError) as refused:
            start(**{"command": "true", "directory": tmp_path, **options})
        assert str(refused.value).startswith(message)


def test_public_names_are_listed() -> None:
    """Interactive shells complete them before their first use."""
    assert set(orchestrator.__all__) <= set(dir(orchestrator))
    assert [name for name in orchestrator.__all__ if getattr(orchestrator, name) is None] == []


def test_objects_show_what_they_are(tmp_path: Path) -> None:
    cluster = Cluster(
        workers=2,
        command=["echo", "--token=abc"],
        directory=tmp_path,
        name="digits",
        roles={"ps": {"count": 1}},
    )
    assert repr(cluster) == "<Cluster digits: 1 chief, 2 workers, 1 ps, echo '--token=***'; not started>"
    assert repr(Session()) == "<Session: no run yet>"
    with Cluster(workers=2, command="true", directory=tmp_path, name="digits") as run:
        result = run.wait()
        assert repr(run) == f"<Run {run.id}: succeeded, attempt 1; {run.dir}>"
        assert (
            repr(run.status())
            == f"<Status {run.id}: succeeded, attempt 1; worker:0 succeeded, worker:1 succeeded>"
        )
    assert repr(run.status().tasks[0]).startswith("<TaskStatus worker:0: succeeded, pid ")
    assert repr(result) == str(result) == f"<RunResult {run.id}: succeeded, exit code 0>"


def test_text_of_a_task_is_cleaned() -> None:
    result = RunResult(
        run_id="digits-1",
        outcome="failed",
        exit_code=3,
        attempts=1,
        cause=Cause(task="worker:1", kind=CauseKind.EXITED, text="exit\x1b[2J 3\n"),
        first_failure=None,
        detection_s=None,
        teardown_s=None,
        tasks=(TaskEnd(task="worker:1", state="failed", exit_code=3, signal=None),),
    )
    assert repr(result) == "<RunResult digits-1: failed, exit code 3; worker:1: exit 3\u240a>"
    assert repr(result.tasks) == "(<TaskEnd worker:1: failed, exit 3>,)"


def test_directory_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    cluster = Cluster(2, ["train.py"], directory=str(tmp_path))
    assert repr(cluster) == f"<Cluster {tmp_path.name}: 2 workers, train.py; not started>"
