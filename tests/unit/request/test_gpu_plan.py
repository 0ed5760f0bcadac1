"""The split of GPUs on simulated machines: equal shares, each GPU once, shared only when asked."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import JOB, changed
from spec_making import refusal

from orchestrator.core.job.choices import Communication, Strategy
from orchestrator.core.job.gpus import Gpu, GpuChoice, GpuInventory, GpuWay, parse_gpus, visible_names
from orchestrator.core.job.spec import RoleSettings
from orchestrator.core.job.strategy import Mesh, SettingMisfit, StrategyChoice
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS, WORKER, TaskRef
from orchestrator.core.plan.gpu_plan import GpuOptions, GpuPlan, plan_gpus
from orchestrator.core.plan.task_devices import gpu_plan_of

GIB = 1 << 30


def machine(count: int) -> GpuInventory:
    return GpuInventory(tuple(Gpu(str(i), f"GPU-{i}aaa", "Made-up", 16 * GIB) for i in range(count)))


def tasks(**roles: int) -> list[TaskRef]:
    return [TaskRef(type=role, index=index) for role, count in roles.items() for index in range(count)]


def split(
    gpus: str | None = None,
    count: int = 0,
    workers: int = 2,
    users: dict[str, str] | None = None,
    others: dict[str, int] | None = None,
    **request: object,
) -> GpuPlan:
    choice = None if gpus is None else parse_gpus(gpus)
    asked = GpuOptions(choice=choice, **request)  # type: ignore[arg-type]
    return plan_gpus(tasks(**{WORKER: workers, **(others or {})}), asked, machine(count), users or {})


def visible(plan: GpuPlan) -> str:
    """The CUDA_VISIBLE_DEVICES of all tasks in their order, "?" where there is none."""
    return " ".join(env.get("CUDA_VISIBLE_DEVICES", "?") for env in plan.env.values())


@given(st.integers(0, 16), st.integers(1, 8), st.sampled_from([None, "auto"]))
def test_auto_gives_equal_shares_and_no_gpu_twice(count: int, workers: int, gpus: str | None) -> None:
    plan = split(gpus, count, workers)
    if not count:
        assert not plan.shares
        assert all(not env for env in plan.env.values())
        return
    given_out = [name for share in plan.shares.values() for name in share]
    assert len({len(share) for share in plan.shares.values()}) == 1
    assert len(plan.shares) == workers
    assert len(set(given_out)) == len(given_out) == count // workers * workers
    assert not plan.is_shared
    # Unused GPUs give a notice.
    assert bool(plan.notes) == (len(given_out) < count)


@given(st.integers(1, 16), st.integers(1, 8), st.data())
def test_named_gpus_are_all_used_once_or_refused(count: int, workers: int, data: st.DataObject) -> None:
    machines = [str(index) for index in range(count)]
    names = data.draw(st.lists(st.sampled_from(machines), unique=True, min_size=1))
    if len(names) % workers:
        with pytest.raises(SettingMisfit, match="cannot be split equally") as refused:
            split(",".join(names), count, workers)
        assert refused.value.setting == "gpus"
        return
    plan = split(",".join(names), count, workers)
    assert [name for share in plan.shares.values() for name in share] == names
    assert not plan.is_shared


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 16))
def test_each_task_gets_the_asked_number_or_it_is_refused(each: int, workers: int, count: int) -> None:
    if each * workers > count:
        with pytest.raises(SettingMisfit, match="ask for fewer"):
            split(f"per-task {each}", count, workers)
        return
    shares = split(f"per-task {each}", count, workers).shares
    names = [name for share in shares.values() for name in share]
    assert {len(share) for share in shares.values()} == {each}
    assert len(set(names)) == each * workers


MULTI_WORKER = Strategy.MULTI_WORKER_MIRRORED
NCCL = StrategyChoice(MULTI_WORKER, communication=Communication.NCCL)
SECOND, CPU = (StrategyChoice(Strategy.ONE_DEVICE, device=device) for device in ("GPU:1", "CPU:0"))
MESH = StrategyChoice(Strategy.DTENSOR, mesh=Mesh(2, 2))
REPLICAS = StrategyChoice(Strategy.MIRRORED, replicas=2)
SHOWN, POOL, HIDDEN = ({"CUDA_VISIBLE_DEVICES": names} for names in ("3,1", "MIG-1-2", ""))


def test_gpus_that_tasks_see() -> None:
    # --gpus, the number of GPUs and of workers, the rest of the request, and what the tasks see.
    table: list[tuple[str | None, int, int, dict[str, Any], str]] = [
        (None, 1, 2, {}, "-1 -1"),  # too few are not used unless asked
        ("none", 2, 2, {}, "-1 -1"),
        ("none", 0, 1, {}, "-1"),
        ("0,1", 2, 2, {"strategy": NCCL}, "0 1"),
        # An index keeps its meaning in the variable of the user, which limits the GPUs.
        (None, 4, 2, {"users": SHOWN}, "3 1"),
        (None, 4, 1, {"users": HIDDEN}, "?"),
        (None, 2, 2, {"set_by_user": frozenset({WORKER})}, "? ?"),
        # Names of MIG are not checked.
        ("MIG-1-2,MIG-3-4", 1, 2, {}, "MIG-1-2 MIG-3-4"),
        (None, 1, 1, {"users": POOL}, "MIG-1-2"),
        # Only computing roles get GPUs. A chief without parameter servers trains, like the workers.
        (None, 2, 2, {"others": {CHIEF: 1, PS: 1, EVALUATOR: 1}}, "0 1 -1 -1 -1"),
        (None, 3, 2, {"others": {CHIEF: 1}}, "0 1 2"),
        (None, 0, 1, {"others": {PS: 1}}, "? -1"),
        # Logical CPUs and a CPU device hide the GPUs. The process sees those before its device.
        (None, 4, 1, {"strategy": REPLICAS}, "-1"),
        (None, 2, 1, {"strategy": CPU}, "-1"),
        (None, 2, 1, {"strategy": SECOND}, "0,1"),
        # A mesh needs a GPU for each device, or none.
        (None, 4, 2, {"strategy": MESH}, "0,1 2,3"),
        (None, 3, 2, {"strategy": MESH}, "-1 -1"),
    ]
    found = [visible(split(gpus, count, workers, **request)) for gpus, count, workers, request, _ in table]
    assert found == [seen for *_, seen in table]


def test_notes_of_a_split() -> None:
    too_few = "1 GPU for 2 tasks: none gets one, all train on the CPU; --gpus 0,0 shares it"
    assert split(None, 1, 2).notes == (too_few,)
    assert "which need 2 each" in split(None, 3, 2, strategy=MESH).notes[0]
    useless = split(None, 0, 1, memory="grow").notes
    assert useless == ("--gpu-memory: no task sees a GPU, so it changes nothing",)


def test_gpu_named_twice_is_shared_with_a_notice() -> None:
    plan = split("0,0", 1, 2, strategy=StrategyChoice(MULTI_WORKER))
    assert visible(plan) == "0 0" and plan.is_shared
    # Without it, the first task would allocate all memory.
    assert all(env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true" for env in plan.env.values())
    assert "GPU 0 is shared by worker:0 and worker:1" in plan.notes[0]
    assert "communication is ring" in plan.notes[1]
    assert split("0,GPU-0", 1, 2).is_shared


def test_refused_splits() -> None:
    # --gpus, the number of GPUs and of workers, the rest of the request, and what the refusal says.
    table: list[tuple[str | None, int, int, dict[str, Any], str]] = [
        ("0", 0, 1, {}, "this machine has no NVIDIA GPU"),
        ("per-task 1", 0, 1, {}, "this machine has no NVIDIA GPU"),
        ("0", 1, 2, {}, "too few; to share on purpose .* --gpus 0,0"),
        ("0,0,1,1", 2, 2, {}, "worker:0 would see one GPU twice"),
        ("0,0", 1, 2, {"strategy": NCCL}, "NCCL refuses two processes on one GPU.*share GPU 0.*ring"),
        (None, 0, 2, {"strategy": NCCL}, "NCCL sums on GPUs, and worker:0 has none: .* no NVIDIA GPU"),
        ("none", 2, 2, {"strategy": NCCL}, "worker:0 sees none"),
        ("0,1", 4, 2, {"users": SHOWN}, "GPU 0 is hidden by your CUDA_VISIBLE_DEVICES, which shows 3,1"),
        ("MIG-9", 1, 1, {"users": POOL}, "there is no GPU MIG-9"),
        ("0,0", 1, 2, {"memory": 10 * GIB}, "2 tasks share GPU 0: .* ask for 8,589,934,592 or less"),
        ("0", 2, 1, {"strategy": SECOND}, "there is no GPU:1: the process sees 1 GPU"),
        ("0,1", 4, 2, {"strategy": MESH}, "needs 2 GPUs each, and worker:0 would see 1; name 4"),
    ]
    for gpus, count, workers, request, says in table:
        assert re.search(says, refusal(split, gpus, count, workers, **request)), (gpus, count, workers)


def test_role_can_have_its_own_gpus() -> None:
    plan = split(None, 4, 2, others={EVALUATOR: 1, PS: 1}, by_role={EVALUATOR: parse_gpus("0")})
    assert plan.shares["evaluator:0"] == ("0",)
    assert plan.shares["worker:0"] == ("1",)
    assert plan.notes == ("3 GPUs for 2 tasks: 1 each; GPU 3 stays unused",)
    plan = split("1,2", 4, 2, others={PS: 1}, by_role={PS: parse_gpus("per-task 1")})
    assert plan.shares == {"worker:0": ("1",), "worker:1": ("2",), "ps:0": ("0",)}
    # Roles with auto split the rest together.
    plan = split(None, 3, 2, others={EVALUATOR: 1}, by_role={EVALUATOR: parse_gpus("auto")})
    assert plan.shares == {"worker:0": ("0",), "worker:1": ("1",), "evaluator:0": ("2",)}


def test_memory_and_order_are_set() -> None:
    env = split("0,1", 2, 2, memory=4 * GIB).env["worker:0"]
    assert env["ORCH_GPU_MEMORY"] == str(4 * GIB)
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in env
    grow = split("0,1", 2, 2, memory="grow").env["worker:0"]
    assert (grow["ORCH_GPU_MEMORY"], grow["TF_FORCE_GPU_ALLOW_GROWTH"]) == ("grow", "true")
    kept = split("0,1", 2, 2, memory="grow", users={"TF_FORCE_GPU_ALLOW_GROWTH": "false"}).env["worker:0"]
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in kept
    # The indices of the user's variable are those of CUDA's own order.
    assert split(None, 4, 2).env["worker:0"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in split(None, 4, 2, users=SHOWN).env["worker:0"]
    with pytest.raises(SettingMisfit, match="compute on the CPU") as refused:
        split("0,1", 4, 1, strategy=REPLICAS)
    assert refused.value.setting == "replicas"


def test_gpu_choice_is_read() -> None:
    table = {
        "auto": GpuChoice(GpuWay.AUTO),
        " NONE ": GpuChoice(GpuWay.NONE),
        "0, 01": GpuChoice(GpuWay.NAMED, ("0", "1")),
        "MIG-GPU-1a/2/0": GpuChoice(GpuWay.NAMED, ("MIG-GPU-1a/2/0",)),
        "per-task 2": GpuChoice(GpuWay.PER_TASK, each=2),
        "per-task=2": GpuChoice(GpuWay.PER_TASK, each=2),
    }
    assert {text: parse_gpus(text) for text in table} == table
    assert {text: parse_gpus(str(choice)) for text, choice in table.items()} == table


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    try:
        parse_gpus(text)
    except ValueError as error:
        assert "write" in str(error) or "did you mean" in str(error)


def test_cuda_list_ends_at_the_first_invalid_name() -> None:
    assert visible_names("0,1,-1,2") == ("0", "1")
    assert visible_names("") == visible_names("-1") == visible_names("NoDevFiles") == ()


def test_role_whose_environment_names_gpus_is_not_changed() -> None:
    own = {WORKER: RoleSettings(env={"CUDA_VISIBLE_DEVICES": "1"})}
    spec = changed(JOB, roles={WORKER: 1, CHIEF: 1}, role_settings=own, gpu_inventory=machine(2))
    assert visible(gpu_plan_of(spec, {})) == "? 0,1"
