"""Under orch the program's options must not contradict those by which orch has started the processes."""

from __future__ import annotations

import pytest

from worker.training.options.context import orch_problem
from worker.training.options.fields import Options

RUN = {"ORCH_RUN_ID": "run-1", "ORCH_STRATEGY": "mirrored"}


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (Options(strategy="mirrored"), RUN),
        (Options(strategy="mirrored", replicas=2), {**RUN, "ORCH_REPLICAS": "2"}),
        (
            Options(strategy="dtensor", mesh=(2, 1)),
            {**RUN, "ORCH_STRATEGY": "dtensor", "ORCH_MESH": "batch=2,model=1"},
        ),
        (Options(communication="ring"), {**RUN, "ORCH_STRATEGY": "multi-worker-mirrored"}),
        # Not started by orch.
        (Options(strategy="one-device"), {"ORCH_STRATEGY": "mirrored"}),
        (Options(strategy="one-device"), {"ORCH_RUN_ID": "run-1"}),
    ],
)
def test_options_equal_to_those_of_orch_are_accepted(options: Options, environ: dict[str, str]) -> None:
    assert orch_problem(options, environ) is None


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        (Options(strategy="one-device"), RUN, "--strategy one-device: this run has --strategy mirrored"),
        (
            Options(strategy="mirrored", replicas=3),
            {**RUN, "ORCH_REPLICAS": "2"},
            "this run has --replicas 2",
        ),
        (Options(strategy="mirrored", replicas=3), RUN, "this run was given no --replicas"),
        (Options(strategy="mirrored", mesh=(1, 2)), RUN, "orch up --mesh batch=1,model=2"),
    ],
)
def test_options_that_differ_from_orch_are_refused(
    options: Options, environ: dict[str, str], message: str
) -> None:
    said = orch_problem(options, environ)
    assert said is not None
    assert message in said
    assert "put it before the --" in said
