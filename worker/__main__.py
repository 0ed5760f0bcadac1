"""`python -m worker [options]`: the built-in training program's command line."""

from __future__ import annotations

import os
import sys
import traceback

from worker.options import parse_options
from worker.progress import ProgressChannel
from worker.training.cluster import ClusterError, read_place
from worker.training.departure import end_now
from worker.training.signals import end_on_signals

USAGE_ERROR = 2


def main(arguments: list[str]) -> None:
    """Run the program; the process ends in here, with the exit code."""
    # Lines must be out when a signal ends the process, which flushes nothing.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    options = parse_options(arguments)
    end_on_signals()
    progress = ProgressChannel.from_environment()
    progress.phase("importing")
    try:
        place = read_place(os.environ)
    except ClusterError as error:
        usage_error(error)
    try:
        from worker.training.datasets import DatasetError, load_dataset
        from worker.training.quiet import without_chatter

        try:
            dataset = load_dataset(options.dataset, options.seed)
        except DatasetError as error:
            usage_error(error)
        with without_chatter():
            from worker.training.run import Job, run
        run(Job(options, place, dataset), progress)
    except BaseException:
        # Raising on would first tear TensorFlow down, which waits for peers that wait for this process.
        traceback.print_exc()
        end_now(1)


def usage_error(error: Exception) -> None:
    print(f"worker: error: {error}", file=sys.stderr)
    end_now(USAGE_ERROR)


if __name__ == "__main__":
    main(sys.argv[1:])
