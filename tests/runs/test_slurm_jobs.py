"""The state of its Slurm job decides about a run whose lock is free. Slurm's programs are scripts here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_records import make_run, view_of

from orchestrator.core.state.state import RunPhase
from orchestrator.engines.slurm import SlurmEngine
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.liveness import Liveness
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.slurm_jobs import NOT_SHARED, own_cluster

_SQUEUE = """#!/bin/sh
case "$*" in
  *exit_code*) echo "{status}" ;;
  *) {answer} ;;
esac
"""
_UNKNOWN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
# An answer is used for a second, so each test asks about another job.
_JOBS = itertools.count(1)

Answer = Callable[..., None]


@pytest.fixture
def slurm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    """Sets what squeue prints: a state with its reason, or a line of shell."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def write(name: str, text: str) -> None:
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def say(answer: str, exit_code: int = 0) -> None:
        shell = answer if ">&2" in answer else f"echo '{answer}'"
        write("squeue", _SQUEUE.format(answer=shell, status=exit_code << 8))

    write("scontrol", "#!/bin/sh\necho 'ClusterName             = one'\n")
    own_cluster.cache_clear()
    yield say
    own_cluster.cache_clear()


def free_run(cluster: str = "one") -> RunView:
    """A run in a job, whose supervisor is not there. It was on another machine."""
    store = make_run(job=str(next(_JOBS)))
    store.take_over(store.record.model_copy(update={"cluster": cluster, "host": "n1"}))
    store.close()
    return view_of(store.paths)


@pytest.mark.parametrize(
    ("answer", "liveness", "phase"),
    [
        ("PENDING|Resources|2026-11-23T17:00:00", Liveness.LIVE, RunPhase.QUEUED),
        ("REQUEUE_HOLD|launch failure|N/A", Liveness.LIVE, RunPhase.QUEUED),
        ("RUNNING|None|N/A", Liveness.LIVE, RunPhase.STARTING),
        ("COMPLETING|None|N/A", Liveness.LIVE, RunPhase.STARTING),
        ("NODE_FAIL|None|N/A", Liveness.DEAD, RunPhase.LOST),
        (_UNKNOWN, Liveness.DEAD, RunPhase.LOST),
        ("echo Unable to contact slurm controller >&2; exit 1", Liveness.UNKNOWN, RunPhase.STARTING),
    ],
)
def test_state_of_the_job_decides(
    slurm_says: Answer, answer: str, liveness: Liveness, phase: RunPhase
) -> None:
    slurm_says(answer)
    run = free_run()
    assert run.liveness is liveness
    run.refresh()
    assert run.state.phase is phase


def test_reason_and_expected_start_are_those_of_slurm(slurm_says: Answer) -> None:
    slurm_says("PENDING|Resources|2026-11-23T17:00:00")
    run = free_run()
    run.refresh()
    assert run.state.queued is not None
    assert (run.state.queued.reason, run.state.queued.start) == ("Resources", "2026-11-23T17:00:00")


def test_job_of_another_cluster_is_not_asked_about(slurm_says: Answer) -> None:
    """Two clusters may have the same home directory."""
    slurm_says(_UNKNOWN)
    assert free_run("two").liveness is Liveness.UNKNOWN


def test_recorded_end_needs_no_slurm(slurm_says: Answer) -> None:
    slurm_says("RUNNING|None|N/A")
    run = free_run()
    assert run.is_live
    (run.paths.root / "events.jsonl").open("a").write(
        '{"at":1.0,"mono":1.0,"type":"run_ended","outcome":"failed","exit_code":1}\n'
    )
    assert not run.is_live


@pytest.mark.parametrize(
    ("answer", "exit_code", "text"),
    [
        ("CANCELLED|None|N/A", 0, "was cancelled"),
        ("FAILED|NonZeroExitCode|N/A", 127, "has failed; see "),
        ("FAILED|NonZeroExitCode|N/A", NOT_SHARED, "is not on the nodes of Slurm's job"),
        (_UNKNOWN, 0, "is not known to Slurm any more"),
    ],
)
def test_lost_run_is_closed_with_the_end_of_its_job(
    slurm_says: Answer, answer: str, exit_code: int, text: str
) -> None:
    slurm_says(answer, exit_code)
    run = free_run()
    (run.paths.root / "job.log").touch()
    lost_runs.close_lost_runs(catalog.survey())
    result = run.result()
    assert result is not None
    assert result.cause is not None
    assert (result.outcome, result.exit_code) == ("lost", 125)
    assert text in result.cause.text


@pytest.mark.parametrize("order", [1, -1])
def test_words_of_the_command_explain_the_end_of_a_step(slurm_says: Answer, order: int) -> None:
    slurm_says("RUNNING|None|N/A")
    lines = ["sh: 1: /no/python: not found", "srun: error: n1: task 0: Exited with exit code 127"]
    assert "/no/python: not found" in SlurmEngine("1").explain("n1", 127, "\n".join(lines[::order]))
    assert "exit code 127" in SlurmEngine("1").explain("n1", 127, lines[1])


def test_node_that_starts_no_step_is_named_with_what_to_do(slurm_says: Answer) -> None:
    slurm_says("RUNNING|None|N/A")
    engine, by_the_way = SlurmEngine("1"), "srun: cluster configuration lacks support for cpu binding\n"
    failed = f"{by_the_way}srun: error: Application launch failed: Socket timed out on send/recv operation"
    said = engine.explain("n2", 1, failed)
    assert said.startswith(
        "n2: Slurm could not start a step there (srun: error: Application launch failed: Socket"
    )
    silent = engine.explain_silence("n2", 30.0, by_the_way)
    assert silent.startswith("n2: the step of Slurm's job 1 did not answer within 30 s; look at slurmd")
    assert all('--slurm "--exclude=n2"' in text for text in (said, silent))
