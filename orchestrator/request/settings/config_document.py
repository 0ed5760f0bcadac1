"""The output of `orch config`: the plan of a run that is not started, with placeholder ports."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping

from orchestrator.core.job.choices import FailurePolicy, NetworkOption
from orchestrator.core.job.fault import Fault
from orchestrator.core.job.roles import counted_of
from orchestrator.core.job.spec import JobSpec, RoleSettings
from orchestrator.core.job.tf_config import EVALUATOR, VARIABLE
from orchestrator.core.plan.placement import place as place_tasks
from orchestrator.core.plan.places import RunLayout, TaskPlace
from orchestrator.core.plan.plan import RunPlan, TaskPlan, build_plan
from orchestrator.core.text.counted import counted
from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.secrets import mask_secrets, mask_words
from orchestrator.core.text.sizes import format_size

_FIRST_PLACEHOLDER_PORT = 10001
_LOCAL_HOST = "127.0.0.1"
_FIRST_ATTEMPT = 1
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}


def placeholder_plan(spec: JobSpec, layout: RunLayout, environ: Mapping[str, str]) -> RunPlan:
    """Return the plan that `up` would make of the spec, with ports from 10001 that are neither free nor held."""
    places = [
        TaskPlace(host, f"{_in_address(host)}:{_FIRST_PLACEHOLDER_PORT + number}")
        for number, host in enumerate(place_tasks(spec) if spec.hosts else (None,) * len(spec.tasks))
    ]
    return build_plan(spec, places, layout, _FIRST_ATTEMPT, environ)


def _in_address(host: str | None) -> str:
    """The name of a host as a part of an address. Its own address is not known yet."""
    if host is None:
        return _LOCAL_HOST
    return f"[{host.partition('%')[0]}]" if ":" in host else host


def config_document(spec: JobSpec, plan: RunPlan) -> dict[str, object]:
    """Return the document of `orch config --json`, secrets masked. `env` is added to the caller's environment."""
    return {
        "schema_version": 1,
        "placeholder_ports": True,
        "spec": spec.masked().model_dump(mode="json"),
        "hold_mode": plan.hold_mode,
        "start": {
            "method": _method(spec),
            "reason": spec.command.start.reason,
            "preload": list(spec.command.start.modules),
        },
        "strategy": _strategy_document(spec),
        "cpu_budget": _budget_document(plan),
        "chaos": [{"fault": str(fault), "task": _target(fault, spec)} for fault in spec.chaos],
        "tasks": [
            {**_task_document(task, plan), "devices": _devices(task, spec, plan)} for task in plan.tasks
        ],
    }


def _budget_document(plan: RunPlan) -> dict[str, object] | None:
    """The threads of the tasks on this machine; null if they run on hosts, whose cores are not known."""
    budget = plan.budgets.get(None)
    if budget is None:
        return None
    return {
        "cores": budget.cores.usable,
        "tasks": budget.tasks,
        "share": budget.share,
        "threads": budget.asked,
        "env": dict(budget.env),
        "set_already": list(budget.users),
    }


def _strategy_document(spec: JobSpec) -> dict[str, object]:
    """The strategy. `name` is null if the command chooses it."""
    choice = spec.strategy
    return {
        "name": choice.strategy,
        "replicas": choice.replicas,
        "device": choice.device,
        "tpu": choice.tpu,
        "mesh": None if choice.mesh is None else {"batch": choice.mesh.batch, "model": choice.mesh.model},
        "communication": choice.communication,
    }


def _devices(task: TaskPlan, spec: JobSpec, plan: RunPlan) -> dict[str, object]:
    """A task's devices. `gpus` are CUDA names, null if orch does not choose; `logical_cpus` null means 1."""
    share = plan.gpus.shares.get(str(task.task))
    return {
        "gpus": None if share is None else list(share),
        "gpu_memory": spec.gpu_memory,
        "logical_cpus": None if share else spec.strategy.logical_cpus(spec.workers),
    }


def _target(fault: Fault, spec: JobSpec) -> str | None:
    return fault.target([str(task) for task in spec.tasks])


def _env(task: TaskPlan, plan: RunPlan) -> dict[str, str]:
    return mask_secrets({VARIABLE: plan.tf_config_of(task.task).to_json(), **task.order.env})


def _task_document(task: TaskPlan, plan: RunPlan) -> dict[str, object]:
    return {
        "task": str(task.task),
        "role": task.task.type,
        "index": task.task.index,
        "host": task.host,
        "argv": list(mask_words(task.order.argv)),
        "env": _env(task, plan),
        "tf_config": plan.tf_config_of(task.task).as_dict(),
        "address": task.address,
        "placeholder_port": True,
        "cwd": task.order.cwd,
        "log": task.order.log,
        "serves": task.order.serves,
        "fork": task.order.fork,
        "bootstrap": None if task.order.bootstrap is None else dict(task.order.bootstrap),
    }


