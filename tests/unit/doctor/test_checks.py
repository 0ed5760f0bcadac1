"""Each check finds what is wrong with a machine, with its level and its fix, and nothing else."""

from __future__ import annotations

import errno
import resource
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from healthy_machine import FILES, GIB, PYTHON, SCRIPT, HealthyMachine, disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import CommandKind
from orchestrator.host.checks import CHECKS_OF_UP, WARNINGS_OF_UP, all_checks, refuse_problems
from orchestrator.host.checks.finding import Finding, Level, is_healthy
from orchestrator.host.headroom import Headroom, Limit
from orchestrator.host.network import NoPrivateNetwork

NOTE, WARNING, PROBLEM = Level.NOTE, Level.WARNING, Level.PROBLEM
REFUSED = {"probe_private_network": lambda: NoPrivateNetwork("user.max_user_namespaces is 0", "sysctl -w it")}
PRIVATE = {"spec": {"network": NetworkOption.PRIVATE}, **REFUSED}
REACHED = {"addresses": lambda: ("10.0.0.7",)}
HOSTS = tuple(Host(name=f"n{number}", destination=f"n{number}") for number in range(600))
MOUNTS, MEMINFO = "proc/self/mountinfo", "proc/meminfo"
PROC = "23 22 0:22 / /proc rw - proc proc rw"
DRIVER = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1  Tue Mar  5\n"}


def room(limit: Limit, tasks: int) -> dict[str, Any]:
    return {"rooms": {limit: Headroom(tasks, f"{limit} are short")}}


def packages(**changes: str | None) -> dict[str, Any]:
    versions = {**PYTHON.versions, **changes}
    return {"versions": {name: version for name, version in versions.items() if version is not None}}


CUDA = packages(**{"nvidia-cudnn-cu12": "9.1"})


def memory_of_group(size: int) -> dict[str, str]:
    return {"sys/fs/cgroup/a/memory.max": str(size), "sys/fs/cgroup/a/memory.current": "0"}


def command(**changes: Any) -> dict[str, Any]:
    return {"spec": {"command": SCRIPT.model_copy(update=changes)}}


def env(**variables: str) -> dict[str, Any]:
    return {"spec": {"env": MappingProxyType(variables)}}


def roles(**counts: int) -> dict[str, Any]:
    return {"spec": {"roles": counts}}


def limit(**soft: int) -> dict[str, Any]:
    return {"limits": {getattr(resource, f"RLIMIT_{name}"): number for name, number in soft.items()}}


def state_lacks(what: str, why: str) -> dict[str, Any]:
    return {"content_errors": lambda directory: {what: why}}


def mounts(*lines: str) -> dict[str, str]:
    return {MOUNTS: FILES[MOUNTS] + "".join(f"{line}\n" for line in lines)}


def container(count: int = 1, **more: Any) -> dict[str, Any]:
    """A machine with GPUs and their libraries."""
    devices = {f"dev/nvidia{number}": "" for number in range(count)}
    return {"files": {**DRIVER, **devices, "usr/lib64/libcuda.so.1": ""}, "python": CUDA, **more}


def test_healthy_machine_has_no_findings_but_ok(machine: HealthyMachine) -> None:
    findings = machine.findings()
    assert is_healthy(findings)
    assert not machine.bad()
    topics = {"python", "tensorflow", "keras", "tf_keras", "cores", "memory", "open files", "threads", "gpus"}
    topics |= {"ports", "proxies", "state", "disk", "platform"}
    assert {finding.topic for finding in findings} >= topics
    refuse_problems(machine.context())


@dataclass(frozen=True)
class Case:
    """The finding on a machine with these changes. `text`, `fix`: parts of them ("": no fix)."""

    level: Level
    topic: str
    text: str
    fix: str
    changes: dict[str, Any]

    def is_found(self, finding: Finding) -> bool:
        has_fix = self.fix in finding.fix if finding.fix else not self.fix
        is_named = (finding.level, finding.topic) == (self.level, self.topic) and self.text in finding.text
        return is_named and has_fix and is_healthy([finding]) is (self.level is not PROBLEM)


