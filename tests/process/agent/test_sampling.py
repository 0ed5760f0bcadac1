"""CPU and memory of tasks with all their descendants, shared pages counted once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
from agent_driving import SLEEPER, python
from waiting import until

from worker.agent.processes import (
    Delivery,
    all_processes,
    descendants,
    proportional_bytes,
    read_stat,
    send_signal,
)
from worker.agent.sampling import Sample, Sampler
from worker.agent.task_start import TaskStart
from worker.agent.tasks import TaskProcess
from worker.wire.facts import Usage
from worker.wire.messages import TaskOrder

MIB = 1 << 20
# A parent and a child that share 64 MiB; both print when they run.
SHARES = f"""
import os, time
block = bytearray(b"x") * {64 * MIB}
if os.fork() == 0:
    print("child", flush=True)
    time.sleep(600)
print("parent", flush=True)
time.sleep(600)
"""


def task_process(name: str, pid: int, started_mono: float, **changes: Any) -> TaskProcess:
    """A process as the agent knows a task. `changes` are those of its order."""
    order = replace(TaskOrder(name, (), {}, "/", "/dev/null", None, False), **changes)
    return TaskProcess(TaskStart(order), pid, -1, 0, -1, started_mono)


@contextmanager
def process(program: str, lines: int = 0, name: str | None = None, **order: Any) -> Iterator[TaskProcess]:
    """A running process that has written that many lines, as a task with this order."""
    with subprocess.Popen(python(program), stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            for _ in range(lines):
                assert child.stdout.readline()
            yield task_process(name or program, child.pid, time.monotonic(), **order)
        finally:
            for each in psutil.Process(child.pid).children(recursive=True):
                each.kill()
            child.kill()


def look(sampler: Sampler, now: float, tasks: Sequence[TaskProcess]) -> list[Sample]:
    """Take all samples that are due at that time."""
    frames = []
    while tasks and sampler.due <= now:
        frames.append(sampler.take(now, tasks))
    return [frame for frame in frames if frame]


def test_stopped_process_is_sampled_with_its_signal() -> None:
    with process("print(1, flush=True); import time; time.sleep(600)", lines=1) as task:
        for _ in range(2):  # asking does not consume the state
            os.kill(task.pid, signal.SIGSTOP)
            until(lambda: (found := read_stat(task.pid)) is not None and found.state == "T")
            (sample,) = look(Sampler(0.0), 1e9, [task])
            assert sample[task.name].stop_signal == signal.SIGSTOP
            os.kill(task.pid, signal.SIGCONT)
            until(lambda: (found := read_stat(task.pid)) is not None and found.state != "T")
            (sample,) = look(Sampler(0.0), 1e9, [task])
            assert sample[task.name].stop_signal is None


def test_shared_memory_is_counted_once() -> None:
    """Nor is it counted twice against a limit, which is looked at between samples."""
    with (
        process(SHARES, lines=2, name="over", memory_limit=50 * MIB) as over,
        process(SHARES, lines=2, name="under", memory_limit=100 * MIB) as under,
        process(SLEEPER, name="free") as free,
    ):
        tree = [psutil.Process(under.pid), *psutil.Process(under.pid).children(recursive=True)]
        assert sum(each.memory_info().rss for each in tree) > 2 * 64 * MIB
        tasks = [over, under, free]
        sampler = Sampler(100.0)
        sample = {name: usage for frame in look(sampler, 101.0, tasks) for name, usage in frame.items()}
        assert sample.keys() == {"over", "under", "free"}
        assert 64 * MIB < sample["under"].memory_bytes < 100 * MIB
        due = sampler.due
        (frame,) = look(sampler, due, tasks)
        assert frame.keys() == {"over"} and frame["over"].memory_bytes > 50 * MIB
        assert look(Sampler(100.0), 100.5, tasks) == []
        sampler.hasten(0.0)
        assert look(sampler, due + 0.4, [under, free]) == []


def test_cpu_is_that_of_the_task_and_its_children() -> None:
    # The child does all the work.
    burns = "import os, time\nif os.fork() == 0:\n    print('up', flush=True)\n    while True: pass\n"
    burns += SLEEPER
    # It uses CPU only when it starts, and until it sleeps after its output.
    idles = "print('up', flush=True)\n" + SLEEPER
    with process(burns, lines=1) as busy, process(idles, lines=1) as idle:
        until(lambda: psutil.Process(idle.pid).status() == psutil.STATUS_SLEEPING)
        sampler = Sampler(0.0)
        now = time.monotonic() + 2
        look(sampler, now, [busy, idle])
        child = psutil.Process(busy.pid).children()[0]
        spent = child.cpu_times().user
        until(lambda: child.cpu_times().user > spent + 0.1)
        # The next sample is due later if there are more processes.
        (sample,) = look(sampler, max(now + 10, sampler.due), [busy, idle])
    # At least 0.1 s of work in an interval that is 10 s or more for the sampler.
    assert 0.0 < sample[busy.name].cpu_percent < 100
    # One or two ticks of the kernel's clock may be counted until it sleeps.
    assert sample[idle.name].cpu_percent < 1.0


def test_restarted_task_is_measured_from_its_own_start() -> None:
    """The process before it had the same name and had used much more."""
    burns = "while True: pass"
    sampler = Sampler(0.0)
    with process(burns) as before:
        until(lambda: psutil.Process(before.pid).cpu_times().user > 0.3)
        now = time.monotonic() + 2
        look(sampler, now, [before])
    with process(burns) as again:
        assert again.name == before.name
        until(lambda: psutil.Process(again.pid).cpu_times().user > 0.05)
        (sample,) = look(sampler, max(now + 10, sampler.due), [again])
    # At least 0.05 s of work in an interval of about 12 s or more for the sampler.
    assert sample[again.name].cpu_percent > 0.0


def test_task_that_has_just_started_does_not_use_many_cores() -> None:
    with process("while True: pass") as task:
        until(lambda: psutil.Process(task.pid).cpu_times().user >= 0.01)
        (sample,) = look(Sampler(0.0), task.started_mono + 0.001, [task])
        used_s = sum(psutil.Process(task.pid).cpu_times()[:2])
    # The process continues to work while it is measured. It never uses more than one core.
    assert sample[task.name].cpu_percent <= 100 * used_s / 0.25


def test_no_sample_before_due_or_without_tasks() -> None:
    sampler = Sampler(100.0)
    with process(SLEEPER) as task:
        assert look(sampler, 100.5, [task]) == []
        assert look(sampler, 200.0, []) == []
        assert len(look(sampler, 200.0, [task])) == 1
        assert sampler.due >= 202.0
        tasks = [task_process(f"worker:{n}", task.pid, 0.0) for n in range(20)]
        frames = look(Sampler(0.0), 1e6, tasks)
    # Samples of many tasks are split into frames.
    assert sorted(name for frame in frames for name in frame) == sorted(each.name for each in tasks)
    assert len(frames) == 4
    # A task that has exited has a sample of zeros.
    (sample,) = look(Sampler(0.0), 1e6, [task])
    assert sample[task.name] == Usage(0.0, 0)


def test_sampling_measures_one_process_per_step() -> None:
    """An exit can be reported between two steps, and an exited task is not in the sample."""
    with process(SHARES, lines=2, name="two") as two, process(SLEEPER, name="one") as one:
        sampler = Sampler(0.0)
        pieces = [sampler.take(1e6, [two, one])]
        while sampler.due <= 1e6:
            pieces.append(sampler.take(1e6, [two, one]))
        assert len(pieces) > 3 and [set(piece) for piece in pieces if piece] == [{"two", "one"}]
        assert sampler.take(2e6, [two, one]) == {}
        assert [set(frame) for frame in look(sampler, 2e6, [one])] == [{"one"}]


def test_descendants_are_alive_and_parents_come_first() -> None:
    tree = "import os\nfor _ in range(3):\n    if os.fork(): break\nprint('up', flush=True)\n" + SLEEPER
    with process(tree, lines=4) as task:
        chain = [stat.pid for stat in descendants(task.pid, all_processes())]
        parents = [psutil.Process(pid).ppid() for pid in chain]
        assert parents == [task.pid, *chain[:-1]]
        assert len(chain) == 3
        psutil.Process(chain[-1]).kill()
        until(lambda: len(descendants(task.pid, all_processes())) == 2)


def test_process_with_odd_name_is_read() -> None:
    named = f"open('/proc/self/comm', 'w').write(') R 1 (('); print('up', flush=True); {SLEEPER}"
    with process(named, lines=1) as task:
        until(lambda: (stat := read_stat(task.pid)) is not None and stat.state == "S")
        stat = read_stat(task.pid)
        assert stat is not None and stat.parent == psutil.Process().pid
    assert read_stat(task.pid) is None
    assert proportional_bytes(task.pid) == 0


def test_recycled_pid_is_never_signalled() -> None:
    with process(SLEEPER) as task:
        stat = read_stat(task.pid)
        assert stat is not None
        stranger = type(stat)(stat.pid, stat.state, stat.parent, stat.cpu_s, stat.start_ticks - 1)
        assert send_signal(stranger, 9) is Delivery.GONE
        assert psutil.Process(task.pid).is_running()
        assert send_signal(stat, 9) is Delivery.SENT
        until(lambda: psutil.Process(task.pid).status() == psutil.STATUS_ZOMBIE)
        assert send_signal(stat, 9) is Delivery.GONE
    assert read_stat(2**22 - 1) is None
