"""The plan: command, environment and addresses of each task."""

from __future__ import annotations

import json
import subprocess
from collections.abc import MutableMapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_making import MakeSpec

from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.cpu_budget import INTER_OP, Cores
from orchestrator.core.job.gpus import Gpu, GpuInventory, parse_gpus
from orchestrator.core.job.hosts import parse_hosts
from orchestrator.core.job.roles import MOST_TASKS
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import Mesh, SettingMisfit, StrategyChoice
from orchestrator.core.job.tf_config import ROLES, SINGLE_ROLES, TFConfigTooLong
from orchestrator.core.plan.places import HostFacts, TaskPlace, local_places
from orchestrator.core.plan.plan import HoldMode, RunPlan, build_plan, hold_mode, planned_tasks
from orchestrator.core.state.events import AttemptPlanned, event_line
from orchestrator.store.runs.paths import RunPaths
from worker.agent.task_process import Cluster

LAYOUT = RunPaths(Path("/state/job-1"))
ADDRESSES = ("127.0.0.1:5000", "127.0.0.1:5001")


def plan_of(spec: JobSpec, **environ: str) -> RunPlan:
    return build_plan(spec, local_places(ADDRESSES), LAYOUT, 1, environ)


def test_environment_and_files_of_a_task(make_spec: MakeSpec) -> None:
    spec = make_spec(env={"MINE": "1"})
    plan = build_plan(spec, local_places(ADDRESSES), LAYOUT, 3, {})
    task = plan.tasks[1]
    assert (plan.run_id, plan.attempt, plan.hold_mode) == ("job-1", 3, HoldMode.REUSE_PORT)
    assert (str(task.task), task.address, task.argv) == ("worker:1", ADDRESSES[1], spec.command.argv)
    assert (task.cwd, task.serves) == (Path("/somewhere"), True)
    assert (task.log, task.scratch) == (LAYOUT.task_log("worker:1"), LAYOUT.task_scratch("worker:1"))
    tf_config = {"cluster": {"worker": list(ADDRESSES)}, "task": {"type": "worker", "index": 1}}
    assert plan.tf_config_of(task.task).as_dict() == tf_config
    assert dict(task.env) == {
        "ORCH_TASK": "worker:1",
        "ORCH_SCRATCH_DIR": "/state/job-1/scratch/worker-1",
        "ORCH_RUN_ID": "job-1",
        "ORCH_RUN_DIR": "/state/job-1",
        "ORCH_ATTEMPT": "3",
        "ORCH_DEPTH": "1",
        "ORCH_CHECKPOINT_DIR": "/state/job-1/checkpoints",
        "PYTHONUNBUFFERED": "1",
        "TF_GRPC_REUSE_PORT": "1",
        "MINE": "1",
        "no_proxy": "localhost,127.0.0.1",
        "NO_PROXY": "localhost,127.0.0.1",
    }


def test_tasks_differ_only_in_their_own_variables(make_spec: MakeSpec) -> None:
    first, second = plan_of(make_spec()).tasks
    different = {name for name in first.env if first.env[name] != second.env[name]}
    assert different == {"ORCH_TASK", "ORCH_SCRATCH_DIR"}


def test_checkpoint_dir_of_the_user_is_used(make_spec: MakeSpec) -> None:
    assert plan_of(make_spec(checkpoint_dir=Path("/ck"))).tasks[0].env["ORCH_CHECKPOINT_DIR"] == "/ck"


@pytest.mark.parametrize("where", ["environ", "env"])
def test_variables_of_the_user_are_kept(make_spec: MakeSpec, where: str) -> None:
    users = {"PYTHONUNBUFFERED": "", "TF_GRPC_REUSE_PORT": "0"}
    if where == "environ":
        env = plan_of(make_spec(), **users).tasks[0].env
        assert not users.keys() & env.keys()
    else:
        env = plan_of(make_spec(env=users)).tasks[0].env
        assert {name: env[name] for name in users} == users


