"""Elastic runs on the pretend machines: a host is cut off and comes back."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from hosts_run import HostsRun, shared_state
from orch_command import ORCH
from testbed import Testbed
from waiting import until

# On a busy machine a host may be silent for seconds.
PATIENT = ("--link-timeout", "15s")
EPOCHS = 20
# Each number of workers divides it. The steps are those of an epoch of digits.
GLOBAL_BATCH, STEPS = 36, 40


def orch(machines: Testbed, project: Path, *words: str) -> str:
    environ = shared_state(project) if (project / "state").exists() else {}
    return str(machines["n0"].run(str(ORCH), *words, "--as-root-anyway", cwd=project, env=environ).stdout)


def cluster_sizes(run: HostsRun) -> list[int]:
    """The number of workers of each attempt."""
    return [len(event["tasks"]) for event in run.events("attempt_planned")]


def lose_and_shrink(machines: Testbed, run: HostsRun) -> None:
    """Cut n3 off until the run has started with the other hosts."""
    machines.cut("n3")
    run.until_event("host_lost", host="n3")
    run.until_event("attempt_planned", 2)


def heal_and_grow(machines: Testbed, run: HostsRun) -> None:
    machines.heal()
    run.until_event("host_joined", 2, host="n3")
    run.orch("restart")


def reported(machines: Testbed, project: Path) -> dict[str, Any]:
    """The document in the report of the run."""
    found = re.search(r'id="runs"[^>]*>([^<]+)<', orch(machines, project, "report", "-o", "-"))
    assert found is not None
    (document,) = json.loads(gzip.decompress(b64decode(found[1])))
    assert isinstance(document, dict)
    return document


def assert_losses_of_an_undisturbed_run(
    up: Any, machines: Testbed, project: Path, places: tuple[str, ...], sizes: list[int], **hosts: Any
) -> None:
    """Train on one machine, and on hosts of which one is lost and comes back; `sizes`: the workers of the attempts.

    The built-in program keeps the global batch, so that each epoch has the same steps with any number of workers.
    """
    program = ("--", "--epochs", str(EPOCHS), "--export", "none")
    common = ("--global-batch", str(GLOBAL_BATCH), "--threads", "1")
    here = machines["n0"].run(
        *(str(ORCH), "up", "--as-root-anyway", *common, "--checkpoint-dir", str(project / "here"), *program),
        cwd=project,
        timeout_s=400,
        check=False,
    )
    assert here.returncode == 0, here.stdout + here.stderr
    machines["n0"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")

    there = ("--checkpoint-dir", str(project / "there"), "--start-timeout", "off")
    run = up(*places, *common, *there, *program, **hosts)
    until(lambda: "epoch 2/" in run.text or run.process.poll() is not None, 200)
    lose_and_shrink(machines, run)
    # The host is back soon after the first step, long before the last one.
    machines.heal()
    until(lambda: run.events("resumed") or run.process.poll() is not None, 200)
    heal_and_grow(machines, run)
    run.process.wait(400)
    result = run.finish()
    assert (result["outcome"], cluster_sizes(run)) == ("succeeded", sizes), run.text
    kept = f"{' -> '.join(map(str, sizes))}; global batch {GLOBAL_BATCH} kept"
    assert kept in run.text
    assert [end["global_batch"] for end in (*result["history"], result)] == [GLOBAL_BATCH] * 3

    ours, theirs = (json.loads((project / place / "history.json").read_text()) for place in ("here", "there"))
    # A tie that is broken otherwise, after sums in another order, changes late losses by up to 3e-4 (measured).
    for name in ("loss", "accuracy"):
        assert [epoch[name] for epoch in theirs["epochs"]] == pytest.approx(
            [epoch[name] for epoch in ours["epochs"]], rel=1e-3, abs=5e-3
        )
    # The curve of the report has all attempts, and repeats at most the steps since the last whole checkpoint.
    report = reported(machines, project)
    assert report["end"]["workers"] == kept
    columns = report["series"]["tasks"]["worker:0"]
    points = zip(columns["attempt"], columns["step"], columns["loss"], strict=True)
    known = [(attempt, step) for attempt, step, loss in points if step is not None and loss is not None]
    assert known == sorted(known) and {attempt for attempt, _ in known} == {1, 2, 3}
    # The curve has a point for each second, so the last point may be before the last step.
    assert EPOCHS // 2 * STEPS < known[-1][1] <= EPOCHS * STEPS
    for number, end in enumerate(result["history"], start=1):
        assert 0 < end["resumed_at"] <= end["position"] <= end["resumed_at"] + 2 * STEPS
        last = max(step for attempt, step in known if attempt == number)
        first = min(step for attempt, step in known if attempt == number + 1)
        assert end["resumed_at"] <= first <= last + 2 * STEPS
