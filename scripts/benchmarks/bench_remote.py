"""Measures the first step of the built-in program on three pretend machines, beside the same on one. Needs root.

    scripts/bench remote [--rounds 5] [--json FILE]

The machines are those of tests/e2e/hosts: namespaces of this machine with a real sshd, which share its cores. All three
import TensorFlow, which one machine does once. A run on one machine with `--start spawn` imports it three times, too,
and is also measured. A time counts from the command's start until all tasks have reported their first step. A planned
signal without an effect (--chaos, SIGCONT) lets them report it at once.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from functools import partial

from bench_pairs import bench
from hosts_run import HOSTS, HostsRun
from testbed import Testbed, reason_to_skip

AIM_S = 1.5
_PATIENCE_S = 300.0
_AT_FIRST_STEP = ("--chaos", "signal CONT worker:0 at step 1")
_PROGRAM = ("--epochs", "1", "--export", "none")


def first_step(machines: Testbed, hosts: str | None, start: str = "auto") -> float:
    """Seconds from the start of `orch up` to the first step of its slowest task. Without `hosts`: on one machine."""
    project = machines.shared / "project"
    project.mkdir()
    words = ("--workers", str(len(HOSTS)), "--checkpoint-dir", str(project / "checkpoints"), *_AT_FIRST_STEP)
    began = time.time()
    run = HostsRun.start(machines, project, *words, "--start", start, "--", *_PROGRAM, hosts=hosts)
    code = run.process.wait(_PATIENCE_S)
    steps: dict[str, float] = {}
    for event in run.events("task_progressed"):
        if event["progress"].get("step"):
            steps.setdefault(event["task"], event["at"] - began)
    if code != 0 or len(steps) != len(HOSTS):
        raise SystemExit(f"orch up ended with {code} after the first steps of {sorted(steps)}:\n{run.text}")
    run.clear()
    shutil.rmtree(project)
    return max(steps.values())


def main() -> None:
    if reason := reason_to_skip():
        raise SystemExit(reason)
    with (
        bench("remote", __doc__, rounds=5) as measured,
        closing(Testbed(measured.directory / "machines")) as machines,
    ):
        steps = measured.line("first step, 3 workers on 3 machines", "s", against="one machine")
        later = measured.line("later than on one machine", "s", AIM_S)
        as_often = measured.line("later than on one that imports as often", "s", AIM_S)
        there = partial(first_step, machines, ",".join(HOSTS))
        there()  # the hosts get the bundle
        measured.compare(steps, there, partial(first_step, machines, None))
        later.orch += [ours - theirs for ours, theirs in zip(steps.orch, steps.other, strict=True)]
        as_often.orch += [ours - first_step(machines, None, "spawn") for ours in steps.orch]


if __name__ == "__main__":
    main()
