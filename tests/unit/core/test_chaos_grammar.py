"""The grammar of planned faults and of signals: which forms are read or refused, and reading back what was written."""

from __future__ import annotations

import contextlib
import signal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.job.fault import MOST_FAULTS, Fault, parse_chaos, with_targets
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.text.durations import MAX_DURATION_S
from orchestrator.core.text.signal_names import parse_signal, short_name, short_names

ZERO, ONE = TaskRef(type="worker", index=0), TaskRef(type="worker", index=1)


def test_faults_are_read() -> None:
    rows = {
        "kill worker:1 at step 20": Fault(signal=9, task=ONE, step=20),
        "KILL 1 At Step 20": Fault(signal=9, task=ONE, step=20),
        "stop worker:0 at 30s for 25s": Fault(signal=19, task=ZERO, at_s=30, for_s=25),
        "stop 0 at 1m30s": Fault(signal=19, task=ZERO, at_s=90),
        "term 0 at epoch 2": Fault(signal=15, task=ZERO, epoch=2),
        "int chief at ready": Fault(signal=2, task=TaskRef(type="chief", index=0)),
        "kill ps:1 at start": Fault(signal=9, task=TaskRef(type="ps", index=1), at_s=0),
        "kill 0 at 0s": Fault(signal=9, task=ZERO, at_s=0),
        "signal USR1 0 at ready": Fault(signal=10, task=ZERO),
        "signal SIGUSR1 0 at ready": Fault(signal=10, task=ZERO),
        "signal 10 0 at ready": Fault(signal=10, task=ZERO),
        "signal stop 0 at ready for 250ms": Fault(signal=19, task=ZERO, for_s=0.25),
        "kill any at step 3 in attempt 2": Fault(signal=9, step=3, attempt=2),
        "kill any#7 at step 3": Fault(signal=9, seed=7, step=3),
        "stop 0 at 5s for 3s in attempt 4": Fault(signal=19, task=ZERO, at_s=5, for_s=3, attempt=4),
    }
    wrong = {text: parse_chaos(text) for text, fault in rows.items() if parse_chaos(text) != (fault,)}
    assert not wrong, wrong
    several = parse_chaos(" ; kill worker:1 at step 20;\n stop chief at 30s for 25s ;")
    assert [str(fault) for fault in several] == ["kill worker:1 at step 20", "stop chief:0 at 30s for 25s"]


def refusal(text: str) -> str:
    try:
        return f"read as {parse_chaos(text)}"
    except ValueError as error:
        return str(error)


# In each line: a place in the word (^), and what the message says about it.
REFUSED = """\
^kil 0 at ready => "kil"; did you mean "kill"?
kill^ => a task: worker:1, chief, 0 or any
kill ^workr:1 at ready => "workr:1"; did you mean "worker:1"?
kill ^worker at ready => "worker"; did you mean "worker:0"?
kill ^any#x at ready => "any#x"; worker:1, chief, 0 or any
kill 0^ => "at step 20"
kill 0 ^when ready => "when"; "at step 20"
kill 0 at^ => step 20, epoch 2
kill 0 at ^20 => "20"; step 20 or 20s
kill 0 at ^20x => "20x"; step 20, epoch 2, 30s
kill 0 at ^-3s => "-3s"; step 20, epoch 2, 30s
kill 0 at step^ => a step such as 20
kill 0 at step ^-1 => "-1"; a step such as 20
kill 0 at epoch ^0 => "0"; the first is 1
kill 0 at ready ^for 5s => "for"; only stop has a length
stop 0 at ready for ^ever => "ever"; 25s
stop 0 at ready for ^0s => "0s"; 25s
stop 0 at ready for^ => a length of time
kill 0 at ready in ^2 => "2"; attempt 2
kill 0 at ready in attempt ^0 => "0"; the first is 1
kill 0 at ^ready, stop 1 at ready => "ready,"; step 20, epoch 2
kill 0 at ready ^kill 1 at ready => "kill"; semicolons
kill 0 at ready; stop 1 at ^bad => "bad"; step 20, epoch 2
signal ^0 at ready => 1 to 64
signal ^65 0 at ready => 1 to 64
signal ^SIGKIL 0 at ready => did you mean "KILL"?
signal 9^ => a task"""


def test_refusal_names_the_place_and_the_right_form() -> None:
    rows = {
        "": ["kill worker:1 at step 20"],
        " ; ; ": ["kill worker:1 at step 20"],
        ";".join(["kill 0 at ready"] * (MOST_FAULTS + 1)): [f"at most {MOST_FAULTS}"],
    }
    for line in REFUSED.splitlines():
        text, _, says = line.partition(" => ")
        place = len(text) if text.endswith("^") else text.index("^") + 1
        rows[text.replace("^", "")] = [f"character {place}", *says.split("; ")]
    said = {text: refusal(text) for text in rows}
    wrong = {text: told for text, told in said.items() if any(part not in told for part in rows[text])}
    assert not wrong, wrong


