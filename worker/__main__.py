"""`python -m worker [options]`: the built-in training program, from its options to its exit code."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, NoReturn

from worker.training.options.checks import check_place
from worker.training.options.fields import PARAMETER_SERVER, Options
from worker.training.options.parser import parse_options
from worker.training.process.ending import exit_now, exit_on_signals
from worker.training.process.environment import Place, UsageError, read_place
from worker.training.process.output import print_as_task, without_startup_messages
from worker.training.process.progress import ProgressChannel

if TYPE_CHECKING:
    from worker.training.job import Job

USAGE_ERROR = 2


def main(arguments: list[str]) -> NoReturn:
    """Run the program; the process exits here."""
    # A signal ends the process without flushing.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    options = parse_options(arguments)
    # AutoGraph does not remove its temporary files if the process ends by os._exit.
    tempfile.tempdir = os.environ.get("ORCH_SCRATCH_DIR") or None
    exit_on_signals()
    progress = ProgressChannel.from_environment()
    progress.phase("importing")
    try:
        _run_task(options, progress)
    except UsageError as error:
        print(f"worker: error: {error}", file=sys.stderr)
        exit_now(USAGE_ERROR)
    except BaseException:
        # A normal exit would tear TensorFlow down first, which waits for peers that wait for this process.
        traceback.print_exc()
        exit_now(1)


def _run_task(options: Options, progress: ProgressChannel) -> NoReturn:
    place = read_place(os.environ)
    check_place(place, options.strategy, options.checkpoint)
    if options.strategy == PARAMETER_SERVER and place.role in ("worker", "ps"):
        _serve(place, progress)
    from worker.training.data.datasets import check_shards, find_damage, load_dataset, load_into_memory

    dataset = load_dataset(options.dataset, options.seed)
    if options.strategy == PARAMETER_SERVER:
        # The chief sends the examples to its workers.
        dataset = load_into_memory(dataset)
    check_shards(dataset, options.auto_shard, place.workers)
    with without_startup_messages():
        from worker.training.job import Job
    try:
        train(Job(options, place, dataset), progress)
    except UsageError:
        raise
    except Exception as error:
        # TensorFlow's error about a corrupted record does not name the file.
        damage = find_damage(dataset, error)
        if damage is None:
            raise
        traceback.print_exc()
        print(f"worker: error: {damage}", file=sys.stderr)
        exit_now(1)


def _serve(place: Place, progress: ProgressChannel) -> NoReturn:
    """Run the graphs of the parameter-server chief until SIGTERM; needs neither Keras nor the examples."""
    with without_startup_messages():
        import tensorflow as tf

        tf.config.list_physical_devices()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=place.role, task_index=resolver.task_id, protocol="grpc"
    )
    progress.phase("serving")
    print_as_task(place, "serving the chief until it is stopped")
    server.join()
    raise AssertionError("the server ended by itself")


def train(job: Job, progress: ProgressChannel) -> NoReturn:
    """Do this process's part of the training and exit with code 0; errors are raised."""
    if job.place.role == "evaluator":
        from worker.training.evaluator import follow_checkpoints

        follow_checkpoints(job, progress)
    if job.options.strategy == PARAMETER_SERVER:
        from worker.training.parameter_server.chief import train_with_servers

        train_with_servers(job, progress)
    if job.options.strategy == "dtensor":
        from worker.training.mesh.course import train_mesh

        train_mesh(job, progress)
    from worker.training.replicas.course import train_replicas

    train_replicas(job, progress)


if __name__ == "__main__":
    main(sys.argv[1:])
