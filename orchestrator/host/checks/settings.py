"""The settings, and the options of the built-in program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.core.diagnosis.distribution import cluster_advice
from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.spec import Command, CommandKind
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR
from orchestrator.core.plan.plan import DEPTH, GLOBAL_BATCH, read_depth
from orchestrator.core.plan.task_devices import STRATEGY, strategy_env
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, problem, warning

# The program answers in 0.05 s. A machine that needs longer than this cannot run a job.
_PATIENCE_S = 30.0
# The job's variables come by stdin: one such as PYTHONPATH would make the interpreter run the code of a directory.
_PROGRAM = (
    "import json, os, runpy, sys; os.environ.update(json.load(sys.stdin)); "
    "runpy.run_module('worker.training.options.parser', run_name='__main__', alter_sys=True)"
)
# Limit on nested runs: a task that starts its own script by `orch up` would start runs without end.
_MOST_LEVELS = 3
_LONGEST_QUOTE = 40
# The name of a run that does not exist yet.
_RUN = "preflight"


def check_settings(context: Context) -> Iterator[Finding]:
    if context.settings_error is not None:
        text = f"`orch up` would refuse to start: {context.settings_error}"
        yield problem("settings", text, fix="correct it; `orch config` shows the plan once it is right")


def check_depth(context: Context) -> Iterator[Finding]:
    around = read_depth(context.environ)
    if around is None:
        text = (
            f"{DEPTH} is {context.environ[DEPTH][:_LONGEST_QUOTE]!r}, not the number of runs around this one"
        )
        yield problem("settings", text, fix="unset it; orch sets it for each task")
    elif around >= _MOST_LEVELS:
        text = f"orch does not start a run inside of {_MOST_LEVELS} others ({DEPTH} is {around})"
        fix = "a task probably starts its own script: let it start a run only if ORCH_TASK is not set"
        yield problem("settings", text, fix=fix)


def check_allocation(context: Context) -> Iterator[Finding]:
    nodes = context.environ.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal() and int(nodes) > 1 and not context.spec.is_remote:
        text = (
            f"all tasks run on this machine, and not on the {nodes[:_LONGEST_QUOTE]} nodes of this Slurm job"
        )
        yield warning("settings", text, where="SLURM_JOB_NUM_NODES", fix="`--engine slurm` uses the nodes")


def check_cluster(context: Context) -> Iterator[Finding]:
    if context.separate_training is not None:
        yield warning("cluster", context.separate_training, fix=cluster_advice(context.spec))


def check_builtin_options(context: Context) -> Iterator[Finding]:
    """Have the built-in program check its own options, once for each different command and environment."""
    spec, asked = context.spec, set()
    for role in spec.roles:
        command, own = spec.command_of(role), frozenset(spec.env_of(role).items())
        question = (command, own, role == EVALUATOR)
        if command.kind is CommandKind.BUILTIN and question not in asked:
            asked.add(question)
            if (error := _options_error(command, context, _builtin_environ(context, role))) is not None:
                text = f"the built-in program: {error}"
                yield problem("settings", text, fix="`orch up -- --help` lists its options")


def _builtin_environ(context: Context, role: str) -> dict[str, str]:
    """The role's environment, as far as it is known before the run."""
    spec = context.spec
    checkpoints = spec.checkpoint_dir or Path(context.state or "/", "runs", _RUN, "checkpoints")
    return {
        **context.environ,
        "ORCH_CHECKPOINT_DIR": str(checkpoints),
        **spec.env_of(role),
        **strategy_env(spec.strategy, context.environ),
        GLOBAL_BATCH: "" if spec.global_batch is None else str(spec.global_batch),
        "ORCH_RUN_ID": _RUN,
        "ORCH_TASK": f"{role}:0",
        "ORCH_TRAINERS": str(spec.workers + spec.roles.get(CHIEF, 0)),
    }


def _options_error(command: Command, context: Context, environ: Mapping[str, str]) -> str | None:
    kept = environ.get("ORCH_CHECKPOINT_DIR")
    has_defaults = not command.words and not command.legacy_keras and not (kept and Path(kept).exists())
    if has_defaults and environ.get(STRATEGY) == Strategy.MULTI_WORKER_MIRRORED:
        return None
    keras = {"TF_USE_LEGACY_KERAS": "1"} if command.legacy_keras else {}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, *command.words],
        cwd=context.spec.cwd,
        env=dict(context.environ),
        input=json.dumps({**environ, **keras}),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE_S,
        check=False,
    )
    if not done.returncode:
        return None
    printed = done.stderr.strip()
    return printed.rpartition("\n")[2].partition("error: ")[2] or printed