@pytest.mark.parametrize(
    ("environ", "env", "mode"),
    [
        (None, None, HoldMode.REUSE_PORT),
        ("0", None, HoldMode.REUSE_ADDR),
        ("false", None, HoldMode.REUSE_ADDR),
        ("", None, HoldMode.REUSE_ADDR),
        ("1", None, HoldMode.REUSE_PORT),
        ("True", None, HoldMode.REUSE_PORT),
        ("0", "1", HoldMode.REUSE_PORT),
        ("1", "0", HoldMode.REUSE_ADDR),
    ],
)
def test_hold_mode_matches_tensorflow(
    make_spec: MakeSpec, environ: str | None, env: str | None, mode: HoldMode
) -> None:
    spec = make_spec(env={} if env is None else {"TF_GRPC_REUSE_PORT": env})
    assert hold_mode(spec, {} if environ is None else {"TF_GRPC_REUSE_PORT": environ}) is mode


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"no_proxy": "localhost,127.0.0.1", "NO_PROXY": "localhost,127.0.0.1"}),
        ({"no_proxy": "a.b"}, {"no_proxy": "a.b,localhost,127.0.0.1", "NO_PROXY": "a.b,localhost,127.0.0.1"}),
        (
            {"NO_PROXY": "a.b, localhost"},
            {"no_proxy": "a.b,localhost,127.0.0.1", "NO_PROXY": "a.b,localhost,127.0.0.1"},
        ),
        ({"no_proxy": "*"}, {"no_proxy": "*", "NO_PROXY": "*", "no_grpc_proxy": "localhost,127.0.0.1"}),
        (
            {"no_grpc_proxy": "x"},
            {
                "no_proxy": "localhost,127.0.0.1",
                "NO_PROXY": "localhost,127.0.0.1",
                "no_grpc_proxy": "x,localhost,127.0.0.1",
            },
        ),
        (
            {"no_proxy": "\udcff,a"},
            {"no_proxy": "a,localhost,127.0.0.1", "NO_PROXY": "a,localhost,127.0.0.1"},
        ),
    ],
)
def test_local_addresses_are_excluded_from_the_proxy(
    make_spec: MakeSpec, environ: dict[str, str], expected: dict[str, str]
) -> None:
    env = plan_of(make_spec(), **environ).tasks[0].env
    assert {name: value for name, value in env.items() if "proxy" in name.lower()} == expected


def test_no_proxy_of_the_user_is_extended(make_spec: MakeSpec) -> None:
    env = plan_of(make_spec(env={"no_proxy": "mine"}), no_proxy="ambient").tasks[0].env
    assert env["no_proxy"] == env["NO_PROXY"] == "mine,localhost,127.0.0.1"


def test_plan_is_frozen(make_spec: MakeSpec) -> None:
    plan = plan_of(make_spec())
    with pytest.raises(FrozenInstanceError):
        plan.attempt = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        plan.tasks[0].argv = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        cast(MutableMapping[str, str], plan.tasks[0].env)["A"] = "1"


