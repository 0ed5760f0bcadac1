"""A script for sbatch that runs the same `orch up` in an allocation."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.job.gpus import GpuChoice, GpuWay
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.text.secrets import is_secret_name
from orchestrator.request.settings.declaration import Kind, Part
from orchestrator.request.settings.options import ENGINE, GROUPS, SLURM

# Options of Slurm about GPUs, which replace the one made of --gpus.
_OF_GPUS = ("--gres", "--gpus", "-G")


def batch_script(spec: JobSpec, flags: Mapping[str, Any], orch: str) -> str:
    """Return the script. `flags` are the options of the command line, `orch` is the program to call.

    Files of settings are read again when the script runs. UsageError for a secret, which sbatch takes from the
    environment, and for a line break in an option of sbatch.
    """
    lines = ["#!/bin/sh", *map(_directive, _sbatch_words(spec))]
    words = [orch, "up", "--engine", "slurm", *_option_words(flags)]
    if command := flags.get("command"):
        words += ["--", *command]
    return "\n".join([*lines, "", f"exec {shlex.join(words)}", ""])


def allocation_words(spec: JobSpec) -> Iterator[str]:
    """Yield the options of sbatch about the nodes."""
    if spec.partition is not None:
        yield f"--partition={spec.partition}"
    if spec.account is not None:
        yield f"--account={spec.account}"
    if spec.time_s is not None:
        minutes, seconds = divmod(math.ceil(spec.time_s), 60)
        yield f"--time={minutes}:{seconds:02}"
    if spec.fewest_workers is not None:
        yield "--no-kill"  # the job survives the loss of a node
    if (gpus := _gpus_of_node(spec)) and not any(word.startswith(_OF_GPUS) for word in spec.slurm):
        yield f"--gpus-per-node={gpus}"
    yield from spec.slurm


def _gpus_of_node(spec: JobSpec) -> int:
    """The GPUs that --gpus needs on each node; 0 if it does not say. Slurm keeps others from the steps of the job."""
    return max(_gpus_of_role(spec, spec.gpus_of(role)) for role in spec.roles)


def _gpus_of_role(spec: JobSpec, choice: GpuChoice | None) -> int:
    match choice:
        case GpuChoice(way=GpuWay.PER_TASK, each=each):
            return each * (spec.tasks_per_host or math.ceil(len(spec.tasks) / node_count(spec)))
        case GpuChoice(way=GpuWay.NAMED, names=names):
            return max((int(name) + 1 for name in names if name.isdecimal()), default=0)
    return 0


def node_count(spec: JobSpec) -> int:
    """The number of nodes to ask for. UsageError if the options do not say."""
    if spec.nodes is not None:
        return spec.nodes
    if spec.tasks_per_host is None:
        raise UsageError("--engine slurm: how many nodes? write --nodes 3, or --tasks-per-host 1")
    return math.ceil(len(spec.tasks) / spec.tasks_per_host)


def _sbatch_words(spec: JobSpec) -> Iterator[str]:
    yield f"--job-name={spec.name}"
    yield f"--nodes={node_count(spec)}"
    yield "--exclusive"
    yield f"--chdir={spec.directory}"
    yield from allocation_words(spec)


def _directive(word: str) -> str:
    """Return an #SBATCH line. sbatch reads quotes and comments in it as a shell does."""
    if len(word.splitlines()) > 1:
        raise UsageError(
            f"{word.partition('=')[0]}: a batch script cannot pass the line break in {word!r} to sbatch; remove it"
        )
    return f"#SBATCH {shlex.quote(word)}"


def _option_words(flags: Mapping[str, Any]) -> Iterator[str]:
    for option in (option for options in GROUPS.values() for option in options):
        value = flags.get(option.name)
        is_elsewhere = option in SLURM or option is ENGINE or option.part in (Part.COMMAND, Part.SCREEN)
        if value is None or is_elsewhere:
            continue
        if option.kind is Kind.SWITCH:
            yield option.flag
            continue
        for text in value if option.is_repeatable else [value]:
            if option.kind is Kind.ENVIRONMENT and is_secret_name(text.partition("=")[0]):
                raise UsageError(
                    f"{option.flag} {text.partition('=')[0]}: a secret does not belong in a file; leave it out and set"
                    " it where you call sbatch, which passes the environment on"
                )
            yield from (option.flag, str(text))
