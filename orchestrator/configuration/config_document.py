"""What `orch config` shows: the plan of a run that is not started, its ports placeholders and marked so."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from orchestrator.configuration.durations import format_duration
from orchestrator.plan import RunLayout, RunPlan, TaskPlan, build_plan
from orchestrator.spec import JobSpec, mask_secrets

_FIRST_PLACEHOLDER_PORT = 10001
_LOCAL_HOST = "127.0.0.1"
_FIRST_ATTEMPT = 1
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}


def placeholder_plan(spec: JobSpec, layout: RunLayout, environ: Mapping[str, str]) -> RunPlan:
    """The plan `up` would make of the spec, but for the ports: 10001 and up, neither picked nor held."""
    addresses = [f"{_LOCAL_HOST}:{_FIRST_PLACEHOLDER_PORT + number}" for number in range(len(spec.tasks))]
    return build_plan(spec, addresses, layout, _FIRST_ATTEMPT, environ)


def config_document(spec: JobSpec, plan: RunPlan) -> dict[str, object]:
    """`orch config --json`, secrets masked. `env` is what each task gets besides the caller's environment."""
    return {
        "schema_version": 1,
        "placeholder_ports": True,
        "spec": spec.masked().model_dump(mode="json"),
        "hold_mode": plan.hold_mode.value,
        "start": {
            "method": _method(spec),
            "reason": spec.command.start.reason,
            "preload": list(spec.command.start.modules),
        },
        "cpu_budget": {
            "cores": plan.budget.cores.usable,
            "tasks": plan.budget.tasks,
            "share": plan.budget.share,
            "threads": plan.budget.asked,
            "env": dict(plan.budget.env),
            "set_already": list(plan.budget.users),
        },
        "tasks": [_task_document(task) for task in plan.tasks],
    }


def _task_document(task: TaskPlan) -> dict[str, object]:
    return {
        "task": str(task.task),
        "role": task.task.type,
        "index": task.task.index,
        "argv": list(task.argv),
        "env": mask_secrets(task.env),
        "tf_config": task.tf_config.as_dict(),
        "address": task.address,
        "placeholder_port": True,
        "cwd": str(task.cwd),
        "log": str(task.log),
        "serves": task.serves,
        "bootstrap": None if task.bootstrap is None else dict(task.bootstrap),
    }


def config_lines(spec: JobSpec, plan: RunPlan) -> list[str]:
    """The same for people: each variable as a shell would take it, long ones not cut."""
    limit = "none" if spec.timeout_s is None else format_duration(spec.timeout_s)
    counts = ", ".join(f"{count} {role}{'s' * (count > 1)}" for role, count in spec.roles.items())
    lines = [
        f"run          {spec.name}: {counts}",
        f"command      {spec.command}",
        f"cwd          {spec.cwd}",
        f"time limit   {limit}",
        f"grace        {format_duration(spec.grace_s)},"
        f" after a failure {format_duration(spec.failure_grace_s)}",
        f"start        {_method(spec)}: {spec.command.start.reason}",
        f"threads      {plan.budget}",
        "ports        placeholders: `orch up` picks free ones and puts them in their place",
    ]
    for task in plan.tasks:
        lines += ["", *_task_lines(task)]
    return lines


def _method(spec: JobSpec) -> str:
    return "fork" if spec.command.start.fork else "spawn"


def _task_lines(task: TaskPlan) -> list[str]:
    env = mask_secrets(task.env)
    return [
        f"{task.task}  {task.address} (placeholder port)",
        f"  argv  {' '.join(_word(word) for word in task.argv)}",
        f"  log   {task.log}",
        *(f"  env   {name}={_word(value)}" for name, value in env.items()),
    ]


def _word(text: str) -> str:
    """A word as a shell takes it; with control characters as bash, ksh and zsh do: $'...'."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_escaped(character) for character in text) + "'"


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
