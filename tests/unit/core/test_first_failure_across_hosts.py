"""The first failure of a run on several hosts, whose clocks are only known within an uncertainty."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from event_making import COLLATERAL, OWN, START, UNKNOWN, emptied, exited, the_result
from host_making import feed_in_turn, running_on

from orchestrator.core.state import events
from orchestrator.core.state.events import Symptom
from orchestrator.core.state.result import RunResult

HOSTS = ("a", "a", "b", "b", "c", "c", "d", "d")
DAY_S = 86_400.0


@dataclass(frozen=True)
class Link:
    """A host's clock and the delays of its messages, in seconds. orch measures the offset by half a round trip, which
    is wrong by up to that half if one direction is slower."""

    offset: float
    to_host: float
    from_host: float

    @property
    def measured_offset(self) -> float:
        return self.offset + (self.from_host - self.to_host) / 2

    @property
    def error(self) -> float:
        return (self.from_host + self.to_host) / 2

    def corrected(self, mono: float) -> float:
        """A time of this machine's clock, read on the host's and corrected."""
        return (mono - self.offset) + self.measured_offset


def drawn_run(seed: int) -> tuple[str, RunResult]:
    """Draw a run whose tasks fail because one did; return that one, and the result."""
    draw = random.Random(seed)
    links = {
        host: Link(draw.uniform(-3, 3) * DAY_S, draw.uniform(0, 0.2), draw.uniform(0, 0.2))
        for host in dict.fromkeys(HOSTS)
    }
    origin = draw.randrange(len(HOSTS))
    symptom = draw.choice([OWN, UNKNOWN])
    failed = {origin: START + 100}
    peers = [index for index in range(len(HOSTS)) if index != origin]
    for index in peers:
        failed[index] = failed[origin] + draw.uniform(0.001, 0.5)
    arrival = {index: at + links[HOSTS[index]].from_host for index, at in failed.items()}
    torn_down = min(arrival.values())
    order = {index: place for place, index in enumerate(sorted(arrival, key=lambda index: arrival[index]))}

    def exit_event(index: int) -> events.TaskExited:
        link = links[HOSTS[index]]
        its: Symptom = symptom if index == origin else COLLATERAL
        event = exited(index, 1, order=order[index], symptom=its, mono=arrival[index])
        stop_at = torn_down + link.to_host
        times = {"ended_mono": link.corrected(failed[index]), "clock_error_s": link.error}
        return event.model_copy(update={**times, "asked": failed[index] > stop_at})

    lifecycle = running_on(HOSTS)
    ends = [exit_event(index) for index in sorted(arrival, key=lambda index: arrival[index])]
    return f"worker:{origin}", the_result(feed_in_turn(lifecycle, [*ends, emptied(START + 102)]))


@pytest.mark.parametrize("seed", range(200))
def test_first_failure_is_found_with_any_clocks_and_latencies(seed: int) -> None:
    origin, result = drawn_run(seed)
    assert result.first_failure is not None and result.cause is not None
    assert (result.first_failure.task, result.cause.task) == (origin, origin)


def test_order_on_one_host_does_not_depend_on_its_clock() -> None:
    lifecycle = running_on(("a", "a"))
    first = exited(1, 3, order=0).model_copy(update={"ended_mono": START + 9, "clock_error_s": 5.0})
    second = exited(0, 4, order=1, symptom=OWN).model_copy(
        update={"ended_mono": START + 1, "clock_error_s": 5.0, "asked": False}
    )
    result = the_result(feed_in_turn(lifecycle, [first, second, emptied()]))
    assert result.first_failure is not None and result.first_failure.task == "worker:1"


def test_slow_exit_after_its_own_exception_is_the_cause() -> None:
    """The peer on another host exits first, and blames a peer."""
    lifecycle = running_on(("a", "b"))
    peer = exited(0, 1, order=0, symptom=COLLATERAL).model_copy(update={"ended_mono": START + 1})
    slow = exited(1, 1, order=1, symptom=OWN).model_copy(update={"ended_mono": START + 2, "asked": False})
    result = the_result(feed_in_turn(lifecycle, [peer, slow, emptied()]))
    assert result.cause is not None and result.cause.line == "worker:1: ValueError: boom"


def raised(index: int, order: int, raised_s: float, ended_s: float) -> events.TaskExited:
    symptom = OWN.model_copy(update={"raised_mono": START + raised_s})
    event = exited(index, 1, order=order, symptom=symptom)
    return event.model_copy(update={"ended_mono": START + ended_s, "clock_error_s": 0.1, "asked": False})


@pytest.mark.parametrize("slow_first", [0.3, 0.1])  # surely before, and within the uncertainty of the clocks
def test_first_exception_counts_and_not_the_first_exit(slow_first: float) -> None:
    """A task that raised first may take longer to exit than peers that raised because of it."""
    lifecycle = running_on(("a", "b", "c"))
    peers = [raised(0, 0, 1.0 + slow_first, 1.4), raised(1, 1, 1.1 + slow_first, 1.6)]
    result = the_result(feed_in_turn(lifecycle, [*peers, raised(2, 2, 1.0, 3.0), emptied()]))
    assert result.first_failure is not None and result.cause is not None
    assert (result.first_failure.task, result.cause.task) == ("worker:2", "worker:2")


@pytest.mark.parametrize(
    "peer", [*(OWN.model_copy(update={"raised_mono": START + s}) for s in (1.05, 1.3)), UNKNOWN]
)
def test_first_exception_is_the_cause_if_its_task_was_stopped_in_its_exit(peer: Symptom) -> None:
    """The exit of a peer came first, and the teardown ended the slow task."""
    lifecycle = running_on(("a", "b"))
    first = exited(0, 1, order=0, symptom=peer).model_copy(update={"ended_mono": START + 1.4})
    slow = raised(1, 1, 1.0, 1.5).model_copy(update={"exit_code": None, "signal": 15, "asked": True})
    result = the_result(feed_in_turn(lifecycle, [first, slow, emptied()]))
    assert result.first_failure is not None and result.cause is not None
    assert (result.first_failure.task, result.cause.task) == ("worker:0", "worker:1")


def test_task_that_a_signal_ended_is_the_cause_whatever_others_raised() -> None:
    lifecycle = running_on(("a", "b"))
    killed = exited(0, signal=9, order=0, symptom=UNKNOWN).model_copy(update={"ended_mono": START + 1.4})
    result = the_result(feed_in_turn(lifecycle, [killed, raised(1, 1, 1.0, 1.5), emptied()]))
    assert result.cause is not None and result.cause.task == "worker:0"


def test_exit_with_0_that_is_surely_before_left_early() -> None:
    for ended, error, kind in ((START - 1, 0.1, "left_early"), (START - 1, 2.0, "exited")):
        lifecycle = running_on(("a", "b"))
        early = exited(0, 0, order=0).model_copy(update={"ended_mono": ended, "clock_error_s": error})
        peer = exited(1, 1, order=1, symptom=COLLATERAL)
        result = the_result(feed_in_turn(lifecycle, [early, peer, emptied()]))
        assert result.cause is not None and result.cause.kind == kind
