"""Threads for each task, and the variables that set them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.job.cpu_budget import INTER_OP, INTRA_OP, Cores, cpu_budget, threads_each

TWO, EIGHT = Cores(2, 2), Cores(8, 8)
LIMITED = Cores(64, 64, 2.5, "/sys/fs/cgroup/box")


def test_task_gets_its_share_of_cores_rounded_up() -> None:
    rows = {(8, 2): 4, (8, 3): 3, (2, 4): 1, (0.5, 4): 1, (1.5, 1): 2, (64, 1): 64, (2.0, 2): 1}
    assert {(cores, tasks): threads_each(cores, tasks) for cores, tasks in rows} == rows
    for (cores, tasks), share in rows.items():
        assert cpu_budget(Cores(64, 64, cores), tasks, None, {}).share == share


def test_only_requested_threads_are_set_and_variables_of_the_user_stay() -> None:
    for cores in (TWO, EIGHT, LIMITED):
        assert cpu_budget(cores, 2, None, {}).env == {}
        assert cpu_budget(cores, 2, 6, {}).env == {INTRA_OP: "6", INTER_OP: "6"}
    budget = cpu_budget(TWO, 2, 6, {INTRA_OP: "1", "OMP_NUM_THREADS": "2", "HOME": "/"})
    assert (budget.env, budget.users) == ({INTER_OP: "6"}, (INTRA_OP, "OMP_NUM_THREADS"))
    rows = {
        "2 cores for 4 tasks: TensorFlow's own pools, of 2 threads each": cpu_budget(TWO, 4, None, {}),
        "a quota of 2.5 of 64 cores for 1 task: TF_NUM_INTRAOP_THREADS=3, TF_NUM_INTEROP_THREADS=3": (
            cpu_budget(LIMITED, 1, 3, {})
        ),
        "1 core for 1 task: TensorFlow's own pools, of 1 thread each; set already: TF_NUM_INTRAOP_THREADS": (
            cpu_budget(Cores(1, 1), 1, None, {INTRA_OP: "1"})
        ),
    }
    assert [str(budget) for budget in rows.values()] == [*rows]


@settings(deadline=None)
@given(
    allowed=st.integers(1, 1024),
    quota=st.none() | st.floats(0.01, 1024),
    tasks=st.integers(1, 512),
    asked=st.integers(1, 4096),
)
def test_cluster_always_has_enough_threads(allowed: int, quota: float | None, tasks: int, asked: int) -> None:
    """TensorFlow warns that a cluster can hang with fewer inter-op threads than workers + 1."""
    cores = Cores(allowed, allowed, quota)
    env = cpu_budget(cores, tasks, asked, {}).env
    assert int(env[INTER_OP]) >= tasks + 1
    assert all(int(value) >= 1 for value in env.values())
    assert threads_each(cores.usable, tasks) * tasks >= cores.usable