def config_lines(spec: JobSpec, plan: RunPlan) -> list[str]:
    """Return the lines of `orch config`, with variables quoted for a shell."""
    counts = ", ".join(counted_of(role, count) for role, count in spec.roles.items())
    is_private = spec.network is NetworkOption.PRIVATE
    lines = [
        f"run          {spec.name}: {counts}",
        f"command      {spec.masked().command}",
        *_role_lines(spec),
        f"cwd          {spec.cwd}",
        f"time limits  whole run {_limit(spec.timeout_s)}, start {_limit(spec.start_timeout_s)},"
        f" stall {_limit(spec.stall_timeout_s)}",
        f"grace        {format_duration(spec.grace_s)},"
        f" after a failure {format_duration(spec.failure_grace_s)}",
        *_failure_lines(spec),
        *([f"strategy     {spec.strategy}"] if spec.strategy.strategy is not None else []),
        f"start        {_method(spec)}: {spec.command.start.reason}",
        *(f"threads      {budget}" for budget in plan.budgets.values()),
        *_host_lines(spec, plan),
        *(["network      private: only tasks of this run reach each other"] if is_private else []),
        *(f"chaos        {fault}{_drawn(fault, spec)}" for fault in spec.chaos),
        "ports        placeholders: `orch up` replaces them by free ones",
    ]
    for task in plan.tasks:
        lines += ["", *_task_lines(task, plan, _device_line(task, spec, plan))]
    return lines


def _host_lines(spec: JobSpec, plan: RunPlan) -> Iterator[str]:
    """Yield the hosts with the number of their tasks."""
    on_host = Counter(task.host for task in plan.tasks)
    for host in spec.hosts:
        yield f"host         {host}: {counted(on_host[host.name], 'task')}"


def _role_lines(spec: JobSpec) -> Iterator[str]:
    """Yield the settings of roles that differ, and each role's failure policy if these differ."""
    masked = spec.masked().role_settings
    differ = len({spec.policy_of(role) for role in spec.roles}) > 1
    for role in spec.roles:
        own = masked.get(role, RoleSettings())
        parts = [
            *([f"command {own.command}"] if own.command is not None else []),
            *(f"env {name}={_word(value)}" for name, value in own.env.items()),
            *([f"on failure {spec.policy_of(role)}"] if differ else []),
        ]
        if parts:
            yield f"role         {role}: {', '.join(parts)}"
    if EVALUATOR in spec.roles:
        yield f"evaluator    at most {_limit(spec.evaluator_timeout_s)} after the training has ended"


def _limit(seconds: float | None) -> str:
    return "none" if seconds is None else format_duration(seconds)


def _failure_lines(spec: JobSpec) -> Iterator[str]:
    """Yield the failure policy, the range of workers and the memory limit, if they are not the default."""
    if spec.on_failure in (FailurePolicy.RESTART, FailurePolicy.RESTART_TASK):
        each = "each task " if spec.on_failure is FailurePolicy.RESTART_TASK else ""
        yield f"on failure   {spec.on_failure}, {each}{counted(spec.max_restarts, 'time')} at most"
    elif spec.on_failure is not FailurePolicy.ABORT:
        yield f"on failure   {spec.on_failure}"
    if spec.is_elastic:
        yield f"workers      {spec.fewest_workers} to {spec.workers}: as many as fit on the hosts that live"
    if spec.memory_limit_bytes is not None:
        limit = format_size(spec.memory_limit_bytes, like=spec.memory_limit_bytes)
        yield f"memory       {limit} a task at most"


def _drawn(fault: Fault, spec: JobSpec) -> str:
    """Name the task that was drawn for `any`."""
    return f" ({_target(fault, spec)})" if fault.task is None else ""


def _method(spec: JobSpec) -> str:
    return "fork" if spec.command.start.fork else "spawn"


def _device_line(task: TaskPlan, spec: JobSpec, plan: RunPlan) -> list[str]:
    """Describe the task's devices, if orch chooses them."""
    share = plan.gpus.shares.get(str(task.task))
    if share:
        return [f"GPU {', '.join(share)}"]
    logical = spec.strategy.logical_cpus(spec.workers)
    if logical is not None:
        return [counted(logical, "logical CPU device")]
    return [] if share is None else ["no GPU"]


def _task_lines(task: TaskPlan, plan: RunPlan, devices: list[str]) -> list[str]:
    return [
        f"{task.task}  {task.address} (placeholder port{' and address' if task.host else ''})",
        f"  argv  {' '.join(_word(word) for word in mask_words(task.order.argv))}",
        *(f"  uses  {line}" for line in devices),
        f"  log   {task.order.log}",
        *(f"  env   {name}={_word(value)}" for name, value in _env(task, plan).items()),
    ]


def _word(text: str) -> str:
    """Quote a word for a shell. Control characters need the $'...' of bash, ksh and zsh."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_escaped(character) for character in text) + "'"


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
