"""Cores, memory and limits, compared with the number of tasks."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Mapping

from orchestrator.core.job.cpu_budget import INTRA_OP
from orchestrator.core.job.roles import in_words
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.tf_config import WORKER
from orchestrator.core.text.counted import counted
from orchestrator.core.text.sizes import format_size
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, note, ok, problem, warning
from orchestrator.host.headroom import (
    FEWEST_FILES,
    THIS_MACHINE,
    Headroom,
    Limit,
    files_with_hosts,
    free_memory,
    total_memory,
)
from orchestrator.host.kernel_files import read_memory, read_number

_GIB, _MB = 1 << 30, 10**6
# A worker's PSS in bytes with TensorFlow 2.21 on two cores (docs/tensorflow.md): training a small model, spawned and
# forked, and while it imports.
_SPAWNED, _FORKED, _IMPORTING = 450 * _MB, 310 * _MB, 540 * _MB
_STRICT_OVERCOMMIT = 2
# Most shells give a task this many, for its libraries, logs, and a socket to each peer.
_FEW_FILES = 1024
# `import tensorflow` (2.21) maps 1.42 GB; rounded down, because only what certainly fails is refused.
_TENSORFLOW_ADDRESS_SPACE = 1_200_000_000
_MORE_MEMORY = "give the machine or container more memory"
_MORE_FILES = "ulimit -Hn as root, LimitNOFILE= of a service, --ulimit nofile= of a container"
_RAISE = {
    Limit.MEMORY: _MORE_MEMORY,
    Limit.FILES: f"raise it: {_MORE_FILES}",
    Limit.THREADS: "raise ulimit -u, TasksMax= of the service, or --pids-limit of the container",
    Limit.PORTS: "widen net.ipv4.ip_local_port_range",
}


def check_cores(context: Context) -> Iterator[Finding]:
    spec, cores = context.spec, context.spec.cores
    usable = f"{cores.usable:g} of {counted(cores.machine, 'core')}"
    threads_are_set = spec.threads is not None or INTRA_OP in context.task_environ
    if cores.is_limited_unseen and not threads_are_set:
        text = f"a quota gives the time of {counted(cores.usable, 'core')}, but TensorFlow sizes its thread pools by"
        fix = f"--threads {math.ceil(cores.usable)}"
        yield warning("cores", f"{text} the {cores.allowed} it may run on", cores.quota_at, fix=fix)
    elif context.task_count > cores.usable:
        text = f"{in_words(spec.roles)} share {usable}: they train, and each step takes longer"
        yield note("cores", text, "affinity mask", fix=f"{_fewer(spec, int(cores.usable))} for more speed")
    else:
        yield ok("cores", f"{usable} for {in_words(spec.roles)}", "affinity mask")


def check_memory(context: Context) -> Iterator[Finding]:
    """Compare the memory with a small model's need. check_task_limits reports what certainly does not fit."""
    free, tasks = free_memory(context.proc, context.cgroups), context.task_count
    free_text = f"{free.size / _GIB:.1f} GiB free"
    if _limits(context)[Limit.MEMORY].tasks < tasks:
        return
    if not free.is_known:
        text = "how much memory is free is not known: /proc/meminfo cannot be read"
        yield note("memory", text, free.where, fix="mount /proc without subset=pid")
        return
    if not context.serves:
        yield ok("memory", free_text, free.where)
        return
    need = f"{in_words(context.spec.roles)} take{'s' * (tasks == 1)} about {tasks * _SPAWNED / _GIB:.1f} GiB"
    if free.size < tasks * _IMPORTING:
        text = f"{free_text}, and {need} without any model or data: the kernel may kill one"
        yield warning("memory", text, free.where, fix=f"start fewer workers, or {_MORE_MEMORY}")
    else:
        forked = f"{tasks * _FORKED / _GIB:.1f} if forked"
        yield ok("memory", f"{free_text}; {need} ({forked}), without models and data", free.where)
    limit, used = (read_memory(context.proc, field) or 0 for field in ("CommitLimit", "Committed_AS"))
    is_strict = read_number(context.proc / "sys/vm/overcommit_memory") == _STRICT_OVERCOMMIT
    if is_strict and limit - used < tasks * _IMPORTING:
        text = f"strict overcommit leaves {max(0, limit - used) / _GIB:.1f} GiB: forking TensorFlow may fail"
        fix = "--start spawn, or sysctl vm.overcommit_memory=0"
        yield warning("memory", text, "/proc/sys/vm/overcommit_memory", fix=fix)


