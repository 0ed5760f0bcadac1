"""The plan of a run for its page: command, versions, options, cluster, devices and tasks."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from orchestrator.client.run_rows import command_text
from orchestrator.core.job.fault import Fault
from orchestrator.core.job.tf_config import ClusterSpec, TaskRef, TFConfig
from orchestrator.core.plan.gpu_plan import VISIBLE
from orchestrator.core.state.events import AttemptPlanned, PlannedTask
from orchestrator.core.state.state import TaskState
from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.sizes import format_size
from orchestrator.store.runs.record import RunRecord

# Tasks whose command and TF_CONFIG are shown.
_MOST_TASKS = 32
# Parts of the job that are shown elsewhere, or that the user did not choose.
_NOT_OPTIONS = frozenset(
    {
        "role_settings", "name", "name_is_explicit", "command", "directory", "env", "silence_notice_s", "cores",
        "gpu_inventory", "inherited_tf_config", "columns", "strategy", "roles",
    }
)  # fmt: skip


def plan_document(
    record: RunRecord, planned: AttemptPlanned | None, states: Collection[TaskState]
) -> dict[str, Any]:
    """Return the plan of the last attempt, with the versions that were found in its tasks. The record may be damaged,
    so nothing in its job is certain."""
    spec, tasks = record.spec, () if planned is None else planned.tasks
    shown = tasks[:_MOST_TASKS]
    command = spec.get("command")
    interpreter = command.get("interpreter") if isinstance(command, Mapping) else None
    return {
        "command": shlex.join(tasks[0].argv) if tasks else command_text(spec),
        "python": shlex.join(map(str, interpreter)) if isinstance(interpreter, list) else "",
        "versions": {**record.versions, **dict(_versions([task.versions for task in states]))},
        "strategy": _strategy(spec.get("strategy")),
        "options": dict(_options(spec)),
        "env_names": sorted({name for task in shown for name in task.env} | set(_names(spec.get("env")))),
        "cluster": {} if planned is None else {role: list(those) for role, those in planned.cluster.items()},
        "tf_config": dict(_tf_configs(planned, shown)),
        "devices": dict(_devices(shown)),
        "tasks": [
            {"task": task.task, "argv": list(task.argv), "cwd": task.cwd, "host": task.host} for task in shown
        ],
    }


def _versions(of_tasks: Collection[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each version in the tasks; if they differ, with the number of tasks that have it."""
    for name in dict.fromkeys(name for versions in of_tasks for name in versions):
        tasks = Counter(versions[name] for versions in of_tasks if name in versions)
        each = [version if len(tasks) == 1 else f"{version} ({count})" for version, count in tasks.items()]
        # The record has the Python that runs orch.
        yield "python of the tasks" if name == "python" else name, ", ".join(each)


def _options(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    roles = spec.get("roles")
    if isinstance(roles, Mapping):
        yield from ((f"{role}s" if role == "worker" else role, str(count)) for role, count in roles.items())
    for name, value in spec.items():
        if name in _NOT_OPTIONS or value in (None, False, [], {}, ""):
            continue
        if name.endswith("_s") and isinstance(value, int | float):
            yield _option(name.removesuffix("_s")), format_duration(float(value))
        elif name == "chaos":
            yield name, "; ".join(_faults(value))
        elif name.endswith("_bytes") and isinstance(value, int):
            yield _option(name.removesuffix("_bytes")), format_size(value)
        else:
            yield _option(name), _text(value)


def _faults(faults: object) -> Iterator[str]:
    for fault in faults if isinstance(faults, list) else ():
        try:
            yield str(Fault.model_validate(fault))
        except ValueError:
            yield _text(fault)


def _option(name: str) -> str:
    return name.replace("_", "-")


def _text(value: object) -> str:
    if value is True:
        return "on"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return json.dumps(value)


def _strategy(choice: object) -> str:
    if not isinstance(choice, Mapping):
        return ""
    name = choice.get("strategy") or "the script's own"
    more = [
        f"{key} {_text(value)}" for key, value in choice.items() if key != "strategy" and value is not None
    ]
    return ", ".join([str(name), *more])


def _names(env: object) -> Iterator[str]:
    yield from map(str, env) if isinstance(env, Mapping) else ()


def _tf_configs(
    planned: AttemptPlanned | None, tasks: tuple[PlannedTask, ...]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the TF_CONFIG of each of these tasks: in a large cluster only of the first."""
    if planned is None or not planned.cluster:
        return
    try:
        cluster = ClusterSpec(addresses=planned.cluster)
        for task in tasks if len(planned.tasks) <= _MOST_TASKS else tasks[:1]:
            ref = TaskRef(type=task.role, index=task.index)
            yield task.task, TFConfig(cluster=cluster.seen_by(task.role), task=ref).as_dict()
    except ValueError:
        return  # a damaged plan


def _devices(tasks: tuple[PlannedTask, ...]) -> Iterator[tuple[str, str]]:
    for task in tasks:
        gpus = task.env.get(VISIBLE)
        if gpus is not None:
            yield task.task, f"GPU {gpus}" if gpus and gpus != "-1" else "no GPU"
