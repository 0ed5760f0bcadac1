"""Runs one pass as training would and tells which worker saw which of the examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from worker.counted import counted
from worker.training.agreement import sum_over_workers
from worker.training.distribution import distributed_numbers
from worker.training.job import Job
from worker.training.report import say_by_name

# What travels between workers at once: each size is compiled anew.
_AT_ONCE = 1_000_000


def check_data(job: Job, strategy: Any) -> None:
    """Every worker of the cluster must call it: it says how many distinct examples this one saw, and on the chief what
    that comes to. What is wrong is said, and is no error: it may be meant so."""
    seen = count_seen(job, strategy)
    distinct = int(np.count_nonzero(seen))
    say_by_name(job.place, f"saw {counted(distinct, 'distinct example')} of {len(seen)}")
    together = np.concatenate(
        [
            sum_over_workers(strategy, job.place, list(seen[start : start + _AT_ONCE]))
            for start in range(0, len(seen), _AT_ONCE)
        ]
    )
    if job.place.is_chief:
        print(verdict(together.astype(np.int64), job.place.workers, off=job.auto_shard == "off"))


def count_seen(job: Job, strategy: Any) -> npt.NDArray[np.float64]:
    """How often each example came to this process in one pass, (examples,)."""
    seen = np.zeros(job.dataset.examples, np.float64)
    for step in distributed_numbers(job, strategy):
        for numbers in strategy.experimental_local_results(step):
            np.add.at(seen, numbers.numpy(), 1)
    return seen


def verdict(times: npt.NDArray[np.int64], workers: int, *, off: bool) -> str:
    """One line on how often each example was seen by all workers together."""
    examples, distinct = len(times), int(np.count_nonzero(times))
    start = f"together the workers saw {counted(distinct, 'distinct example')} of {examples}"
    if distinct == examples and (times == 1).all():
        return f"{start}: each exactly once"
    if off and workers > 1 and (times == workers).all():
        return f"{start}: each {workers} times, once by each worker, as --auto-shard off has it"
    found = [
        f"{count} {what}"
        for count, what in ((examples - distinct, "never"), (int((times > 1).sum()), "more than once"))
        if count
    ]
    return f"{start}: NOT each once, {' and '.join(found)}"
