"""`orch export`: renders the job for a scheduler that runs it without orch, or as a script for Slurm."""

from __future__ import annotations

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.parameters import takes_options
from orchestrator.cli.up import Words, flags_of, screen_of_up
from orchestrator.core.errors import UsageError
from orchestrator.request.settings.declaration import Part


class Target(StrEnum):
    """The schedulers that a job can be rendered for."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    JOBSET = "jobset"


@takes_options(*(part for part in Part if part is not Part.DISPLAY))
def export(
    context: typer.Context,
    target: Annotated[
        Target,
        typer.Argument(help="The scheduler to render for.", metavar="|".join(Target), show_default=False),
    ],
    command: Words = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a file instead of stdout.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Container with Python, TensorFlow and the script.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Namespace of Kubernetes.")] = None,
    claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="A volume claim that exists, for the checkpoints.")
    ] = None,
    storage: Annotated[str, typer.Option(metavar="SIZE", help="Size of a new volume claim.")] = "10Gi",
    **given: Any,
) -> int:
    """Render the job of `orch up` as a script for sbatch, or as manifests. It starts nothing.

    The manifests are for `kubectl create -f FILE`.
    """
    from orchestrator.cli import words
    from orchestrator.host import programs
    from orchestrator.request.settings import settings

    screen = screen_of_up(context, given)
    # The engine stands for "not on this machine", whose cores and GPUs are not checked then.
    flags = {**flags_of(command, given, screen), "engine": "slurm"}
    request = settings.load(
        flags, os.environ, Path.cwd(), lambda python: programs.is_on_path(python, os.environ)
    )
    for notice in () if screen.quiet else request.notices:
        words.say(notice)
    if target is Target.SLURM:
        from orchestrator.request.export.batch_script import batch_script

        text = batch_script(request.spec, flags, _own_program())
    else:
        from orchestrator.request.export.manifests import (
            Cluster,
            job_set,
            kubernetes_job,
            object_name,
            secret_names,
            yaml_text,
        )

        if image is None:
            raise UsageError("--image: name the container that has Python, TensorFlow and the script")
        cluster = Cluster(image, namespace, claim, storage)
        spec = settings.with_python(request.spec, request.spec.remote_python or "python3")
        made = kubernetes_job if target is Target.KUBERNETES else job_set
        text = yaml_text(made(spec, cluster))
        if names := secret_names(spec):
            words.say(
                f"the values of {', '.join(names)} are not written: they come from the Secret"
                f" {object_name(spec)}-env; make it with `kubectl create secret generic`"
            )
    if output is None:
        words.print_lines([text.rstrip("\n")])
        return 0
    from orchestrator.client.output_file import write_output

    try:
        write_output(output, text.encode(), mode=0o777 if target is Target.SLURM else 0o666)
    except OSError as error:
        raise UsageError(f"--output: {output} cannot be written ({error.strerror})") from error
    how = "sbatch" if target is Target.SLURM else "kubectl create -f"
    words.say(f"wrote {output}; start it with `{how} {shlex.quote(str(output))}`")
    return 0


def _own_program() -> str:
    """The path of orch: a node may have another PATH."""
    program = Path(sys.argv[0])
    return str(program) if program.is_absolute() else "orch"