def case(found: str, **changes: Any) -> Case:
    """`found`: LEVEL TOPIC: TEXT | FIX."""
    said, _, fix = found.partition(" |")
    named, _, text = said.partition(":")
    level, _, topic = named.partition(" ")
    return Case(Level(level), topic, text.strip(), fix.strip(), changes)


LEGACY = env(TF_USE_LEGACY_KERAS="1")
NOTHING: dict[str, Any] = {"versions": {"tf_keras": "2.21.0"}, "modules": ()}
PORTS = "proc/sys/net/ipv4/ip_local_port_range"
# Ports outside the kernel's range do not count, and one that is used twice counts once.
USED_PORT = "   0: {}:{:04X} 00000000:0000 0A 00000000:00000000\n".format
USED = {
    PORTS: "40000\t40009\n",
    "proc/self/net/tcp": "sl local\n" + USED_PORT("0100007F", 40_001) + USED_PORT("0100007F", 80),
    "proc/self/net/tcp6": "sl local\n" + USED_PORT("0" * 32, 40_001) + USED_PORT("0" * 32, 40_002),
}
QUOTA, FORTY = {"cores": Cores(64, 64, 3.0, "/sys/fs/cgroup/cpu.max")}, {"memory_limit_bytes": 40 * GIB}
OVERCOMMIT = {
    "proc/sys/vm/overcommit_memory": "2\n",
    MEMINFO: FILES[MEMINFO] + "CommitLimit: 2097152 kB\nCommitted_AS: 1048576 kB\n",
}
MANY_HOSTS = limit(NOFILE=2048) | {"spec": {"hosts": HOSTS}}
MEMORY, FILES_ROOM = Limit.MEMORY, Limit.FILES
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
CASES = [
    case("problem settings: orch.toml: no | orch config", settings_error="orch.toml: no"),
    case("problem python: /opt/python does not | another Python", python={"error": "no such file"}),
    case("problem tensorflow: incompletely | --force-reinstall", python={"modules": ("keras",)}),
    case("warning tensorflow: 2.9.1 was not | tested", python=packages(tensorflow="2.9.1", tf_keras="2.9.0")),
    case("note tensorflow: |", python=packages(tensorflow=None)),
    case("warning keras: it stays off | 'keras<3.16'", python=packages(keras="3.16.0")),
    case("warning keras: too old for TensorFlow 2.21.0 | -U keras", python=packages(keras="2.15.0")),
    case("warning keras: not installed | pip install keras", python=packages(keras=None)),
    case("note tf_keras: not installed | tf_keras~=2.21.0", python=packages(tf_keras=None)),
    case("warning tf_keras: another TensorFlow | ~=2.21.0", python=packages(tf_keras="2.18.0")),
    case("problem tf_keras: | keras~=2.21.0", python=packages(tf_keras=None), **LEGACY),
    case("problem tensorflow: | /opt/python -m pip install tensorflow", python=NOTHING),
    case("problem tensorflow: | Python 3.10 to 3.13: for 3.14.0", python={**NOTHING, "version": "3.14.0"}),
    case("warning tensorflow: | ", python=NOTHING, is_source_known=False),
    case("note tensorflow: |", python=NOTHING, **command(serves=False)),
    case("warning keras: KERAS_BACKEND is jax | --env KERAS_BACKEND", **env(KERAS_BACKEND="jax")),
    case("warning settings: and not on the 3 nodes | --engine slurm", environ={"SLURM_JOB_NUM_NODES": "3"}),
    case("note environment: its own instead | unset TF_CONFIG", environ={"TF_CONFIG": "{}"}),
    case("note environment: hides |", environ={"TF_CPP_MIN_LOG_LEVEL": "2"}),
    case("note environment: SO_REUSEADDR | unset", environ={"TF_GRPC_REUSE_PORT": "0"}),
    case("note cores: 9 workers share 8 of 8 | --workers 8", **roles(worker=9)),
    case("warning cores: of 3 cores, but TensorFlow sizes its thread pools by the 64 | --thr", spec=QUOTA),
    case("note cores: | --workers 3", spec={**QUOTA, "threads": 2, "roles": {"worker": 4}}),
    case("problem memory: enough for 1 task, not 2 | --workers 1", **room(MEMORY, 1)),
    case("problem memory: not 3 tasks (2 workers, 1 ps) | 2", **room(MEMORY, 2), **roles(worker=2, ps=1)),
    case("problem open files: not 3 tasks (2 workers,", **room(FILES_ROOM, 2), **roles(worker=2, ps=1)),
    case("warning memory: 1.0 GiB free, and 2 workers take about 0.8 | ", files=memory_of_group(GIB)),
    case("warning memory: strict overcommit leaves 1.0 | --start spawn", files=OVERCOMMIT),
    case("warning memory: is 80 GiB together, more than this machine has (64 GiB) | fewer tasks", spec=FORTY),
    # One worker is never refused for an estimate.
    case("warning memory: | ", **room(MEMORY, 0), **roles(worker=1)),
    case("warning threads: | ", **room(Limit.THREADS, 0), **roles(worker=1)),
    case("problem open files: enough for 1 task, not 2 | LimitNOFILE", **room(FILES_ROOM, 1)),
    case("problem threads: enough for 0 | --pids-limit", **room(Limit.THREADS, 0)),
    case("problem ports: enough for 1 | ip_local_port_range", **room(Limit.PORTS, 1)),
    case("warning open files: may open 256 files | ulimit -n 1024", **limit(NOFILE=256)),
    case("problem open files: is 10 (ulimit -Sn) | raise it", **limit(NOFILE=10)),
    case("problem open files: 600 hosts with 2 tasks need 3,630 | raise it to 3,630 at", **MANY_HOSTS),
    case("warning file size: 1,024 bytes | ulimit -f unlimited", **limit(FSIZE=1024)),
    case("warning cpu time: 60 s | ulimit -t unlimited", **limit(CPU=60)),
    case("warning address space: 2.0 GiB | ulimit -v unlimited", **limit(AS=2 * GIB)),
    case("problem address space: 1 GiB (ulimit -v) | ulimit -v unlimited", **limit(AS=GIB)),
    case("problem platform: orch runs on Linux only (it needs pidfds), and this is d |", system="d"),
    case("problem platform: orch needs Linux 5.4 or newer, and this kernel is 5.3.0-x |", kernel="5.3.0-x"),
    case("problem platform: Python 3.11 to 3.13, and this is 3.10 | install", orch_python=(3, 10, 9)),
    case("problem platform: Python 3.11 to 3.13, and this is 3.14 | install", orch_python=(3, 14, 0)),
    case("problem processor: SIGILL | -cpu host", files={"proc/cpuinfo": "flags\t\t: fpu\n"}),
    case("warning shared memory: Permission denied | 1777", shm=OSError(errno.EACCES, "Permission denied")),
    case("warning shared memory: 0 MiB | --shm-size", shm=disk(0)),
    case("note processes: hidepid=2 |", files=mounts(f"{PROC},hidepid=2")),
    case("note processes: hidepid=invisible |", files=mounts(f"{PROC},gid=4,hidepid=invisible")),
    case("note debuggers: py-spy | ptrace_scope=0", files={"proc/sys/kernel/yama/ptrace_scope": "1\n"}),
    case("warning clock: years behind | set-ntp", now=0.0),
    case("note clock: hpet is slow | tsc", files={CLOCK: "hpet\n"}),
    case("problem ports: on 127.0.0.1: Perm | lo up", loopback_error=lambda: "Permission denied"),
    case("problem ports: SO_REUSEPORT | REUSE_PORT=0", port_sharing_error=lambda: "Protocol not available"),
    case("warning ports: 232 of the kernel's 232 | ss -tan", files={PORTS: "40000\t40231\n"}),
    case("warning ports: 8 of the kernel's 10 ports | ss -tan", files=USED),
    case("warning port server: Connection refused | unset", environ={"PORTSERVER_ADDRESS": "@orch-none"}),
    case("note exposure: without authentication | firewall", **REACHED),
    case("note exposure: without authentication | --network private", **REACHED),
    case("note exposure: | user.max_user_namespaces is 0; to allow it: sysctl -w", **REACHED, **REFUSED),
    case("problem exposure: is refused here: user.max_user_namespaces is 0 | sysctl -w it", **PRIVATE),
    case("warning exposure: a public address | firewall", addresses=lambda: ("10.0.0.7", "2a00:1450::5")),
    case("note proxies: gRPC would use http_proxy | no_proxy", environ={"http_proxy": "x", "ALL_PROXY": "x"}),
    case("problem state: every run needs them: quota | local disk", **state_lacks("files", "quota")),
    case("problem state: locks do not work here, | local disk", **state_lacks("locks", "No locks available")),
    case("problem state: unix sockets do not | local disk", **state_lacks("unix sockets", "not permitted")),
    case("problem state: others may write | chmod -R go-w", state_mode=0o777),
    case("note state: names of your runs | chmod 700", state_mode=0o755),
    case("note state: is a symbolic link to |", state_link=True),
    case("warning state: network file system (nfs4) | local", files=mounts("9 1 8:1 / / rw - nfs4 s:/ rw")),
    case("warning disk: 512 MiB | --log-dir", disk=disk(GIB // 2)),
    case("problem disk: 0 MiB | --log-dir", disk=disk(0)),
    case("warning disk: 3 files | df -i", disk=disk(free_files=3)),
    case("warning gpus: driver 550.1 is loaded, but /dev/nvidia0 is missing | --gpus all", files=DRIVER),
    case("warning gpus: 1 GPU for 2 workers: orch gives them none | --gpus 0,0 to share", **container()),
    case("note gpus: | tensorflow[and-cuda]", **{**container(), "python": {}}, **roles(worker=1)),
    case("warning gpus: no libcuda | libcuda1", files={"dev/nvidia0": ""}),
    case("warning gpus: fails: mismatch | driver", ask_nvidia_smi=lambda environ: ((), "mismatch")),
]


def test_only_the_fault_is_found(machine: HealthyMachine) -> None:
    wrong = []
    for case in CASES:
        found = machine.bad(**case.changes)
        if len(found) != 1 or not case.is_found(found[0]):
            wrong.append((case, found))
    assert not wrong, "\n".join(map(str, wrong))


# Changes of a healthy machine that are no fault.
FINE: list[dict[str, Any]] = [
    *({"kernel": kernel} for kernel in ("5.4.0", "6.18.44-fc", "without a number")),
    LEGACY,
    # A quota is harmless once the threads are set.
    {"spec": {**QUOTA, "threads": 2}},
    {"spec": QUOTA, "environ": {"TF_NUM_INTRAOP_THREADS": "2"}},
    # Little memory is enough for programs without TensorFlow, and programs that are not Python need no packages.
    {"files": memory_of_group(0), **command(serves=False)},
    {
        "python": NOTHING,
        **command(kind=CommandKind.EXECUTABLE, words=("true",), interpreter=(), serves=False),
    },
    container(**roles(worker=1)),
    container(2),
    container(environ={"CUDA_VISIBLE_DEVICES": "-1"}),
    # gRPC does not use this proxy.
    {"environ": {"HTTPS_PROXY": "x"}},
    # A processor without AVX matters on x86 only.
    {"files": {"proc/cpuinfo": "Features\t: fp asimd\n"}, "processor": "aarch64"},
    {"files": {"proc/cpuinfo": "nothing known\n"}},
    # Only the last mount of this /proc counts.
    {"files": mounts("24 22 0:23 / /host/proc rw - proc proc rw,hidepid=2")},
    {"files": mounts("25 22 0:24 / /proc rw - tmpfs tmpfs rw,hidepid=2")},
    {"files": mounts(f"{PROC},hidepid=2", "24 22 0:22 / /proc rw - proc proc rw,hidepid=0")},
    {"state_mode": None},
]


def test_changes_that_are_no_fault(machine: HealthyMachine) -> None:
    found = [(changes, bad) for changes in FINE if (bad := machine.bad(**changes))]
    assert not found, found
    assert not machine.state.exists(), "the last state directory did not exist"


def test_checks_of_up_are_checks_of_the_doctor() -> None:
    assert {*CHECKS_OF_UP, *WARNINGS_OF_UP} <= {*all_checks()}


def test_problem_of_the_job_is_refused_by_up(machine: HealthyMachine) -> None:
    for changes in (
        *(room(MEMORY, 1), limit(NOFILE=10), limit(AS=GIB), MANY_HOSTS, PRIVATE),
        *({"kernel": "5.3.0-x"}, {"state_mode": 0o777}),
    ):
        finding = machine.only(**changes)
        with pytest.raises(UsageError) as refused:
            refuse_problems(machine.context(**changes))
        assert str(refused.value) == f"{finding.text}; {finding.fix}"


def test_warning_and_slow_check_do_not_stop_up(machine: HealthyMachine) -> None:
    slow = {"loopback_error": lambda: "x"}
    for changes in (limit(NOFILE=256), {"disk": disk(0)}, slow):
        assert machine.bad(**changes)
        refuse_problems(machine.context(**changes))


def test_missing_home_directory(machine: HealthyMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    context = machine.context()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(UsageError, match=r"^there is no home directory to keep runs in; set HOME or XDG_S"):
        refuse_problems(context)


def test_gpus_are_named_by_nvidia_smi(machine: HealthyMachine) -> None:
    library = f"{machine.root}/lib/libcuda.so.1"
    found = machine.findings(
        files={**DRIVER, "dev/nvidia1": "", "dev/nvidia0": "", "dev/nvidiactl": "", "lib/libcuda.so.1": ""},
        environ={"LD_LIBRARY_PATH": f":{machine.root}/lib"},
        python=CUDA,
        ask_nvidia_smi=lambda environ: (("GPU 0: NVIDIA A100", "GPU 1: NVIDIA A100"), None),
    )
    (gpus,) = (finding for finding in found if finding.topic == "gpus")
    assert (gpus.level, gpus.text) == (Level.OK, "GPU 0: NVIDIA A100, GPU 1: NVIDIA A100")
    assert gpus.where == library


def test_message_of_a_finding() -> None:
    for level in (WARNING, PROBLEM):
        with pytest.raises(ValueError, match="needs a fix"):
            Finding(level, "topic", "text")
    assert Finding(PROBLEM, "topic", "did you mean this?", fix="help").message == "did you mean this?"
    assert Finding(PROBLEM, "topic", "it is wrong", fix="help").message == "it is wrong; help"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(picked=st.lists(st.sampled_from(range(len(CASES))), max_size=8))
def test_any_mixture_of_faults_is_found(machine: HealthyMachine, picked: list[int]) -> None:
    changes: dict[str, Any] = {}
    for number in picked:
        for part, change in CASES[number].changes.items():
            is_mergeable = isinstance(change, dict) and part in changes
            changes[part] = {**changes[part], **change} if is_mergeable else change
    findings = machine.findings(**changes)
    assert all(finding.text and "\n" not in finding.text for finding in findings)
    assert all(finding.fix for finding in findings if finding.level in (WARNING, PROBLEM))
