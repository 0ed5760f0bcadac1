"""Reads the built-in program's options; run as a program it only checks them, which orch does before the start."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from worker.training.options.checks import default_loop, find_contradiction
from worker.training.options.context import SET_BY_ORCH, orch_problem
from worker.training.options.fields import (
    CHECKPOINTS,
    LARGEST_SEED,
    LOOPS,
    STRATEGIES,
    Options,
    dataset,
    did_you_mean,
    directory,
    mesh,
    one_of,
    positive,
    size,
    whole,
)
from worker.training.process.environment import is_legacy_keras

# Defaults that orch sets for its tasks.
_ENVIRONMENT = SET_BY_ORCH | {
    "communication": "ORCH_COMMUNICATION",
    "global_batch": "ORCH_GLOBAL_BATCH",
    "checkpoint_dir": "ORCH_CHECKPOINT_DIR",
    "tensorboard": "ORCH_TENSORBOARD_DIR",
}
# Larger values are mistakes, and do not fit into the names of checkpoints.
_MOST_EPOCHS = 10**8
_MOST_STEPS = 2**24
_MOST_EXAMPLES_PER_STEP = 2**31 - 1


def parse_options(arguments: Sequence[str]) -> Options:
    """Return the checked options; SystemExit 2 after one line about a wrong one, SystemExit 0 after --help."""
    parser = _make_parser()
    read, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"{unknown[0]!r} is not known{_hint(unknown[0])}")
    given = vars(read)
    for name, value in given.items():
        if value == []:
            # argparse before Python 3.13 turns `--epochs=--` into this without calling the converter.
            parser.error(f"argument --{name.replace('_', '-')}: '--' is not a value")
    if given["loop"] is None:
        given["loop"] = default_loop(given["strategy"], legacy_keras=is_legacy_keras(os.environ))
    options = Options(**given)
    if (problem := orch_problem(options, os.environ) or find_contradiction(options)) is not None:
        parser.error(problem)
    return options


def _hint(word: str) -> str:
    known = [f"--{field.name.replace('_', '-')}" for field in fields(Options)] if word.startswith("-") else []
    hint = did_you_mean(word, known, "")
    return f"; {hint}" if hint else ""


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worker",
        description="Train a small convolutional network under a strategy of tf.distribute. "
        "Reads TF_CONFIG (without it: one worker). A second run with the same checkpoint directory resumes "
        "where the first stopped.",
        allow_abbrev=False,
    )
    for title, options in _option_groups().items():
        group = parser.add_argument_group(title)
        for option, (arguments, text) in options.items():
            group.add_argument(option, **arguments, help=text)
    parser.set_defaults(**vars(Options()))
    # As text, so that the converters check them. The default loop depends on the strategy.
    parser.set_defaults(checkpoint_dir="checkpoints", loop=None)
    parser.set_defaults(**{name: value for name, of in _ENVIRONMENT.items() if (value := os.environ.get(of))})
    return parser


def _option_groups() -> dict[str, dict[str, tuple[dict[str, Any], str]]]:
    """Return each option by its group, with its arguments of `add_argument` and its help."""
    tensorboard = Path(os.environ.get("ORCH_TENSORBOARD_DIR") or "tensorboard")
    return {
        "strategy": {
            "--strategy": (one_of(*STRATEGIES), "of tf.distribute; default $ORCH_STRATEGY, else %(default)s"),
            "--loop": (
                one_of(*LOOPS),
                "Keras fit, or a custom loop on strategy.run; default fit if it can train, else custom",
            ),
            "--precision": (
                one_of("float32", "mixed_float16", "mixed_bfloat16"),
                "what the layers compute in; mixed_float16 scales the loss; default %(default)s",
            ),
            "--replicas": (
                whole(1, 64),
                "mirrored, central-storage: number of logical CPU devices; default $ORCH_REPLICAS, else all GPUs, and "
                "without any 2 logical CPU devices",
            ),
            "--device": (
                {"metavar": "NAME"},
                "one-device: CPU:0, GPU:1; default $ORCH_DEVICE, else the first GPU, else the CPU",
            ),
            "--tpu": (
                {"metavar": "NAME"},
                "tpu: its name or grpc address; default $ORCH_TPU, else from the environment",
            ),
            "--mesh": (
                {"type": mesh, "metavar": "batch=B,model=M"},
                "dtensor: into how many parts the batch and the model are cut; default $ORCH_MESH",
            ),
            "--partitioner": (
                one_of("none", "min-size", "fixed"),
                "parameter-server: how large variables are cut among the servers: not at all, by size, or each into "
                "one part a server; default %(default)s",
            ),
            "--communication": (
                one_of("auto", "ring", "nccl"),
                "multi-worker-mirrored: how gradients are summed; default $ORCH_COMMUNICATION, else %(default)s",
            ),
        },
        "data": {
            "--dataset": (
                {"type": dataset, "metavar": "NAME|FILE.npz|DIR"},
                "digits (built in: 1,797 images of 8x8), mnist (downloaded once), synthetic, a .npz file with x_train "
                "and y_train (and x_test, y_test), or images and labels, or a directory of TFRecord files (or "
                "'x/*.tfrecord'), as `python -m worker.records digits DIR` writes it; default %(default)s",
            ),
            "--batch-size": (
                whole(1, _MOST_EXAMPLES_PER_STEP),
                "examples per replica and step; the global batch is N x replicas; default %(default)s",
            ),
            "--global-batch": (
                whole(1, _MOST_EXAMPLES_PER_STEP),
                "examples per step over all replicas, whatever their number; default $ORCH_GLOBAL_BATCH, else "
                "--batch-size x replicas",
            ),
            "--auto-shard": (
                one_of("data", "file", "off", "auto"),
                "how the workers share the examples: data (each worker its part of each batch), file (each worker its "
                "own files: TFRecord), off (every worker all of them, in its own order), auto (by file if there are "
                "enough, else data); default %(default)s",
            ),
            "--input": (
                one_of("dataset", "function"),
                "dataset (one tf.data pipeline, which the strategy cuts up), or function (each worker makes its own, "
                "distribute_datasets_from_function); default %(default)s",
            ),
            "--last-batch": (
                one_of("full", "short"),
                "full (a pass's last batch is filled up from the next pass), or short (an epoch is one pass, its last "
                "batch has the rest); default %(default)s",
            ),
            "--check-data": (
                {"action": "store_true"},
                "before training run one pass and print how many distinct examples each worker saw, and whether each "
                "was seen once",
            ),
        },
        "training": {
            "--epochs": (
                whole(1, _MOST_EPOCHS),
                "in total, including those of earlier runs; default %(default)s",
            ),
            "--steps-per-epoch": (
                whole(1, _MOST_STEPS),
                "default: as many global batches as the training examples fill, at least one",
            ),
            "--learning-rate": (
                {"type": positive, "metavar": "X"},
                "Adam's, for one worker; grows with the square root of their number; default %(default)s",
            ),
            "--seed": (
                whole(0, LARGEST_SEED),
                "of the first weights and the order of examples; default %(default)s",
            ),
            "--width": (
                whole(1, 100_000),
                "makes the first dense layer N times as wide, and the model larger; default %(default)s",
            ),
            "--device-memory": (
                {"type": size, "metavar": "SIZE"},
                "limit of a device for weights, gradients and Adam's moments, such as 8MB: training that needs more is "
                "refused, with the --mesh that would fit; default: no limit",
            ),
            "--summary": ({"action": "store_true"}, "print the model's layers first"),
        },
        "checkpoints": {
            "--checkpoint-dir": (
                {"type": directory, "metavar": "DIR"},
                "where the chief writes them, and model.keras at the end; default $ORCH_CHECKPOINT_DIR, else "
                "./checkpoints",
            ),
            "--keep": (whole(1, _MOST_EPOCHS), "how many of the newest to keep; default %(default)s"),
            "--checkpoint": (
                one_of(*CHECKPOINTS),
                "manager (tf.train.CheckpointManager: one after each epoch), backup (Keras BackupAndRestore, with "
                "fit), preemption (as manager, and PreemptionCheckpointHandler: at SIGTERM all workers save at one "
                "step and exit with 42); default %(default)s",
            ),
        },
        "records": {
            "--tensorboard": (
                {"type": directory, "nargs": "?", "const": tensorboard, "metavar": "DIR"},
                "write TensorBoard event files there; without DIR: $ORCH_TENSORBOARD_DIR, else ./tensorboard; default "
                "$ORCH_TENSORBOARD_DIR, else none",
            ),
            "--export": (
                one_of("both", "keras", "savedmodel", "none"),
                "what to write beside the checkpoints at the end: model.keras, a SavedModel in export/, both or none; "
                "default %(default)s",
            ),
        },
    }


if __name__ == "__main__":
    parse_options(sys.argv[1:])
