"""Measures what `orch up` notices of broken connections and killed processes on four pretend machines. Needs root.

    scripts/bench links [cuts] [kills] [ssh] [draws] [flood] [--rounds 5] [--seed 0] [--load 0] [--json FILE]

The machines are those of tests/e2e/hosts: namespaces of this machine, with a real ssh, real agents and light tasks. A
time counts from the cut or the kill.

- cuts: one of three hosts cannot be reached, in both directions or in one; then for 6 s only, after which every log is
  compared byte for byte;
- kills: SIGKILL of orch, of an agent, of an agent and its guard, until no process is left on any host;
- ssh: SIGKILL of all ssh processes. The run must restart;
- flood: two tasks of a host print 100,000 lines a second for 60 s, after which both logs are compared; then the same
  until a Ctrl-C, which must end the tasks;
- draws: one task fails and its peers fail because of it (tests/e2e/hosts/first_failure.py). The first must be named.

Aims are for the worst of all rounds. `--load` starts busy processes beside them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
from bench_pairs import Compared, options, report, say

from orchestrator.core.lifecycle.restarts import RAN_AT_LEAST_S

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(_TESTS / "e2e/hosts"), str(_TESTS / "support")]

from first_failure import Draw  # noqa: E402
from hosts_run import (  # noqa: E402
    HOSTS,
    LOST,
    HostsRun,
    counting_command,
    cut_host,
    host_files,
    kill_victim,
)
from testbed import Testbed, reason_to_skip  # noqa: E402
from waiting import lives  # noqa: E402

PARTS = ("cuts", "kills", "ssh", "draws", "flood")
CUTS = ("both", "to the host", "from the host")
KILLS = ("orch", "agent", "agent and guard")
SHOWN_AIM_S, NAMED_AIM_S, REST_AIM_S, GONE_AIM_S = 4.0, 18.5, 5.0, 12.0
CTRL_C_AIM_S, AGENT_AIM_MB = 0.5, 40.0
SHORT_CUT_S = 6.0
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
_LOOK_S = 0.01
_PATIENCE_S = 60.0
_WORKERS = len(HOSTS)
Looks = dict[str, Callable[[], bool]]


class Links:
    """Measures on one testbed. The lines of the table come in the order of their first figure."""

    def __init__(self, machines: Testbed, chance: random.Random) -> None:
        self._machines = machines
        self._chance = chance
        self._project = machines.shared / "links"
        self._files = {name: host_files(machines[name]) for name in HOSTS}
        self._lines: dict[str, Compared] = {}

    @property
    def lines(self) -> list[Compared]:
        return [*self._lines.values()]

    def note(self, name: str, value: float, unit: str = "s", aim: float | None = None) -> None:
        line = self._lines.setdefault(name, Compared(name, unit, "", aim, of_worst=True))
        line.orch.append(value)
        say(f"{name}: {value:.3g} {unit}")

    def cut(self, how: str) -> None:
        """Cut a host off for good: what is shown, what ends, and when."""
        with self._counting() as run:
            cut, *others = [self._tasks(name) for name in HOSTS]
            rest = [pid for pids in others for pid in pids]
            began = time.monotonic()
            cut_host(self._machines, how)
            seen = _times(
                began,
                {
                    "shown": lambda: "n1 has not answered" in run.message_text,
                    "its tasks are gone": lambda: not any(map(lives, cut)),
                    "named": lambda: "n1 was lost" in run.message_text,
                    "the other tasks are gone": lambda: not any(map(lives, rest)),
                    "orch has exited": lambda: run.process.poll() is not None,
                },
            )
            assert run.process.returncode == LOST, run.text
            aims = {"shown": SHOWN_AIM_S, "named": NAMED_AIM_S}
            for what, when in seen.items():
                self.note(f"cut, {how}: {what}", when, aim=aims.get(what))
            self.note(f"cut, {how}: named - its tasks gone", seen["named"] - seen["its tasks are gone"])
            later = seen["the other tasks are gone"] - seen["named"]
            self.note(f"cut, {how}: the other tasks gone - named", later, aim=REST_AIM_S)

    def cut_shortly(self, how: str) -> None:
        """Cut a host off for 6 s. No byte may be missing, and nothing may fail."""
        with self._counting() as run:
            began = time.monotonic()
            cut_host(self._machines, how)
            time.sleep(max(0.0, began + SHORT_CUT_S - time.monotonic()))
            self._machines.heal()
            back = _times(began, {"back": lambda: "n1 answers again" in run.message_text})["back"]
            (self._project / "end").touch()
            self._expect_whole(run)
            self.note(f"cut for {SHORT_CUT_S:g} s, {how}: answers again", back)
            self.note(f"cut for {SHORT_CUT_S:g} s, {how}: runs with a missing byte", 0, "", 0)

    def kill(self, victim: str) -> None:
        with self._counting() as run:
            began = time.monotonic()
            kill_victim(self._machines, victim)
            gone = _times(began, {"gone": self._looks(victim)})["gone"]
            self.note(f"SIGKILL of {victim}: nothing is left there", gone, aim=GONE_AIM_S)
            if victim != "orch":
                ended = _times(began, {"ended": lambda: run.process.poll() is not None})["ended"]
                assert run.process.returncode == LOST, run.text
                self.note(f"SIGKILL of {victim}: orch has exited", ended, aim=GONE_AIM_S)
            if victim == "agent and guard":
                self._machines["n1"].run("sh", "-c", "rm -rf /tmp/orch-agent-*")

    def kill_ssh(self) -> None:
        """Kill all connections. The run must restart on the same hosts."""
        with self._counting("--max-restarts", "1", "--checkpoint-dir", str(self._project / "ckpt")) as run:
            time.sleep(RAN_AT_LEAST_S)  # a run that fails earlier is not restarted
            began = time.monotonic()
            kill_victim(self._machines, "ssh")
            started = {"started": lambda: len(run.events("task_started")) >= 2 * _WORKERS}
            seen = _times(began, started)["started"]
            (self._project / "end").touch()
            run.process.wait(_PATIENCE_S)
            lost = run.process.returncode != 0
            if lost:
                say(run.message_text)
            self.note("SIGKILL of all ssh: all tasks have started again", seen)
            self.note("SIGKILL of all ssh: runs lost", lost, "", 0)

    def flood(self) -> None:
        """Lines arrive faster than they are read. No line may be missing, and the agent stays small."""
        with self._flooding(FLOOD_S) as run:
            began, memory = time.monotonic(), 0
            while run.process.poll() is None:
                memory = max(memory, self._agent_bytes())
                time.sleep(1.0)
            took_s = time.monotonic() - began
            assert run.finish()["outcome"] == "succeeded", run.message_text
            wanted = "".join(f"line {number}\n" for number in range(FLOOD_LINES * FLOOD_S))
            missing = sum(run.log(f"worker:{index}") != wanted for index in range(2))
            self.note("flood: logs that are not equal to what was printed", missing, "", 0)
            self.note("flood: lines a second until the end of orch", 2 * FLOOD_LINES * FLOOD_S / took_s, "/s")
            self.note("flood: memory of the agent (PSS)", memory / 1e6, "MB", AGENT_AIM_MB)
        with self._flooding(10 * FLOOD_S) as run:
            time.sleep(3.0 + self._chance.random())
            tasks = self._tasks("n1", "flood.py")
            began = time.monotonic()
            (command,) = self._tasks("n0", "orch up")
            os.kill(command, signal.SIGINT)
            ended = _times(began, {"ended": lambda: not any(map(lives, tasks))})["ended"]
            self.note("flood: the tasks are gone after Ctrl-C", ended, aim=CTRL_C_AIM_S)

    @contextmanager
    def _flooding(self, seconds: int) -> Iterator[HostsRun]:
        with self._cleared():
            (self._project / "flood.py").write_text(FLOOD)
            command = (sys.executable, "flood.py", str(FLOOD_LINES), str(seconds))
            run = HostsRun.start(
                self._machines, self._project, "--workers", "2", "--", *command, hosts="n1:2"
            )
            try:
                run.until_event("task_started", 2)
                yield run
            finally:
                run.clear()

    def _agent_bytes(self) -> int:
        """PSS of the agent on n1, 0 if it has ended."""
        found = 0
        for process in self._machines["n1"].processes():
            with suppress(psutil.Error):
                if process.name() == "orch-agent":
                    found = process.memory_full_info().pss
        return found

    def draw(self) -> None:
        with self._cleared():
            draw = Draw.at_random(self._chance)
            run = draw.start(self._machines, self._project)
            try:
                wrong = draw.named_wrongly(run)
                if wrong:
                    say(f"{wrong}\n{run.text}")
            finally:
                run.clear()
            self.note("first failure: named wrongly", wrong is not None, "", 0)

    @contextmanager
    def _counting(self, *options: str) -> Iterator[HostsRun]:
        """A run whose tasks print lines, at a random time between two pings."""
        with self._cleared():
            run = HostsRun.start(
                self._machines,
                self._project,
                "--workers",
                str(_WORKERS),
                *options,
                *counting_command(self._project),
            )
            try:
                run.until_event("task_started", _WORKERS)
                time.sleep(1.0 + self._chance.random())
                yield run
            finally:
                run.clear()

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        self._project.mkdir()
        try:
            yield
            for name in HOSTS:
                self._machines[name].end_sessions()
                assert host_files(self._machines[name]) == self._files[name], name
        finally:
            shutil.rmtree(self._project)

    def _tasks(self, name: str, program: str = "count.py") -> list[int]:
        return [
            process.pid
            for process in self._machines[name].processes()
            if program in " ".join(process.cmdline())
        ]

    def _looks(self, victim: str) -> Callable[[], bool]:
        if victim == "agent and guard":  # the next start there removes the directory
            return lambda: not self._machines["n1"].programs()
        return self._is_host_empty if victim != "orch" else self._are_empty

    def _is_host_empty(self) -> bool:
        machine = self._machines["n1"]
        return not machine.programs() and host_files(machine) == self._files["n1"]

    def _are_empty(self) -> bool:
        return all(
            not self._machines[name].programs() and host_files(self._machines[name]) == self._files[name]
            for name in HOSTS
        )

    def _expect_whole(self, run: HostsRun) -> None:
        result = run.finish()
        assert result["outcome"] == "succeeded", run.text
        for index in range(_WORKERS):
            log = run.log(f"worker:{index}").replace("marked\n", "")
            last = int(log.rsplit(maxsplit=1)[1])
            assert log == "".join(f"line {number}\n" for number in range(last)) + f"last {last}\n", index


def _times(began: float, looks: Looks) -> dict[str, float]:
    """When each condition became true, in seconds since `began`."""
    seen: dict[str, float] = {}
    while len(seen) < len(looks):
        for name, look in looks.items():
            if name not in seen and look():
                seen[name] = time.monotonic() - began
        if time.monotonic() - began > _PATIENCE_S:
            raise SystemExit(f"only {seen} after {_PATIENCE_S:g} s")
        time.sleep(_LOOK_S)
    return {name: seen[name] for name in looks}


@contextmanager
def _busy(count: int) -> Iterator[None]:
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    parser = options("Measures broken connections and killed processes on pretend machines.", rounds=5)
    parser.add_argument("what", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--seed", type=int, default=0, help="of the draws and of the times of the cuts")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside them (default 0)")
    arguments = parser.parse_args()
    if reason := reason_to_skip():
        raise SystemExit(reason)
    what = arguments.what or PARTS
    machines = Testbed(Path(tempfile.mkdtemp(prefix="orch-bench-")) / "hosts")
    links = Links(machines, random.Random(arguments.seed))
    measures: dict[str, list[Callable[[], None]]] = {
        "cuts": [partial(cut, how) for cut in (links.cut, links.cut_shortly) for how in CUTS],
        "kills": [partial(links.kill, victim) for victim in KILLS],
        "ssh": [links.kill_ssh],
        "draws": [links.draw],
        "flood": [links.flood],
    }
    try:
        with _busy(arguments.load):
            for _ in range(arguments.rounds):
                for measure in (each for name in what for each in measures[name]):
                    measure()
    finally:
        machines.close()
        machines.directory.parent.rmdir()
        if links.lines:
            report("links", links.lines, arguments.json)


if __name__ == "__main__":
    main()
