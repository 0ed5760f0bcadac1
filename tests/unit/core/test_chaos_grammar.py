"""The grammar of planned faults: what is read, what is refused and how it is told, and that it reads what it writes."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.job.fault import MOST_FAULTS, Fault, parse_chaos, with_targets
from orchestrator.core.job.tf_config import ROLES, TaskRef
from orchestrator.core.text.durations import MAX_DURATION_S


def worker(index: int) -> TaskRef:
    return TaskRef(type="worker", index=index)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill worker:1 at step 20", Fault(signal=9, task=worker(1), step=20)),
        ("KILL 1 At Step 20", Fault(signal=9, task=worker(1), step=20)),
        ("stop worker:0 at 30s for 25s", Fault(signal=19, task=worker(0), at_s=30, for_s=25)),
        ("stop 0 at 1m30s", Fault(signal=19, task=worker(0), at_s=90)),
        ("term 0 at epoch 2", Fault(signal=15, task=worker(0), epoch=2)),
        ("int chief at ready", Fault(signal=2, task=TaskRef(type="chief", index=0))),
        ("kill ps:1 at start", Fault(signal=9, task=TaskRef(type="ps", index=1), at_s=0)),
        ("kill 0 at 0s", Fault(signal=9, task=worker(0), at_s=0)),
        ("signal USR1 0 at ready", Fault(signal=10, task=worker(0))),
        ("signal SIGUSR1 0 at ready", Fault(signal=10, task=worker(0))),
        ("signal 10 0 at ready", Fault(signal=10, task=worker(0))),
        ("signal stop 0 at ready for 250ms", Fault(signal=19, task=worker(0), for_s=0.25)),
        ("kill any at step 3 in attempt 2", Fault(signal=9, step=3, attempt=2)),
        ("kill any#7 at step 3", Fault(signal=9, seed=7, step=3)),
        ("stop 0 at 5s for 3s in attempt 4", Fault(signal=19, task=worker(0), at_s=5, for_s=3, attempt=4)),
    ],
)
def test_one_fault(text: str, fault: Fault) -> None:
    assert parse_chaos(text) == (fault,)


def test_several_faults_and_stray_semicolons() -> None:
    text = " ; kill worker:1 at step 20;\n stop chief at 30s for 25s ;"
    assert [str(fault) for fault in parse_chaos(text)] == [
        "kill worker:1 at step 20",
        "stop chief:0 at 30s for 25s",
    ]


@pytest.mark.parametrize(
    ("text", "where", "right"),
    [
        ("", "", "kill worker:1 at step 20"),
        (" ; ; ", "", "kill worker:1 at step 20"),
        ("kil 0 at ready", 'character 1, "kil"', 'did you mean "kill"?'),
        ("kill", "character 5", "a task: worker:1, chief, 0 or any"),
        ("kill workr:1 at ready", 'character 6, "workr:1"', 'did you mean "worker:1"?'),
        ("kill worker at ready", 'character 6, "worker"', 'did you mean "worker:0"?'),
        ("kill any#x at ready", 'character 6, "any#x"', "worker:1, chief, 0 or any"),
        ("kill 0", "character 7", '"at step 20"'),
        ("kill 0 when ready", 'character 8, "when"', '"at step 20"'),
        ("kill 0 at", "character 10", "step 20, epoch 2"),
        ("kill 0 at 20", 'character 11, "20"', "step 20 or 20s"),
        ("kill 0 at 20x", 'character 11, "20x"', "step 20, epoch 2, 30s"),
        ("kill 0 at -3s", 'character 11, "-3s"', "step 20, epoch 2, 30s"),
        ("kill 0 at step", "character 15", "a step such as 20"),
        ("kill 0 at step twenty", 'character 16, "twenty"', "a step such as 20"),
        ("kill 0 at step -1", 'character 16, "-1"', "a step such as 20"),
        ("kill 0 at epoch 0", 'character 17, "0"', "the first is 1"),
        ("kill 0 at ready for 5s", 'character 17, "for"', "only stop has a length"),
        ("stop 0 at ready for ever", 'character 21, "ever"', "25s"),
        ("stop 0 at ready for 0s", 'character 21, "0s"', "25s"),
        ("stop 0 at ready for", "character 20", "a length of time"),
        ("kill 0 at ready in 2", 'character 20, "2"', "attempt 2"),
        ("kill 0 at ready in attempt 0", 'character 28, "0"', "the first is 1"),
        ("kill 0 at ready, stop 1 at ready", 'character 11, "ready,"', "step 20, epoch 2"),
        ("kill 0 at ready kill 1 at ready", 'character 17, "kill"', "semicolons"),
        ("kill 0 at ready; stop 1 at bad", 'character 28, "bad"', "step 20, epoch 2"),
        ("signal 0 at ready", "character 8", "1 to 64"),
        ("signal 65 0 at ready", "character 8", "1 to 64"),
        ("signal SIGKIL 0 at ready", "character 8", 'did you mean "KILL"?'),
        ("signal 9", "character 9", "a task"),
        (";".join(["kill 0 at ready"] * (MOST_FAULTS + 1)), "", f"at most {MOST_FAULTS}"),
    ],
)
def test_error_names_the_place_and_the_right_form(text: str, where: str, right: str) -> None:
    with pytest.raises(ValueError) as told:
        parse_chaos(text)
    assert where in str(told.value)
    assert right in str(told.value)


faults = st.builds(
    lambda base, moment, target, for_s, attempt: Fault(
        signal=signal.SIGSTOP if for_s is not None else base, **moment, **target, for_s=for_s, attempt=attempt
    ),
    st.integers(1, 64),
    st.one_of(
        st.just({}),
        st.builds(lambda step: {"step": step}, st.integers(0, 10**12 - 1)),
        st.builds(lambda epoch: {"epoch": epoch}, st.integers(1, 10**12 - 1)),
        st.builds(lambda at_s: {"at_s": at_s}, st.floats(0, MAX_DURATION_S)),
    ),
    st.one_of(
        st.builds(
            lambda role, index: {
                "task": TaskRef(type=role, index=0 if role in ("chief", "evaluator") else index)
            },
            st.sampled_from(ROLES),
            st.integers(0, 999_999),
        ),
        st.builds(lambda seed: {"seed": seed}, st.none() | st.integers(0, 10**9 - 1)),
    ),
    st.none() | st.floats(0.001, MAX_DURATION_S),
    st.integers(1, 10**12 - 1),
)


@given(st.lists(faults, min_size=1, max_size=4))
def test_written_lines_are_read_back(planned: list[Fault]) -> None:
    assert parse_chaos("; ".join(map(str, planned))) == tuple(planned)


@given(st.text() | st.text(alphabet="kilstoparndyweg :;#0123456789\n", max_size=60))
def test_any_file_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        assert parse_chaos(text)
    except ValueError as error:
        assert len(str(error)) < 400


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 1, "epoch": 1},
        {"step": 1, "at_s": 0},
        {"for_s": 1.0},
        {"signal": signal.SIGSTOP, "for_s": 0.0},
        {"task": worker(0), "seed": 1},
        {"step": -1},
        {"epoch": 0},
        {"attempt": 0},
        {"signal": 65},
        {"at_s": float("nan")},
    ],
)
def test_fault_text_has_one_meaning(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Fault.model_validate({"signal": 9, **fields})


def test_seed_selects_one_task_and_every_task_has_a_seed() -> None:
    tasks = ["worker:0", "worker:1", "worker:2"]
    hits = [Fault(signal=9, seed=seed).target(tasks) for seed in range(60)]
    assert hits == [Fault(signal=9, seed=seed).target(tasks) for seed in range(60)]
    assert set(hits) == set(tasks)


def test_fault_without_its_task_has_no_target() -> None:
    assert Fault(signal=9, task=worker(2)).target(["worker:0", "worker:1"]) is None
    assert Fault(signal=9, seed=1).target([]) is None


def test_fault_on_a_cluster_has_one_target() -> None:
    seeds = iter([11, 12])
    planned = parse_chaos("kill chief at ready; kill any at ready; kill any#5 at ready; kill any at ready")
    assert [str(fault) for fault in with_targets(planned, {"worker": 2}, lambda: next(seeds))] == [
        "kill worker:0 at ready",
        "kill any#11 at ready",
        "kill any#5 at ready",
        "kill any#12 at ready",
    ]
    (chief,) = with_targets(parse_chaos("kill chief at ready"), {"chief": 1, "worker": 2}, lambda: 0)
    assert str(chief) == "kill chief:0 at ready"
