"""The plan: command, environment and addresses of each task, the preloader, and the bootstrap."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_making import Load, make_spec, refusal

from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.cpu_budget import INTER_OP, INTRA_OP, VARIABLES, Cores
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.job.gpus import Gpu, GpuInventory, parse_gpus
from orchestrator.core.job.hosts import parse_hosts
from orchestrator.core.job.roles import MOST_TASKS
from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.core.job.start_method import StartMethod
from orchestrator.core.job.strategy import Mesh, SettingMisfit, StrategyChoice
from orchestrator.core.job.tf_config import ROLES, SINGLE_ROLES, TFConfigTooLong
from orchestrator.core.plan.places import HostFacts, TaskPlace, local_places
from orchestrator.core.plan.plan import (
    RunPlan,
    build_plan,
    hold_mode,
    planned_tasks,
    preload_order,
    takes_bootstrap,
)
from orchestrator.core.state.events import AttemptPlanned, event_line
from orchestrator.store.runs.paths import RunPaths
from worker.agent.task_start import Cluster

LAYOUT = RunPaths(Path("/state/job-1"))
ADDRESSES = ("127.0.0.1:5000", "127.0.0.1:5001")
PYTHON = "/usr/bin/python3"
FORK = StartMethod(fork=True, reason="", modules=("tensorflow", "keras"))


def plan_of(
    spec: JobSpec, addresses: tuple[str, ...] = ADDRESSES, /, attempt: int = 1, **environ: str
) -> RunPlan:
    return build_plan(spec, local_places(addresses), LAYOUT, attempt, environ)


def env_of(spec: JobSpec, task: int = 0, **environ: str) -> dict[str, str]:
    addresses = tuple(f"127.0.0.1:{10_001 + number}" for number in range(len(spec.tasks)))
    return dict(plan_of(spec, addresses, **environ).tasks[task].order.env)


def test_environment_and_files_of_a_task() -> None:
    spec = make_spec(env={"MINE": "1"})
    plan = plan_of(spec, attempt=3)
    task = plan.tasks[1]
    assert (plan.run_id, plan.attempt, plan.hold_mode) == ("job-1", 3, "reuse_port")
    assert (str(task.task), task.address, task.order.argv) == ("worker:1", ADDRESSES[1], spec.command.argv)
    assert (task.order.cwd, task.order.serves) == ("/somewhere", True)
    assert (task.order.log, task.order.port) == (str(LAYOUT.task_log("worker:1")), 5001)
    tf_config = {"cluster": {"worker": list(ADDRESSES)}, "task": {"type": "worker", "index": 1}}
    assert plan.tf_config_of(task.task).as_dict() == tf_config
    assert dict(task.order.env) == {
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
    first = plan.tasks[0]
    different = {name for name in first.order.env if first.order.env[name] != task.order.env[name]}
    assert different == {"ORCH_TASK", "ORCH_SCRATCH_DIR"}
    assert env_of(make_spec(checkpoint_dir=Path("/ck")))["ORCH_CHECKPOINT_DIR"] == "/ck"


def test_variables_of_the_user_are_kept() -> None:
    users = {"PYTHONUNBUFFERED": "", "TF_GRPC_REUSE_PORT": "0"}
    assert not users.keys() & env_of(make_spec(), **users).keys()
    env = env_of(make_spec(env=users))
    assert {name: env[name] for name in users} == users


def test_hold_mode_matches_tensorflow() -> None:
    def mode(value: str | None, own: str | None = None) -> str:
        environ, env = ({} if each is None else {"TF_GRPC_REUSE_PORT": each} for each in (value, own))
        return hold_mode(make_spec(env=env), environ)

    assert {mode(None), mode("1"), mode("True"), mode("0", "1")} == {"reuse_port"}
    assert {mode("0"), mode("false"), mode(""), mode("1", "0")} == {"reuse_addr"}


def test_local_addresses_are_excluded_from_the_proxy() -> None:
    def both(value: str, **others: str) -> dict[str, str]:
        return {"no_proxy": value, "NO_PROXY": value, **others}

    own = "localhost,127.0.0.1"
    table: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, both(own)),
        ({"no_proxy": "a.b"}, both(f"a.b,{own}")),
        ({"NO_PROXY": "a.b, localhost"}, both(f"a.b,{own}")),
        ({"no_proxy": "*"}, both("*", no_grpc_proxy=own)),
        ({"no_grpc_proxy": "x"}, both(own, no_grpc_proxy=f"x,{own}")),
        ({"no_proxy": "\udcff,a"}, both(f"a,{own}")),
    ]
    for environ, expected in table:
        before = dict(environ)
        env = build_plan(make_spec(), local_places(ADDRESSES), LAYOUT, 1, environ).tasks[0].order.env
        assert {name: value for name, value in env.items() if "proxy" in name.lower()} == expected, environ
        assert environ == before
    env = env_of(make_spec(env={"no_proxy": "mine"}), no_proxy="ambient")
    assert env["no_proxy"] == env["NO_PROXY"] == f"mine,{own}"


def test_wrong_addresses_are_refused() -> None:
    table = {
        ADDRESSES[:1]: "2 tasks need as many addresses, not 1",
        ADDRESSES[:1] * 2: "is given twice: to worker:0 and worker:1",
        (ADDRESSES[0], "127.0.0.1:0"): "port must be 1 to 65535",
    }
    for addresses, message in table.items():
        assert message in refusal(plan_of, make_spec(), addresses), addresses


def test_planned_tasks_are_masked() -> None:
    plan = plan_of(make_spec(env={"MY_TOKEN": "abc", "PLAIN": "seen"}))
    planned = planned_tasks(plan, LAYOUT)
    assert [task.task for task in planned] == ["worker:0", "worker:1"]
    assert (planned[0].env["MY_TOKEN"], planned[0].env["PLAIN"]) == ("***", "seen")
    assert plan.tasks[0].order.env["MY_TOKEN"] == "abc"
    found = (planned[1].address, planned[1].log, planned[1].index)
    assert found == (ADDRESSES[1], "/state/job-1/logs/worker-1.log", 1)


@given(st.dictionaries(st.sampled_from(ROLES), st.integers(1, 5), min_size=1))
def test_every_task_is_in_its_tf_config(roles: dict[str, int]) -> None:
    """The agent makes the same text of the addresses, which it gets once."""
    roles = {role: 1 if role in SINGLE_ROLES else count for role, count in roles.items()}
    spec = make_spec(roles={**roles, "worker": roles.get("worker", 1)})
    addresses = tuple(f"127.0.0.1:{1000 + number}" for number in range(len(spec.tasks)))
    plan = plan_of(spec, addresses)
    cluster = Cluster(json.loads(json.dumps(plan.cluster.addresses)))
    for task, address in zip(plan.tasks, addresses, strict=True):
        text = plan.tf_config_of(task.task).to_json()
        assert text == cluster.tf_config(task.task.type, task.task.index)
        config = json.loads(text)
        assert config["cluster"][config["task"]["type"]][config["task"]["index"]] == task.address == address
        assert ("evaluator" in config["cluster"]) == (task.task.type == "evaluator")


def test_plan_grows_linearly() -> None:
    def event(tasks: int) -> bytes:
        addresses = tuple(f"127.0.0.1:{10_000 + number}" for number in range(tasks))
        plan = plan_of(make_spec(roles={"worker": tasks}), addresses)
        planned, cluster = planned_tasks(plan, LAYOUT), plan.cluster.addresses
        return event_line(AttemptPlanned(at=0, mono=0, attempt=1, tasks=planned, cluster=cluster))

    assert len(event(500)) < 11 * len(event(50))


def test_tf_config_longer_than_a_variable_is_refused_with_its_length() -> None:
    spec = make_spec(roles={"worker": MOST_TASKS})
    longest = tuple(f"255.255.{number >> 8}.{number & 255}:65535" for number in range(MOST_TASKS))
    assert len(plan_of(spec, longest).tasks) == MOST_TASKS
    ipv6 = tuple(f"[fd00:1111:2222:3333:4444:5555:6666:{number:04x}]:65535" for number in range(MOST_TASKS))
    message = r"TF_CONFIG of 4,000 tasks has 20\d,\d{3} bytes, and Linux"
    with pytest.raises(TFConfigTooLong, match=message) as refused:
        plan_of(spec, ipv6)
    fewer = int(str(refused.value).rpartition("about ")[2].replace(",", ""))
    plan = plan_of(make_spec(roles={"worker": fewer}), ipv6[:fewer])
    text = plan.tf_config_of(plan.tasks[-1].task).to_json()
    assert subprocess.run(["/bin/true"], env={"TF_CONFIG": text}, check=False).returncode == 0


# -- variables of options


def test_threads_are_the_variables_of_tensorflow() -> None:
    def threads(spec: JobSpec, **environ: str) -> dict[str, str]:
        env = env_of(spec, **environ)
        return {name: env[name] for name in VARIABLES if name in env}

    assert threads(make_spec(threads=3, cores=Cores(8, 8))) == {INTRA_OP: "3", INTER_OP: "3"}
    assert threads(make_spec(cores=Cores(8, 8))) == {}
    # Inherited variables and those of --env are kept.
    own = make_spec(threads=3, env={INTER_OP: "9"})
    assert threads(own, **{INTRA_OP: "7"}) == {INTER_OP: "9"}
    assert plan_of(own, **{INTRA_OP: "7"}).budgets[None].users == (INTRA_OP, INTER_OP)


def test_steps_of_planned_faults_reach_the_tasks() -> None:
    faults = parse_chaos("kill 0 at step 50; kill 1 at step 20; kill 1 at epoch 2; stop 1 at step 20")
    plan = plan_of(make_spec(chaos=faults))
    assert [task.order.env["ORCH_PROGRESS_AT"] for task in plan.tasks] == ["20,50", "20,50"]
    assert "ORCH_PROGRESS_AT" not in env_of(make_spec(chaos=faults[2:3]))


STRATEGY_VARIABLES = ("ORCH_STRATEGY", "ORCH_RE", "ORCH_MESH", "ORCH_TPU", "CUDA", "DTENSOR", "TPU")


def test_tasks_get_the_given_options_of_the_strategy_only(load_here: Load) -> None:
    def found(task: int = 0, environ: dict[str, str] | None = None, **flags: Any) -> dict[str, str]:
        env = env_of(load_here(**flags).spec, task, **(environ or {}))
        return {name: env[name] for name in env if name.startswith(STRATEGY_VARIABLES)}

    mirrored = {"ORCH_STRATEGY": "mirrored", "ORCH_REPLICAS": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    assert found(strategy="mirrored", replicas="2") == mirrored
    assert found() == {}
    assert found(1, mesh="batch=2,model=2", workers="2") == {
        "ORCH_STRATEGY": "dtensor",
        "ORCH_MESH": "batch=2,model=2",
        "DTENSOR_CLIENT_ID": "1",
        "DTENSOR_NUM_CLIENTS": "2",
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": "127.0.0.1:10001,127.0.0.1:10002",
    }
    named = found(environ={"TPU_NAME": "another"}, strategy="tpu", tpu="mine")
    assert (named["ORCH_TPU"], named["TPU_NAME"]) == ("mine", "mine")
    assert "TPU_NAME" not in found(strategy="tpu", tpu="local")
    assert found(gpus="none", env=["CUDA_VISIBLE_DEVICES=5"]) == {"CUDA_VISIBLE_DEVICES": "5"}


def test_variables_of_an_outer_run_are_emptied(load_here: Load) -> None:
    outer = {
        "ORCH_RUN_ID": "outer",
        "ORCH_STRATEGY": "dtensor",
        "ORCH_MESH": "batch=4",
        "DTENSOR_JOBS": "a:1",
        "ORCH_TENSORBOARD_DIR": "/outer/tensorboard",
    }
    spec = load_here(environ=outer).spec
    assert spec.strategy.strategy is None
    env = env_of(spec, **outer)
    assert (env["ORCH_STRATEGY"], env["ORCH_MESH"], env["ORCH_TENSORBOARD_DIR"]) == ("", "", "")
    assert (env["DTENSOR_JOBS"], env["DTENSOR_CLIENT_ID"]) == ("", "0")


def test_strategy_of_one_process_starts_no_server(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow\n")
    assert load_here(command=["train.py"]).spec.serves("worker")
    assert not load_here(command=["train.py"], strategy="mirrored").spec.serves("worker")


# -- several hosts


def test_tasks_on_hosts_have_paths_and_addresses_of_their_hosts() -> None:
    python = make_spec().command.model_copy(update={"interpreter": (PYTHON,)})
    spec = make_spec(hosts=parse_hosts("a:1,b:1"), command=python)
    theirs = {host: RunPaths(Path(f"/run/{host}/job-1")) for host in "ab"}
    places = [TaskPlace(host, f"10.0.0.{at}:5000", theirs[host]) for at, host in enumerate("ab")]
    cores = {"a": Cores(machine=8, allowed=8), "b": Cores(machine=64, allowed=64, quota=4.0)}
    facts = {host: HostFacts(address="10.0.0.1", cores=cores[host]) for host in "ab"}
    plan = build_plan(spec, places, LAYOUT, 1, {}, facts)
    first, second = plan.tasks
    assert (first.host, first.order.log) == ("a", "/run/a/job-1/logs/worker-0.log")
    assert second.order.env["ORCH_SCRATCH_DIR"] == second.order.scratch == "/run/b/job-1/scratch/worker-1"
    assert second.order.env["ORCH_RUN_DIR"] == "/run/b/job-1" and second.order.env["ORCH_RUN_ID"] == "job-1"
    assert second.order.bootstrap is not None
    assert second.order.bootstrap["exception_file"] == str(theirs["b"].task_exception("worker:1"))
    assert plan.tf_config_of(first.task).cluster.addresses == {"worker": ("10.0.0.0:5000", "10.0.0.1:5000")}
    assert [(task.host, task.log) for task in planned_tasks(plan, LAYOUT)] == [
        ("a", "/state/job-1/logs/worker-0.log"),
        ("b", "/state/job-1/logs/worker-1.log"),
    ]
    assert {host: budget.share for host, budget in plan.budgets.items()} == {"a": 8, "b": 4}


def on_hosts(spec: JobSpec, hosts: str, gpus: dict[str, int] | None = None, **environ: str) -> RunPlan:
    """The plan of a job whose tasks are on these hosts, which have so many GPUs each."""
    places = [TaskPlace(host, f"10.0.0.{at}:5000") for at, host in enumerate(hosts)]
    facts = {
        host: HostFacts("10.0.0.1", Cores(1, 1), gpus=GpuInventory(tuple(Gpu(str(n)) for n in range(count))))
        for host, count in (gpus or {}).items()
    }
    return build_plan(spec, places, LAYOUT, 1, environ, facts)


def test_each_host_splits_its_own_gpus() -> None:
    spec, gpus = make_spec(roles={"worker": 4}, hosts=parse_hosts("a:1,b:2,c:1"), gpus=None), {"a": 1, "b": 4}
    plan = on_hosts(spec, "abbc", gpus, CUDA_VISIBLE_DEVICES="3")
    assert plan.gpus.shares == {"worker:0": ("0",), "worker:1": ("0", "1"), "worker:2": ("2", "3")}
    assert "CUDA_VISIBLE_DEVICES" not in plan.tasks[3].order.env
    named = make_spec(roles={"worker": 4}, hosts=spec.hosts, gpus=parse_gpus("per-task 2"))
    with pytest.raises(SettingMisfit, match=r"^a: "):
        on_hosts(named, "abbc", gpus)


def test_gpus_of_a_mesh_are_counted_over_all_hosts() -> None:
    mesh = StrategyChoice(strategy=Strategy.DTENSOR, mesh=Mesh(batch=4, model=1))
    plan = on_hosts(make_spec(hosts=parse_hosts("a:1,b:1"), strategy=mesh), "ab", {"a": 2, "b": 2})
    assert plan.gpus.shares == {"worker:0": ("0", "1"), "worker:1": ("0", "1")}
    assert not plan.gpus.is_shared
    assert plan.tasks[1].order.env["DTENSOR_JOBS"] == "10.0.0.0:5000,10.0.0.1:5000"


def test_threads_of_a_cluster_on_several_hosts() -> None:
    plan = on_hosts(make_spec(roles={"worker": 4}, hosts=parse_hosts("a,b"), threads=1), "aabb")
    assert {task.order.env[INTER_OP] for task in plan.tasks} == {"5"} and not plan.budgets


def test_cluster_on_several_hosts_is_reached_without_a_proxy() -> None:
    def env(planned: str, *addresses: str) -> dict[str, str]:
        return dict(Cluster({"worker": [*addresses]}).env("worker", 0, {"no_proxy": planned}))

    remote = env("localhost", "10.0.0.1:1", "10.0.0.1:2", "[fd00::1]:1")
    assert (remote["no_proxy"], "NO_PROXY" in remote) == ("localhost,10.0.0.1,fd00::1", False)
    for unchanged in (
        env("localhost", "127.0.0.1:1", "127.0.0.1:2"),
        env("*", "10.0.0.1:1"),
        env("", "10.0.0.1:1"),
    ):
        assert "no_proxy" not in unchanged


# -- the start of a Python task


def command(*options: str, kind: CommandKind = CommandKind.SCRIPT, **changes: object) -> Command:
    fields: dict[str, object] = {
        "kind": kind,
        "words": ("t.py",),
        "argv": (PYTHON, *options, "t.py"),
        "serves": True,
        "interpreter": (PYTHON, *options),
    }
    return Command.model_validate(fields | changes)


def bootstrap_of(task: Command, environ: dict[str, str] | None = None, **changes: Any) -> dict[str, object]:
    bootstrap = plan_of(make_spec(command=task, **changes), **(environ or {})).tasks[1].order.bootstrap
    assert bootstrap is not None
    return dict(bootstrap)


def test_bootstrap_of_a_python_task() -> None:
    full = {
        "task": "worker:1",
        "exception_file": "/state/job-1/exceptions/worker-1.json",
        "stacks_file": "/state/job-1/stacks/worker-1.txt",
        "fixes": True,
        "keep_tf_config": True,
        "pythonpath": "/mine",
    }
    mine = {"PYTHONPATH": "/mine"}
    assert bootstrap_of(command(), mine) == full
    assert bootstrap_of(command(), mine, env={"PYTHONPATH": "/theirs"}) == {**full, "pythonpath": "/theirs"}
    assert bootstrap_of(command()) == {**full, "pythonpath": None}
    assert bootstrap_of(command(), mine, fixes=False) == {**full, "fixes": False}
    other = make_spec(command=command(kind=CommandKind.EXECUTABLE, interpreter=()))
    assert plan_of(other).tasks[0].order.bootstrap is None


def test_python_options_that_prevent_the_bootstrap() -> None:
    taken = ("", "-u -B", "-XIES", "-W -E", "-WIgnore", "-uWE -P", "--check-hash-based-pycs always")
    prevented = ("-I", "-uE", "-S", "-X importtime -S")
    found = [words for words in (*taken, *prevented) if takes_bootstrap(command(*words.split()))]
    assert found == [*taken]


def test_preloader_has_the_common_environment() -> None:
    spec = make_spec(command=command())
    assert preload_order(spec, LAYOUT, {}) is None
    assert not any(task.order.fork for task in plan_of(spec).tasks)
    spec = make_spec(command=command("-B", start=FORK, legacy_keras=True), env={"MINE": "1"})
    preload = preload_order(spec, LAYOUT, {"HOME": "/h"})
    assert preload is not None
    assert (preload.argv, preload.cwd, preload.modules) == ((PYTHON, "-B"), str(spec.cwd), FORK.modules)
    tasks = plan_of(spec, HOME="/h").tasks
    first, second = (dict(task.order.env) for task in tasks)
    common = {name for name in first if second[name] == first[name] and name != "ORCH_ATTEMPT"}
    assert dict(preload.env) == {name: first[name] for name in common}
    assert all(task.order.fork for task in tasks)


def test_legacy_keras_variable_is_set_unless_the_user_sets_it() -> None:
    name, legacy = "TF_USE_LEGACY_KERAS", command(legacy_keras=True)
    assert env_of(make_spec(command=legacy))[name] == "1"
    assert name not in env_of(make_spec(command=command()))
    assert name not in env_of(make_spec(command=legacy), **{name: "0"})
    assert env_of(make_spec(command=legacy, env={name: "0"}))[name] == "0"
