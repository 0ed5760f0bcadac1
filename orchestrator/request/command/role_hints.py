"""Warns before the start of a script that would train on its own: it never checks for its role, or joins no cluster."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS
from orchestrator.request.command.allowed_names import HARMLESS
from orchestrator.request.command.program import Program, find_program
from orchestrator.request.command.source_tree import TENSORFLOW, Source, TooLarge

# By role: how messages name it, a word that a script for it needs, and what happens without.
_ROLES = {
    EVALUATOR: (
        "the evaluator role",
        re.compile(rb"evaluator", re.IGNORECASE),
        "as the evaluator it would train a model of its own and write where the chief writes",
    ),
    PS: (
        "the parameter server role",
        re.compile(rb"ParameterServer|distribute\.Server|server_lib|\.join\(|[\"']ps[\"']"),
        "as a parameter server it would train a model of its own",
    ),
}

# Any of these may join processes, or show that they are to differ. Then nothing is said.
_MAY_JOIN = re.compile(
    rb"multi_?worker|parameter_?server|collective|cluster|distribute\.Server|server_lib|connect_to|TPUStrategy|dtensor"
    rb"|horovod|mpi4py|grpc|estimator|TF_CONFIG|ORCH_TASK|import_module|__import__|\bexec\(|runpy",
    re.IGNORECASE,
)
_TRAINS = re.compile(rb"\.fit\(|fit_generator\(|train_on_batch\(|GradientTape|apply_gradients|\.minimize\(")
# Libraries without a way to join processes, beside those in HARMLESS.
_SINGLE = frozenset(
    {"tensorflow_datasets", "tensorflow_hub", "tensorflow_text", "tensorflow_addons", "cv2", "wandb"}
)
_ONE_PROCESS = re.compile(rb"\b(?:Mirrored|OneDevice|CentralStorage)Strategy\b")


def cluster_hint(spec: JobSpec, environ: Mapping[str, str]) -> str | None:
    """Why the workers would train separate models; None if the source may join a cluster.

    Only a script whose own modules were all read, and that imports only libraries known not to join one, is named.
    """
    if not spec.has_cluster or PS in spec.roles or len(spec.commands) > 1:
        return None
    if not spec.command.interpreter:
        return None
    program = find_program(spec.command.argv[1:], spec.cwd, environ)
    sources = _sources(program)
    if not sources or any(_MAY_JOIN.search(source.text) for source in sources):
        return None
    if not any(_TRAINS.search(source.text) for source in sources) or not _is_known(program, sources):
        return None
    name, count = spec.command.program, spec.workers + spec.roles.get(CHIEF, 0)
    found = next(filter(None, (_ONE_PROCESS.search(source.text) for source in sources)), None)
    why = (
        "creates no strategy for several workers"
        if found is None
        else f"uses {found[0].decode()}, which does not span workers"
    )
    return f"{name} {why}: {count} workers would train {count} independent copies"


def _is_known(program: Program, sources: list[Source]) -> bool:
    """Whether TensorFlow is imported, and else only local, standard and harmless modules."""
    tops = {name.partition(".")[0] for source in sources for name, _ in source.imports()}
    others = tops - TENSORFLOW - HARMLESS - _SINGLE - sys.stdlib_module_names
    return bool(tops & TENSORFLOW) and all(program.tree.is_local(top) for top in others)


def role_hints(spec: JobSpec, environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each role that its script never checks for. None for source that orch cannot read."""
    for role, (called, word, instead) in _ROLES.items():
        if role in spec.roles and _never_checks(spec.command_of(role), word, spec.cwd, environ):
            yield (
                f"{spec.command_of(role).program} never checks for {called}: {instead};"
                f" give that role its own command in orch.toml ([roles.{role}]), or leave it out"
            )


def _never_checks(command: Command, word: re.Pattern[bytes], cwd: Path, environ: Mapping[str, str]) -> bool:
    if command.kind is not CommandKind.SCRIPT:
        return False
    sources = _sources(find_program(command.argv[1:], cwd, environ))
    return bool(sources) and not any(word.search(source.text) for source in sources)


def _sources(program: Program) -> list[Source]:
    """The script and the local modules that it may import; empty if orch cannot read them all."""
    try:
        return list(program.tree.reachable(program.start)) if program.start else []
    except TooLarge:
        return []
