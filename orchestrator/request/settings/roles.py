"""Which tasks a run has and what each runs: numbers of tasks, the strategy, and what differs between roles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pydantic import ValidationError

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import DEFAULT_WORKERS, ChiefOption, FailurePolicy, Strategy
from orchestrator.core.job.elastic import check_elastic
from orchestrator.core.job.hosts import check_engine, check_role_hosts
from orchestrator.core.job.roles import (
    RoleMisfit,
    WorkerRange,
    check_counts,
    default_chief,
    default_policy,
    leader_role,
)
from orchestrator.core.job.spec import Command, CommandKind, JobSpec, RoleSettings
from orchestrator.core.job.start_method import StartMethod
from orchestrator.core.job.strategy import (
    DEFAULT_COUNTS,
    SettingMisfit,
    StrategyChoice,
    check_roles,
    check_settings,
    example_strategy,
)
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS, ROLES, WORKER
from orchestrator.core.plan.placement import place
from orchestrator.core.plan.task_devices import gpu_plan_of
from orchestrator.request.settings.declaration import Part
from orchestrator.request.settings.given import Given, join_command
from orchestrator.request.settings.options import COUNT_OF, HOSTS, SETTINGS
from orchestrator.request.settings.toml_file import entry_name

# Variables that TensorFlow reads when it starts a device or a server, and no import reads: a forked task has its own.
_READ_LATE = ("CUDA_VISIBLE_DEVICES", "DTENSOR_")
# It decides how orch holds the ports of all tasks.
_SAME_FOR_ALL = "TF_GRPC_REUSE_PORT"


# -- numbers of tasks


def role_counts(given: Mapping[str, Given], strategy: StrategyChoice) -> dict[str, int]:
    """Return the number of tasks of each role. A role that has only a table has one task."""
    given = _with_default_counts(given, strategy)
    ps = _count(given, PS)
    chiefs = _count(given, CHIEF, int(default_chief(ps) is ChiefOption.SEPARATE))
    workers, evaluators = _count(given, WORKER, DEFAULT_WORKERS), _count(given, EVALUATOR)
    counts = {CHIEF: chiefs, WORKER: workers, PS: ps, EVALUATOR: evaluators}
    try:
        check_counts(counts)
    except RoleMisfit as misfit:
        role = misfit.role
        raise UsageError(f"{_source(given, COUNT_OF[role].name, entry_name(role))}: {misfit}") from misfit
    return {role: count for role, count in counts.items() if count}


def _with_default_counts(given: Mapping[str, Given], choice: StrategyChoice) -> Mapping[str, Given]:
    """Add the strategy's own default numbers of tasks."""
    counts = {} if choice.strategy is None else DEFAULT_COUNTS.get(choice.strategy, {})
    source = given["strategy"].source if "strategy" in given else "the strategy"
    return {**{name: Given(count, source) for name, count in counts.items()}, **given}


def _count(given: Mapping[str, Given], role: str, default: int = 0) -> int:
    option = COUNT_OF[role]
    if option.name in given:
        value = given[option.name].value
        value = value.most if isinstance(value, WorkerRange) else value
        return int(value is ChiefOption.SEPARATE) if isinstance(value, ChiefOption) else int(value)
    return max(1, default) if entry_name(role) in given else default


def worker_range(given: Mapping[str, Given]) -> WorkerRange | None:
    """The range of workers, if one is given."""
    option = COUNT_OF[WORKER].name
    value = given[option].value if option in given else None
    return value if isinstance(value, WorkerRange) else None


def _source(given: Mapping[str, Given], option: str, *entries: str) -> str:
    """The source of the option, or of the first given of these entries of role tables; else the option's flag."""
    return next((given[name].source for name in (option, *entries) if name in given), SETTINGS[option].flag)


# -- the strategy


def strategy_choice(given: Mapping[str, Given]) -> StrategyChoice:
    """Return the options about the strategy. A mesh alone means DTensor."""
    values = {
        o.name: given[o.name].value for o in SETTINGS.values() if o.part is Part.STRATEGY and o.name in given
    }
    choice = StrategyChoice(**values)
    if choice.strategy is None and choice.mesh is not None:
        return replace(choice, strategy=Strategy.DTENSOR)
    return choice


def with_strategy(given: Mapping[str, Given], choice: StrategyChoice, spec: JobSpec) -> JobSpec:
    """Return the spec with its strategy; UsageError if the strategy contradicts other options."""
    is_example = any(command.kind is CommandKind.EXAMPLE for command in spec.commands)
    strategy = example_strategy(choice, spec.roles) if is_example else choice
    with _misfits_as_usage_errors(given):
        check_settings(strategy)
        check_roles(strategy, spec.roles)
        check_engine(spec)
        spec = spec.model_copy(update={"strategy": strategy})
        check_elastic(spec)
        if spec.hosts:
            place(spec)
    return spec


