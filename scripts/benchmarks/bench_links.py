"""Measures what `orch up` notices of broken connections and killed processes on four pretend machines. Needs root.

    scripts/bench links [--rounds 5] [--only cut] [--json FILE]

The machines are those of tests/e2e/hosts: namespaces of this machine, with a real ssh, real agents and light tasks. A
time counts from the cut or the kill; aims are for the worst round. `--only`: the figures whose names begin so.

- cut: one of three hosts cannot be reached, in both directions or in one;
- kill: SIGKILL of orch, of an agent, of an agent and its guard, until no process is left there;
- flood: two tasks of a host print 100,000 lines a second for 60 s; then the same until a Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from bench_pairs import Bench, bench, say
from hosts_run import HOSTS, LOST, HostsRun, counting_command, cut_host, host_files, kill_victim
from testbed import Testbed, reason_to_skip
from waiting import lives, until

AIMS = {"shown": 4.0, "named": 18.5, "peers gone": 5.0, "kill": 12.0, "Ctrl-C": 0.5, "memory": 40.0}
FLOOD_S, FLOOD_LINES = 60, 50_000
# Prints so many lines a second, for so many seconds.
FLOOD = """
import sys, time
rate, seconds = map(int, sys.argv[1:])
began, number = time.monotonic(), 0
while number < rate * seconds:
    due = min(int((time.monotonic() - began) * rate), rate * seconds)
    sys.stdout.write("".join(f"line {each}\\n" for each in range(number, due)))
    sys.stdout.flush()
    number = due
    time.sleep(0.02)
"""


class Links:
    """Measures on one set of machines."""

    def __init__(self, measured: Bench, machines: Testbed) -> None:
        self._bench, self._machines = measured, machines
        self._project = machines.shared / "links"
        self._files = {name: host_files(machines[name]) for name in HOSTS}

    def note(self, name: str, value: float, unit: str = "s", aim: float | None = None) -> None:
        known = (line for line in self._bench.lines if line.name == name)
        line = next(known, None) or self._bench.line(name, unit, aim, of_worst=True)
        line.orch.append(value)
        say(f"{name}: {value:.3g} {unit}")

    def cut(self, how: str) -> None:
        with self._counting() as run:
            cut, *others = [self._tasks(name, "count.py") for name in HOSTS]
            rest = [pid for pids in others for pid in pids]
            began = time.monotonic()
            cut_host(self._machines, how)
            shown = _until(began, lambda: "n1 has not answered" in run.message_text)
            gone = _until(began, lambda: not any(map(lives, cut)))
            named = _until(began, lambda: "n1 was lost" in run.message_text)
            peers = _until(began, lambda: not any(map(lives, rest)))
            exited = _until(began, lambda: run.process.poll() is not None)
            assert run.process.returncode == LOST, run.text
            self.note(f"cut, {how}: shown", shown, aim=AIMS["shown"])
            self.note(f"cut, {how}: its tasks are gone", gone)
            self.note(f"cut, {how}: named", named, aim=AIMS["named"])
            self.note(f"cut, {how}: the other tasks gone, after that", peers - named, aim=AIMS["peers gone"])
            self.note(f"cut, {how}: orch has exited", exited)

    def kill(self, victim: str) -> None:
        with self._counting() as run:
            began = time.monotonic()
            kill_victim(self._machines, victim)
            # The next start there removes the directory of an agent that was killed with its guard.
            with_files = victim != "agent and guard"
            hosts = HOSTS if victim == "orch" else HOSTS[:1]
            gone = _until(began, lambda: all(self._is_empty(host, with_files) for host in hosts))
            self.note(f"kill of {victim}: nothing is left there", gone, aim=AIMS["kill"])
            if victim != "orch":
                ended = _until(began, lambda: run.process.poll() is not None)
                assert run.process.returncode == LOST, run.text
                self.note(f"kill of {victim}: orch has exited", ended, aim=AIMS["kill"])
            self._machines["n1"].run("sh", "-c", "rm -rf /tmp/orch-agent-*")

    def flood(self, _: str) -> None:
        with self._run("--workers", "2", *self._flood(FLOOD_S), hosts="n1:2") as run:
            began, memory = time.monotonic(), 0
            while run.process.poll() is None:
                memory = max([memory, *self._agent_bytes()])
                time.sleep(1.0)
            took_s = time.monotonic() - began
            assert run.finish()["outcome"] == "succeeded", run.message_text
            wanted = "".join(f"line {number}\n" for number in range(FLOOD_LINES * FLOOD_S))
            assert all(run.log(f"worker:{index}") == wanted for index in range(2)), "lines are missing"
            self.note("flood: lines a second until the end of orch", 2 * FLOOD_LINES * FLOOD_S / took_s, "/s")
            self.note("flood: memory of the agent (PSS)", memory / 1e6, "MB", AIMS["memory"])
        with self._run("--workers", "2", *self._flood(10 * FLOOD_S), hosts="n1:2"):
            time.sleep(3.0)
            tasks, (command,) = self._tasks("n1", "flood.py"), self._tasks("n0", "orch up")
            began = time.monotonic()
            os.kill(command, signal.SIGINT)
            ended = _until(began, lambda: not any(map(lives, tasks)))
            self.note("flood: the tasks are gone after Ctrl-C", ended, aim=AIMS["Ctrl-C"])

    @contextmanager
    def _counting(self) -> Iterator[HostsRun]:
        with self._run("--workers", str(len(HOSTS)), *counting_command(self._project)) as run:
            time.sleep(1.0)
            yield run

    def _flood(self, seconds: int) -> tuple[str, ...]:
        (self._project / "flood.py").write_text(FLOOD)
        return ("--", sys.executable, "flood.py", str(FLOOD_LINES), str(seconds))

    @contextmanager
    def _run(self, *words: str, **where: str) -> Iterator[HostsRun]:
        run = HostsRun.start(self._machines, self._project, *words, **where)
        try:
            run.until_event("task_started", int(words[1]))
            yield run
        finally:
            run.clear()
        for name in HOSTS:
            self._machines[name].end_sessions()
            assert self._is_empty(name), name

    def _is_empty(self, host: str, with_files: bool = True) -> bool:
        machine = self._machines[host]
        return not machine.programs() and (not with_files or host_files(machine) == self._files[host])

    def _tasks(self, host: str, program: str) -> list[int]:
        processes = self._machines[host].processes()
        return [process.pid for process in processes if program in " ".join(process.cmdline())]

    def _agent_bytes(self) -> Iterator[int]:
        for process in self._machines["n1"].processes():
            if process.is_running() and process.name() == "orch-agent":
                yield process.memory_full_info().pss


def _until(began: float, is_true: Callable[[], bool]) -> float:
    """Seconds from `began` to the time when a condition is true."""
    until(is_true)
    return time.monotonic() - began


def main() -> None:
    if reason := reason_to_skip():
        raise SystemExit(reason)
    with (
        bench("links", __doc__, rounds=5, only="") as measured,
        closing(Testbed(measured.directory / "hosts")) as machines,
    ):
        links = Links(measured, machines)
        measures = [(links.cut, how) for how in ("both", "to the host", "from the host")]
        measures += [(links.kill, victim) for victim in ("orch", "agent", "agent and guard")]
        measures.append((links.flood, ""))
        for _ in measured.rounds:
            for measure, what in measures:
                if measure.__name__.startswith(measured.given.only):
                    links._project.mkdir()
                    measure(what)
                    shutil.rmtree(links._project)


if __name__ == "__main__":
    main()