def test_environment_of_the_process_is_not_changed(make_spec: MakeSpec) -> None:
    environ = {"no_proxy": "a"}
    build_plan(make_spec(), local_places(ADDRESSES), LAYOUT, 1, environ)
    assert environ == {"no_proxy": "a"}


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (("127.0.0.1:5000",), "2 tasks need as many addresses, not 1"),
        (("127.0.0.1:5000", "127.0.0.1:5000"), "is given twice: to worker:0 and worker:1"),
        (("127.0.0.1:5000", "127.0.0.1:0"), "port must be 1 to 65535"),
    ],
)
def test_wrong_addresses_are_refused(make_spec: MakeSpec, addresses: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_plan(make_spec(), local_places(addresses), LAYOUT, 1, {})


def test_planned_tasks_are_masked(make_spec: MakeSpec) -> None:
    plan = plan_of(make_spec(env={"MY_TOKEN": "abc", "PLAIN": "seen"}))
    planned = planned_tasks(plan, LAYOUT)
    assert [task.task for task in planned] == ["worker:0", "worker:1"]
    assert (planned[0].env["MY_TOKEN"], planned[0].env["PLAIN"]) == ("***", "seen")
    assert plan.tasks[0].env["MY_TOKEN"] == "abc"
    assert (planned[1].address, planned[1].log, planned[1].index) == (
        ADDRESSES[1],
        "/state/job-1/logs/worker-1.log",
        1,
    )


@given(st.dictionaries(st.sampled_from(ROLES), st.integers(1, 5), min_size=1))
def test_every_task_is_in_its_tf_config(roles: dict[str, int]) -> None:
    """The agent makes the same text of the addresses, which it gets once."""
    roles = {role: 1 if role in SINGLE_ROLES else count for role, count in roles.items()}
    roles = {**roles, "worker": roles.get("worker", 1)}
    spec = JobSpec.model_validate(
        {
            "roles": roles,
            "name": "job",
            "command": {"kind": "executable", "words": ["x"], "argv": ["/x"], "serves": False},
            "directory": "/somewhere",
            "cwd": "/somewhere",
        }
    )
    addresses = [f"127.0.0.1:{1000 + number}" for number in range(len(spec.tasks))]
    plan = build_plan(spec, local_places(addresses), LAYOUT, 1, {})
    cluster = Cluster(json.loads(json.dumps(plan.cluster.addresses)))
    for task, address in zip(plan.tasks, addresses, strict=True):
        text = plan.tf_config_of(task.task).to_json()
        assert text == cluster.tf_config(task.task.type, task.task.index)
        config = json.loads(text)
        assert config["cluster"][config["task"]["type"]][config["task"]["index"]] == task.address == address
        assert ("evaluator" in config["cluster"]) == (task.task.type == "evaluator")


def test_plan_grows_linearly(make_spec: MakeSpec) -> None:
    few, many = (len(_planned_event(make_spec, tasks)) for tasks in (50, 500))
    assert many < 11 * few


def _planned_event(make_spec: MakeSpec, tasks: int) -> bytes:
    addresses = [f"127.0.0.1:{10_000 + number}" for number in range(tasks)]
    plan = build_plan(make_spec(roles={"worker": tasks}), local_places(addresses), LAYOUT, 1, {})
    planned, cluster = planned_tasks(plan, LAYOUT), plan.cluster.addresses
    return event_line(AttemptPlanned(at=0, mono=0, attempt=1, tasks=planned, cluster=cluster))


def test_tf_config_longer_than_a_variable_is_refused_with_its_length(make_spec: MakeSpec) -> None:
    spec = make_spec(roles={"worker": MOST_TASKS})
    longest = [f"255.255.{number >> 8}.{number & 255}:65535" for number in range(MOST_TASKS)]
    assert len(build_plan(spec, local_places(longest), LAYOUT, 1, {}).tasks) == MOST_TASKS
    ipv6 = [f"[fd00:1111:2222:3333:4444:5555:6666:{number:04x}]:65535" for number in range(MOST_TASKS)]
    with pytest.raises(
        TFConfigTooLong, match=r"TF_CONFIG of 4,000 tasks has 20\d,\d{3} bytes, and Linux"
    ) as refused:
        build_plan(spec, local_places(ipv6), LAYOUT, 1, {})
    fewer = int(str(refused.value).rpartition("about ")[2].replace(",", ""))
    plan = build_plan(make_spec(roles={"worker": fewer}), local_places(ipv6[:fewer]), LAYOUT, 1, {})
    text = plan.tf_config_of(plan.tasks[-1].task).to_json()
    assert subprocess.run(["/bin/true"], env={"TF_CONFIG": text}, check=False).returncode == 0


# -- several hosts


def test_tasks_on_hosts_have_paths_and_addresses_of_their_hosts(make_spec: MakeSpec) -> None:
    python = make_spec().command.model_copy(update={"interpreter": ("/usr/bin/python3",)})
    spec = make_spec(hosts=parse_hosts("a:1,b:1"), command=python)
    theirs = {host: RunPaths(Path(f"/run/{host}/job-1")) for host in "ab"}
    places = [TaskPlace(host, f"10.0.0.{at}:5000", theirs[host]) for at, host in enumerate("ab")]
    cores = {"a": Cores(machine=8, allowed=8), "b": Cores(machine=64, allowed=64, quota=4.0)}
    facts = {host: HostFacts(address="10.0.0.1", cores=cores[host]) for host in "ab"}
    plan = build_plan(spec, places, LAYOUT, 1, {}, facts)
    first, second = plan.tasks
    assert (first.host, first.log) == ("a", Path("/run/a/job-1/logs/worker-0.log"))
    assert second.env["ORCH_SCRATCH_DIR"] == "/run/b/job-1/scratch/worker-1"
    assert second.env["ORCH_RUN_DIR"] == "/run/b/job-1" and second.env["ORCH_RUN_ID"] == "job-1"
    assert second.bootstrap is not None
    assert second.bootstrap["exception_file"] == str(theirs["b"].task_exception("worker:1"))
    assert plan.tf_config_of(first.task).cluster.addresses == {"worker": ("10.0.0.0:5000", "10.0.0.1:5000")}
    assert [(task.host, task.log) for task in planned_tasks(plan, LAYOUT)] == [
        ("a", "/state/job-1/logs/worker-0.log"),
        ("b", "/state/job-1/logs/worker-1.log"),
    ]
    assert {host: budget.share for host, budget in plan.budgets.items()} == {"a": 8, "b": 4}


def test_each_host_splits_its_own_gpus(make_spec: MakeSpec) -> None:
    spec = make_spec(roles={"worker": 4}, hosts=parse_hosts("a:1,b:2,c:1"), gpus=None)
    places = [TaskPlace(host, f"10.0.0.{at}:5000") for at, host in enumerate("abbc")]
    one_core = Cores(machine=1, allowed=1)
    gpus = {"a": 1, "b": 4}
    facts = {
        host: HostFacts("10.0.0.1", one_core, gpus=GpuInventory(tuple(Gpu(str(at)) for at in range(count))))
        for host, count in gpus.items()
    }
    plan = build_plan(spec, places, LAYOUT, 1, {"CUDA_VISIBLE_DEVICES": "3"}, facts)
    assert plan.gpus.shares == {"worker:0": ("0",), "worker:1": ("0", "1"), "worker:2": ("2", "3")}
    assert "CUDA_VISIBLE_DEVICES" not in plan.tasks[3].env
    named = make_spec(roles={"worker": 4}, hosts=spec.hosts, gpus=parse_gpus("per-task 2"))
    with pytest.raises(SettingMisfit, match=r"^a: "):
        build_plan(named, places, LAYOUT, 1, {}, facts)


def test_gpus_of_a_mesh_are_counted_over_all_hosts(make_spec: MakeSpec) -> None:
    mesh = StrategyChoice(strategy=Strategy.DTENSOR, mesh=Mesh(batch=4, model=1))
    spec = make_spec(hosts=parse_hosts("a:1,b:1"), strategy=mesh)
    places = [TaskPlace(host, f"10.0.0.{at}:5000") for at, host in enumerate("ab")]
    inventory = GpuInventory((Gpu("0"), Gpu("1")))
    facts = {host: HostFacts("10.0.0.1", Cores(machine=1, allowed=1), gpus=inventory) for host in "ab"}
    plan = build_plan(spec, places, LAYOUT, 1, {}, facts)
    assert plan.gpus.shares == {"worker:0": ("0", "1"), "worker:1": ("0", "1")}
    assert not plan.gpus.is_shared and plan.tasks[1].env["DTENSOR_JOBS"] == "10.0.0.0:5000,10.0.0.1:5000"


def test_threads_of_a_cluster_on_several_hosts(make_spec: MakeSpec) -> None:
    spec = make_spec(roles={"worker": 4}, hosts=parse_hosts("a,b"), threads=1)
    places = [TaskPlace(host, f"10.0.0.{at}:5000") for at, host in enumerate("aabb")]
    plan = build_plan(spec, places, LAYOUT, 1, {})
    assert {task.env[INTER_OP] for task in plan.tasks} == {"5"} and not plan.budgets


@pytest.mark.parametrize(
    ("planned", "addresses", "expected"),
    [
        ("localhost", ["127.0.0.1:1", "127.0.0.1:2"], None),
        ("localhost", ["10.0.0.1:1", "10.0.0.1:2", "[fd00::1]:1"], "localhost,10.0.0.1,fd00::1"),
        ("*", ["10.0.0.1:1"], None),
        ("", ["10.0.0.1:1"], None),
    ],
)
def test_cluster_on_several_hosts_is_reached_without_a_proxy(
    planned: str, addresses: list[str], expected: str | None
) -> None:
    env = Cluster({"worker": addresses}).env("worker", 0, {"no_proxy": planned})
    assert (env.get("no_proxy"), "NO_PROXY" in env) == (expected, False)