def gpu_notices(given: Mapping[str, Given], spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return notices about how the GPUs are split; UsageError if they cannot be split as asked."""
    with _misfits_as_usage_errors(given):
        return gpu_plan_of(spec, environ).notes


@contextmanager
def _misfits_as_usage_errors(given: Mapping[str, Given]) -> Iterator[None]:
    try:
        yield
    except SettingMisfit as misfit:
        setting, role = misfit.setting, SETTINGS[misfit.setting].role
        in_tables = [entry_name(each, setting) for each in ROLES]
        entries = [entry_name(role)] if role else in_tables
        raise UsageError(f"{_source(given, setting, *entries)}: {misfit}") from misfit


# -- what each role runs


@dataclass(frozen=True)
class CommonCommand:
    """The words of the command of all roles, and where they come from. `env` is added to the caller's environment.
    `resolve(words, env, source)` makes a command of words."""

    words: tuple[str, ...]
    source: str
    env: Mapping[str, str]
    resolve: Callable[[tuple[str, ...], Mapping[str, str], str], Command]


def resolve_roles(
    given: Mapping[str, Given], roles: Collection[str], common: CommonCommand
) -> tuple[Command, dict[str, RoleSettings]]:
    """Return the command of all roles without their own, and the settings of the roles that differ."""
    own = {role: given[name] for role in roles if (name := entry_name(role, "command")) in given}
    env = {role: _env_of(given, role) for role in roles}

    def resolve(role: str) -> Command:
        words = own.get(role, Given((), common.source))
        joined = join_command(common.words, words.value) if words.value else common.words
        return common.resolve(joined, {**common.env, **env[role]}, words.source)

    if set(own) == set(roles):
        command = resolve(leader_role(roles))
    else:
        command = common.resolve(common.words, common.env, common.source)
    settings = {}
    for role in roles:
        differing = None
        if role in own or env[role]:
            found = resolve(role)
            if found != command or _import_variable(env[role]):
                differing = _forked_only_with(command, found, env[role])
        gpus = given.get(entry_name(role, "gpus"))
        settings[role] = RoleSettings(
            command=differing,
            env=env[role],
            on_failure=_policy_of(given, roles, role),
            gpus=None if gpus is None else gpus.value,
            hosts=_hosts_of(given, role),
        )
    return command, {role: its for role, its in settings.items() if its != RoleSettings()}


def _env_of(given: Mapping[str, Given], role: str) -> Mapping[str, str]:
    found = given.get(entry_name(role, "env"))
    if found is None:
        return {}
    if _SAME_FOR_ALL in found.value:
        raise UsageError(
            f"{found.source}: {_SAME_FOR_ALL} is the same for all tasks of a run; write it under [env]"
        )
    try:
        return RoleSettings(env=found.value).env
    except ValidationError as error:
        cause = error.errors(include_url=False)[0].get("ctx", {}).get("error")
        raise UsageError(f"{found.source}: {cause or error}") from error


def _hosts_of(given: Mapping[str, Given], role: str) -> tuple[str, ...] | None:
    own = given.get(entry_name(role, HOSTS.name))
    if own is None:
        return None
    for host in own.value:
        if host.destination != host.name or host.slots is not None:
            raise UsageError(
                f'{own.source}: write "{host.name}"; users and numbers of tasks belong to --hosts'
            )
    known = given[HOSTS.name].value if HOSTS.name in given else ()
    names = tuple(host.name for host in own.value)
    try:
        check_role_hosts({role: names}, known)
    except ValueError as error:
        raise UsageError(f"{own.source}: {error}") from error
    return names


def _policy_of(given: Mapping[str, Given], roles: Collection[str], role: str) -> FailurePolicy | None:
    own = given.get(entry_name(role, "on_failure"))
    if own is not None:
        policy: FailurePolicy = own.value
        return policy
    if "on_failure" in given:
        return None
    policy = default_policy(role, roles, FailurePolicy.ABORT)
    return None if policy is FailurePolicy.ABORT else policy


def _forked_only_with(common: Command, command: Command, env: Mapping[str, str]) -> Command:
    """Return the command, forked only if one process can do the imports of both commands."""
    reason = _reason_to_spawn(common, command, env)
    if reason is None or not command.start.fork:
        return command
    return command.model_copy(update={"start": StartMethod(fork=False, reason=reason)})


def _reason_to_spawn(common: Command, command: Command, env: Mapping[str, str]) -> str | None:
    if variable := _import_variable(env):
        return f"its role has an environment of its own ({variable})"
    if not common.start.fork:
        return "the other roles' tasks are not forked"
    needs = [
        (each.interpreter, each.legacy_keras, replace(each.start, reason="")) for each in (common, command)
    ]
    return None if needs[0] == needs[1] else "it does not begin with the imports of the other roles' command"


def _import_variable(env: Mapping[str, str]) -> str | None:
    """A variable that an import may read."""
    return next((name for name in env if not name.startswith(_READ_LATE)), None)
