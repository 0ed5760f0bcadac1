"""Lines that the other tasks print after the first failure are one line."""

from __future__ import annotations

import pytest
from moments import exited, moment, running
from screen import Screen, Watched

from orchestrator.client.view.aftermath import Aftermath, Failure, first_failure, grouped_tasks
from orchestrator.client.view.folding import Folder, group_label
from orchestrator.client.view.terminal import TerminalView
from orchestrator.core.state.events import TeardownBegan, TeardownReason
from orchestrator.store.logs.lines import Block, Chunk

_FAILED_AT = 1_795_404_085.6
_FAILURE = Failure("worker:1", 1, _FAILED_AT)


def _block(task: str, text: str = "x\n", after_s: float = 0.1, attempt: int = 1) -> Block:
    return Block(task, attempt, _FAILED_AT + after_s, text.encode())


def _lines(blocks: list[Block]) -> list[str]:
    return [f"{block.task} | {line}" for block in blocks for line in block.data.decode().splitlines()]


def _failing() -> Aftermath:
    aftermath = Aftermath()
    assert aftermath.feed([_block("worker:1", "Traceback\n", after_s=-0.1)])
    assert aftermath.begin(_FAILURE) == []
    return aftermath


def test_lines_of_the_others_are_counted() -> None:
    aftermath = _failing()
    assert aftermath.feed([_block("worker:0", "x\n" * 60), _block("worker:0", "y\n" * 8)]) == []
    assert _lines(aftermath.flush()) == [
        "worker:0 | 68 lines after worker:1 failed (orch logs worker:0 shows them)"
    ]
    assert aftermath.flush() == []


def test_time_of_the_failure_may_vary_from_state_to_state() -> None:
    aftermath = _failing()
    aftermath.feed([_block("worker:0", "x\n" * 9)])
    assert aftermath.begin(_FAILURE._replace(at=_FAILED_AT + 1e-5)) == []
    assert len(aftermath.flush()) == 1


def test_several_tasks_share_the_line() -> None:
    aftermath = _failing()
    aftermath.feed([_block("worker:0,2", "x\n" * 2), _block("worker:3", "y\n" * 4)])
    assert _lines(aftermath.flush()) == [
        "worker:0,2-3 | 8 lines after worker:1 failed (orch logs shows them)"
    ]


def test_few_lines_are_shown() -> None:
    aftermath = _failing()
    assert aftermath.feed([_block("worker:0", "saved a checkpoint\nbye\n")]) == []
    assert _lines(aftermath.flush()) == ["worker:0 | saved a checkpoint", "worker:0 | bye"]


@pytest.mark.parametrize(
    "block",
    [
        _block("worker:1", "x\n" * 9),
        _block("worker:0-1", "x\n" * 9),
        _block("worker:0", "x\n" * 9, after_s=-0.2),
        _block("worker:0", "x\n" * 9, attempt=2),
        Block("worker:0", 1, None, b"x\n" * 9),
    ],
    ids=["culprit", "culprit and another", "before its last line", "next attempt", "time unknown"],
)
def test_other_lines_pass(block: Block) -> None:
    assert _failing().feed([block]) == [block]


def test_connection_is_lost_before_the_exit_is_noticed() -> None:
    aftermath = _failing()
    assert aftermath.feed([_block("worker:0", "E0000 ring_alg.cc:291] ...\n" * 9, after_s=-0.02)]) == []


def test_without_a_failure_all_lines_pass() -> None:
    block = _block("worker:0", "x\n" * 9)
    assert Aftermath().feed([block]) == [block]


def test_next_attempt_shows_what_was_counted() -> None:
    aftermath = _failing()
    aftermath.feed([_block("worker:0", "x\n" * 9)])
    assert len(aftermath.begin(None)) == 1
    assert aftermath.feed([_block("worker:0", attempt=2)])


def test_failure_is_the_first_bad_exit_before_the_teardown() -> None:
    teardown = TeardownBegan(at=0, mono=15.1, reason=TeardownReason.FAILURE, grace_s=1)
    state = running(3, exited("worker:2", 0), exited("worker:1", 3), teardown, exited("worker:0", None, 9))
    assert first_failure(state, 100.0) == Failure("worker:1", 1, 115.0)


@pytest.mark.parametrize("reason", [TeardownReason.REQUEST, TeardownReason.FINISHED])
def test_teardown_for_another_reason_folds_nothing(reason: TeardownReason) -> None:
    state = running(2, exited("worker:1", 3), TeardownBegan(at=0, mono=15.1, reason=reason, grace_s=1))
    assert first_failure(state, 0.0) is None


def test_lines_of_all_tasks_while_a_limit_ends_the_run_are_one_line() -> None:
    state = running(2, TeardownBegan(at=0, mono=15.0, reason=TeardownReason.LIMIT, grace_s=1))
    aftermath = Aftermath()
    aftermath.begin(first_failure(state, 100.0))
    assert aftermath.feed([_block("worker:0", "x\n" * 9), _block("worker:1", "y\n" * 9)]) == []
    (folded,) = aftermath.flush()
    assert folded.data == b"18 lines while the run was stopped (orch logs shows them)\n"


def test_labels_are_read_back() -> None:
    for tasks in ({"worker:0"}, {"worker:0", "worker:2", "worker:3"}, {"chief:0", "ps:0", "worker:1"}):
        assert grouped_tasks(group_label(sorted(tasks))) == tasks


def test_terminal_holds_the_lines_until_the_teardown_is_known() -> None:
    """The exit of the culprit is known some milliseconds before the decision to tear the run down."""
    failed = exited("worker:1", 3)
    teardown = TeardownBegan(at=0, mono=15.01, reason=TeardownReason.FAILURE, grace_s=1)
    with Screen() as screen:
        watched = Watched(screen)
        watched.now = 100.0
        watched.view = TerminalView(
            watched.out, watched.style, screen.size, folder=Folder("--hint"), wall_clock=lambda: watched.now
        )
        watched.view.update(moment(running(2, failed), now=15.0))
        watched.view.show([Chunk("worker:0", 1, watched.now, 0, b"lost my peer\n" * 40)])
        assert not any("lost" in line for line in watched.frame())
        watched.view.update(moment(running(2, failed, teardown), now=16.0))
        assert watched.frame()[0].startswith("digits")
        shown = watched.finish()
        watched.close()
    assert shown == ["worker:0 | 40 lines after worker:1 failed (orch logs worker:0 shows them)"]
