"""GPUs in the samples of tasks, with a library that speaks as NVIDIA's does. No test here has seen a real GPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from agent_driving import SLEEPER, Driver, python
from waiting import until

from orchestrator import Cluster
from orchestrator.client.view.tables import status_lines
from worker.agent import gpu_usage
from worker.agent.gpu_usage import GpuUsage
from worker.wire.messages import Sampled

# Each line of the file USE is `device pid bytes percent`. A percent of -1: the GPU does not measure work by process; of
# -2: the driver does not answer. The caller asks for the work since its last sample.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, instance; } Process;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } Work;
static unsigned long long now = 100, last[2];
static int devices[] = {0, 1};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (index > 1) return 15; /* the GPU is lost */
  *handle = &devices[index];
  return 0;
}
static int read_all(int device, Process *processes, Work *work) {
  int at, pid, percent, count = 0;
  unsigned long long bytes;
  FILE *file = fopen(USE, "r");
  while (file && fscanf(file, "%d %d %llu %d", &at, &pid, &bytes, &percent) == 4) {
    while (percent == -2) pause();
    if (at != device || (work && percent == 0)) continue;
    if (work && percent == -1) { fclose(file); return -1; }
    if (work) work[count++] = (Work){pid, now, percent, 0, 0, 0};
    else processes[count++] = (Process){pid, bytes ? bytes : -1ULL, -1, -1};
  }
  if (file) fclose(file);
  return count;
}
int nvmlDeviceGetComputeRunningProcesses_v3(int *device, unsigned *count, Process *processes) {
  if (*count < 8) return 7;
  *count = read_all(*device, processes, NULL);
  return 0;
}
int nvmlDeviceGetProcessUtilization(int *device, Work *work, unsigned *count, unsigned long long since) {
  if (*count < 8) return 7;
  if (since != last[*device]) return 2;
  now++;
  int found = read_all(*device, NULL, work);
  if (found > 0) last[*device] = now;
  *count = found > 0 ? found : 0;
  return found > 0 ? 0 : found == 0 ? 6 : 3;
}
"""
MIB = 1 << 20
# Writes the pids of itself and of a child.
FAMILY = f"import os; child = os.fork()\nif child: print(os.getpid(), child, flush=True)\n{SLEEPER}"


class Gpus:
    """Two GPUs and what their processes use. `library`: the path of the library that reports it."""

    def __init__(self, directory: Path) -> None:
        self.library = directory / "libnvidia-ml.so.1"
        self._use = directory / "use"
        (directory / "nvml.c").write_text(LIBRARY)
        subprocess.run(
            ["cc", "-shared", "-fPIC", f'-DUSE="{self._use}"', "-o", str(self.library), "nvml.c"],
            cwd=directory,
            check=True,
        )

    def use(self, *lines: tuple[int, int, int, int]) -> None:
        new = self._use.with_suffix(".new")
        new.write_text("".join(f"{' '.join(map(str, line))}\n" for line in lines))
        new.replace(self._use)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed, which compiles a library in place of NVIDIA's")
    directory = tmp_path / "nvidia"
    directory.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(directory))
    return Gpus(directory)


def children_of(agent: Driver) -> set[int]:
    return {child.pid for child in psutil.Process(agent.pid).children()}


def next_sample(agent: Driver, task: str) -> dict[str, object]:
    agent.messages.clear()
    usage = agent.wait_for(Sampled).tasks[task]
    return {name: value for name, value in vars(usage).items() if value is not None}


def test_use_of_gpus_is_added_up_over_processes(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked here without the agent's pauses. A running process does not see a new LD_LIBRARY_PATH."""
    monkeypatch.setattr(gpu_usage, "_LIBRARY", str(gpus.library))
    parent, child, other, idle, foreign = range(101, 106)
    usage = GpuUsage()

    def used() -> list[tuple[float | None, float | None]]:
        usage.refresh()
        tasks = (usage.of(task) for task in ((parent, child), (other, idle)))
        return [(each.get("gpu_percent"), each.get("gpu_memory_bytes")) for each in tasks]

    gpus.use(
        *((0, parent, 100 * MIB, 40), (1, parent, 10 * MIB, 20), (0, child, MIB, 0)),
        *((1, idle, 7 * MIB, 0), (1, other, 0, 5), (0, foreign, 500 * MIB, 90)),
    )
    try:
        until(lambda: used() == [(60.0, 111 * MIB), (5.0, 7 * MIB)])
        gpus.use((0, parent, 3 * MIB, 0), (1, idle, 0, 7))
        until(lambda: used() == [(0.0, 3 * MIB), (7.0, None)])
        # Work by process is not known on either GPU.
        gpus.use((0, parent, 3 * MIB, -1), (1, idle, 0, -1))
        until(lambda: used() == [(None, 3 * MIB), (None, None)])
    finally:
        assert usage.pid is not None
        os.kill(usage.pid, signal.SIGKILL)
        os.waitpid(usage.pid, 0)
    until(lambda: used() == [(None, None)] * 2 and usage.pid is None)


def test_use_of_gpus_is_shown_for_the_task_and_its_children(gpus: Gpus, tmp_path: Path) -> None:
    with Cluster(1, [sys.executable, "-c", FAMILY], tmp_path) as run:
        log = run.log("worker:0")
        parent, child = map(
            int, until(lambda: log.exists() and log.read_text().endswith("\n") and log.read_text().split())
        )
        gpus.use((0, parent, 100 * MIB, 40), (1, child, 11 * MIB, 20), (0, os.getpid(), 500 * MIB, 90))
        until(lambda: run.status().tasks[0].gpu_percent == 60.0)
        _, _, titles, first = status_lines(run.status(), None, colour=False)[:4]
        assert " GPU  GPU MEM " in titles and " 60%   116 MB " in first
        assert "<figcaption>GPU: 60% to 60%" in run._repr_html_()
        history = run.history()
    rows = list(zip(history["gpu_percent"], history["gpu_memory_bytes"], strict=True))
    assert (60.0, 111 * MIB) in rows


@pytest.mark.slow
def test_driver_that_does_not_answer_delays_nothing(gpus: Gpus, own_agent: Driver) -> None:
    own_agent.start("a", python(SLEEPER))
    pid = own_agent.pid_of("a")
    gpus.use((0, pid, MIB, 1))
    until(lambda: "gpu_percent" in next_sample(own_agent, "a"))
    gpus.use((0, pid, MIB, -2))
    until(lambda: "gpu_percent" not in next_sample(own_agent, "a"))
    (asking,) = children_of(own_agent) - {pid}
    assert next_sample(own_agent, "a").keys() == {"cpu_percent", "memory_bytes"}
    # Nor does it count as a process that the task has left.
    assert own_agent.end().swept == 0
    assert children_of(own_agent) == {asking}


def test_without_the_library_nothing_is_started() -> None:
    with contextlib.suppress(OSError):
        ctypes.CDLL("libnvidia-ml.so.1")
        pytest.skip("this machine has NVIDIA's library")
    usage = GpuUsage()
    for _ in range(2):
        usage.refresh()
    assert (usage.pid, usage.of([os.getpid()])) == (None, {})