def check_memory_limit(context: Context) -> Iterator[Finding]:
    """Compare --memory-limit, multiplied by the tasks, with the memory that they can ever have."""
    each = context.spec.memory_limit_bytes
    if each is None:
        return
    total, together = total_memory(context.proc, context.cgroups), each * context.task_count
    if together > total.size:
        where = total.where if total.where == THIS_MACHINE else f"the control group {total.where}"
        yield warning(
            "memory",
            f"--memory-limit {format_size(each, each)} for each of {counted(context.task_count, 'task')} is"
            f" {format_size(together, each)} together, more than {where} has ({format_size(total.size)}): the kernel"
            " may run out of memory before a task reaches its limit",
            fix="lower it, or start fewer tasks",
        )


def check_task_limits(context: Context) -> Iterator[Finding]:
    """Find the limits that allow fewer tasks, the tightest first. A single task is never refused for an estimate."""
    spec, tasks = context.spec, context.task_count
    for limit, room in sorted(_limits(context).items(), key=lambda item: item[1].tasks):
        if limit is Limit.FILES and not room.tasks:
            continue  # check_process_limits reports it
        text = f"{room.what}: enough for {counted(room.tasks, 'task')}"
        if room.tasks < tasks:
            report = problem if tasks > 1 else warning
            fix = f"{_fewer(spec, room.tasks)}, or {_RAISE[limit]}"
            yield report(limit, f"{text}, not {in_words(spec.roles)}", room.where, fix=fix)
        elif limit in (Limit.FILES, Limit.THREADS):
            yield ok(limit, text)


def _limits(context: Context) -> Mapping[Limit, Headroom]:
    return context.limits(context.serves, context.proc, context.cgroups)


def check_process_limits(context: Context) -> Iterator[Finding]:
    """Look at the soft limits, which every task inherits."""
    files, space = _soft_limit(context, resource.RLIMIT_NOFILE), _soft_limit(context, resource.RLIMIT_AS)
    size, seconds = _soft_limit(context, resource.RLIMIT_FSIZE), _soft_limit(context, resource.RLIMIT_CPU)
    if files < FEWEST_FILES:
        text = f"the limit on open files is {files} (ulimit -Sn), and orch needs {FEWEST_FILES}"
        yield problem("open files", text, fix=f"raise it: ulimit -n {_FEW_FILES}")
    elif files < _FEW_FILES:
        text = f"each task may open {counted(files, 'file')}: libraries, logs and a socket to each peer"
        yield warning("open files", text, "ulimit -Sn", fix=f"ulimit -n {_FEW_FILES}")
    if context.serves and space < _TENSORFLOW_ADDRESS_SPACE:
        text = f"the limit on address space is {format_size(int(space))} (ulimit -v), and TensorFlow needs"
        fix = "raise it: ulimit -v unlimited (--memory-limit is the option to use)"
        yield problem(
            "address space", f"{text} {format_size(_TENSORFLOW_ADDRESS_SPACE)} to be imported", fix=fix
        )
    elif space < math.inf:
        text = f"a process may map {space / _GIB:.1f} GiB; TensorFlow reserves much more than it uses"
        yield warning("address space", text, "ulimit -v", fix="ulimit -v unlimited")
    if size < math.inf:
        text = f"a file may have {counted(size, 'byte')}: logs and checkpoints fail there with SIGXFSZ"
        yield warning("file size", text, "ulimit -f", fix="ulimit -f unlimited")
    if seconds < math.inf:
        text = f"a process is killed after {seconds:,} s of CPU time"
        yield warning("cpu time", text, "ulimit -t", fix="ulimit -t unlimited")


def check_files_with_hosts(context: Context) -> Iterator[Finding]:
    """Compare the limit on open files with the connections and logs of the hosts. orch raises its soft limit itself."""
    hosts, tasks = len(context.spec.hosts), context.task_count
    _, hard = context.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_with_hosts(hosts, tasks)
    if hosts and hard != resource.RLIM_INFINITY and hard < needed:
        text = f"the limit on open files is {hard:,} (ulimit -Hn), and {counted(hosts, 'host')} with"
        fix = f"raise it to {needed:,} at least ({_MORE_FILES}), or use fewer hosts"
        yield problem("open files", f"{text} {counted(tasks, 'task')} need {needed:,}", fix=fix)


def _soft_limit(context: Context, number: int) -> float:
    soft, _ = context.getrlimit(number)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _fewer(spec: JobSpec, most: int) -> str:
    """How to start at most so many. With several roles the user chooses which to reduce."""
    if set(spec.roles) == {WORKER}:
        return f"use --workers {max(1, most)}"
    return f"start at most {counted(max(1, most), 'task')}"
