"""Progress that tasks write into their pipes: complete, before the exit, and without effect on other tasks."""

from __future__ import annotations

from agent_driving import Driver, python
from waiting import until

from orchestrator.core.progress.reported import parse_progress
from orchestrator.core.state.events import Progress
from worker.wire.messages import Exited, ProgressMade

WRITES = "import os; fd = int(os.environ['ORCH_PROGRESS_FD']); "
FLOODS = """
import os
fd = int(os.environ["ORCH_PROGRESS_FD"])
data = b'{"step": 1}\\n' * 5000
while True:
    os.write(fd, data)
"""
# 9 MB in 2 s.
MUCH = """
import json, os, time
fd = int(os.environ["ORCH_PROGRESS_FD"])
for step in range(150):
    os.write(fd, json.dumps({"step": step, "at_once": True, "text": "x" * 60_000}).encode() + b"\\n")
    time.sleep(0.013)
open("done", "w").close()
time.sleep(600)
"""
INVALID = [
    rb"no json",
    rb"[1, 2]",
    rb'{"\ud800": "\ud800"}',
    b'{"step": ' + b"9" * 3000 + b"}",
    b'{"loss": ' + b"[" * 100_000 + b"\n{",
    # As deep as can be read, and one more: what was read must be written again.
    b"\n".join(b'{"metrics": ' + b'{"a":' * depth + b"1" + b"}" * (depth + 1) for depth in range(900, 1000)),
    b"\xff\xfe",
]


def progress_of(agent: Driver, task: str) -> list[ProgressMade]:
    return [message for message in agent.all_of(ProgressMade) if message.task == task]


def test_progress_arrives_complete_and_before_the_exit(agent: Driver) -> None:
    agent.start("a", python(WRITES + "os.write(fd, b'{\"ep'); os.write(fd, b'och\": 3}\\n')"))
    said = b'{"phase": "training", "epoch": 2, "step": 7, "steps": 7}\n{"phase": "evaluating"}\n'
    agent.start("b", python(WRITES + f"os.write(fd, {said!r})"))
    exited = {name: agent.wait_for(Exited, name) for name in "ab"}
    ((first,), (second,)) = (progress_of(agent, name) for name in "ab")
    assert parse_progress(first.progress) == Progress(epoch=3)
    assert agent.messages.index(first) < agent.messages.index(exited["a"])
    # A new phase drops the steps of the last one.
    assert parse_progress(second.progress) == Progress(phase="evaluating", epoch=2)


def test_invalid_progress_is_ignored(agent: Driver) -> None:
    """A task can write anything into that pipe, which must not end the run."""
    for number, line in enumerate(INVALID):
        (agent.directory / str(number)).write_bytes(line + b"\n")
        agent.start(f"t{number}", python(WRITES + f"os.write(fd, open('{number}', 'rb').read())"))
    for number in range(len(INVALID)):
        agent.wait_for(Exited, f"t{number}")
    reported = (
        (line[:20], parse_progress(made.progress))
        for n, line in enumerate(INVALID)
        for made in progress_of(agent, f"t{n}")
    )
    wrong = [each for each in reported if each[1] not in (None, Progress())]
    assert not wrong
    agent.start("valid", python(WRITES + 'os.write(fd, b\'{"epoch": 1, "loss": NaN}\\n\')'))
    agent.wait_for(Exited, "valid")
    progress = parse_progress(progress_of(agent, "valid")[0].progress)
    assert progress is not None and progress.epoch == 1


def test_flood_of_progress_does_not_delay_other_tasks(agent: Driver) -> None:
    """Nor does a grandchild that floods the pipe delay the exit of its task."""
    leaves = (
        "import os, time\nif os.fork():\n while not os.path.exists('go'): time.sleep(0.01)\n os._exit(4)\n"
    )
    agent.start("a", python(FLOODS))
    agent.start("b", python(leaves + FLOODS))
    for name in ("a", "b"):
        agent.wait_for(ProgressMade, name)
    (agent.directory / "go").touch()
    assert agent.exited("b").exit_code == 4
    agent.start("c", python("raise SystemExit(3)"))
    assert agent.exited("c").exit_code == 3
    agent.end()
    assert agent.exits().keys() == {"a", "b", "c"}


def test_progress_does_not_pile_up_while_the_supervisor_is_stopped(agent: Driver) -> None:
    """One MiB is kept for it, besides the newest progress and what the socket holds."""
    agent.start("a", python(MUCH))
    until((agent.directory / "done").exists)
    until(lambda: agent.receive() or '"step": 149' in progress_of(agent, "a")[-1].progress)
    assert sum(len(each.progress) for each in progress_of(agent, "a")) < 5_000_000