_COUNT = 10**12 - 1
moments = (
    st.just({})
    | st.fixed_dictionaries({"step": st.integers(0, _COUNT)})
    | st.fixed_dictionaries({"epoch": st.integers(1, _COUNT)})
    | st.fixed_dictionaries({"at_s": st.floats(0, MAX_DURATION_S)})
)
tasks = st.one_of(
    st.builds(TaskRef, type=st.sampled_from(["worker", "ps"]), index=st.integers(0, 999_999)),
    st.builds(TaskRef, type=st.sampled_from(["chief", "evaluator"]), index=st.just(0)),
)
targets = tasks.map(lambda task: {"task": task}) | st.integers(0, 10**9 - 1).map(lambda seed: {"seed": seed})
signals = st.integers(1, 64).map(lambda number: {"signal": number}) | st.floats(0.001, MAX_DURATION_S).map(
    lambda for_s: {"signal": signal.SIGSTOP, "for_s": for_s}
)
faults = st.builds(
    lambda kind, moment, target, attempt: Fault(**kind, **moment, **target, attempt=attempt),
    *(signals, moments, targets | st.just({}), st.integers(1, _COUNT)),
)


@given(st.lists(faults, min_size=1, max_size=4))
def test_written_lines_are_read_back(planned: list[Fault]) -> None:
    assert parse_chaos("; ".join(map(str, planned))) == tuple(planned)


def test_fields_of_a_fault_have_one_meaning() -> None:
    accepted = []
    two = ({"step": 1, "epoch": 1}, {"step": 1, "at_s": 0}, {"task": ZERO, "seed": 1}, {"for_s": 1.0})
    out = ({"step": -1}, {"epoch": 0}, {"attempt": 0}, {"signal": 65}, {"at_s": float("nan")})
    for fields in (*two, *out, {"signal": signal.SIGSTOP, "for_s": 0.0}):
        with contextlib.suppress(ValueError):
            accepted.append(Fault.model_validate({"signal": 9, **fields}))
    assert not accepted


def test_target_of_a_fault() -> None:
    tasks = ["worker:0", "worker:1", "worker:2"]
    hits = [Fault(signal=9, seed=seed).target(tasks) for seed in [*range(60)] * 2]
    assert hits[:60] == hits[60:] and set(hits) == set(tasks)
    assert Fault(signal=9, task=ONE).target(["worker:0", "worker:2"]) is None
    assert Fault(signal=9, seed=1).target([]) is None


def test_faults_of_a_cluster_get_their_targets() -> None:
    """The chief may be worker 0; an `any` without a seed gets one."""
    seeds = iter([11, 12])
    planned = parse_chaos("kill chief at ready; kill any at ready; kill any#5 at ready; kill any at ready")
    targets = ["worker:0", "any#11", "any#5", "any#12"]
    assert [str(fault) for fault in with_targets(planned, {"worker": 2}, lambda: next(seeds))] == [
        f"kill {target} at ready" for target in targets
    ]
    (chief,) = with_targets(parse_chaos("kill chief at ready"), {"chief": 1, "worker": 2}, lambda: 0)
    assert str(chief) == "kill chief:0 at ready"


def refusal_of(text: str) -> str:
    try:
        return f"read as {parse_signal(text)}"
    except ValueError as error:
        return str(error)


def test_names_and_numbers_are_read_or_refused_with_the_right_form() -> None:
    rows = dict.fromkeys(("KILL", "SIGKILL", "kill", "sigkill", " 9 ", "9", "009"), "read as 9")
    rows |= dict.fromkeys(("0", "65", "9" * 5000), "1 to 64")
    rows |= dict.fromkeys(("-9", "9.0", "²", "x" * 5000), "a number")
    rows |= {"": "KILL, TERM, STOP or CONT", "TREM": 'did you mean "TERM"?', "SIGUSR": 'did you mean "USR'}
    said = {text: refusal_of(text) for text in rows}
    wrong = {text: told for text, told in said.items() if rows[text] not in told or len(told) >= 100}
    assert not wrong, wrong


def test_every_signal_has_a_name_that_is_offered_and_read_back() -> None:
    assert [parse_signal(short_name(number)) for number in range(1, 65)] == [*range(1, 65)]
    assert {parse_signal(name) for name in short_names()} == set(map(int, signal.Signals))
    assert short_names()[0] == "KILL"
