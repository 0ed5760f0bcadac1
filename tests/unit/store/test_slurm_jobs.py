"""Slurm's answers about jobs and allocations. The state of a job shows whether a run with a free lock is live. The
programs of Slurm are scripts here."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from orch_command import ORCH
from run_records import make_run, one_task, view_of
from terminal_signals import restore_terminal_signals
from waiting import PATIENCE_S, until

from orchestrator.cli import submitted
from orchestrator.client.submit import submit
from orchestrator.core.errors import EngineError, UsageError
from orchestrator.core.state.result import CauseKind
from orchestrator.core.state.state import RunPhase
from orchestrator.engines import slurm
from orchestrator.engines.slurm import SlurmEngine, is_started_again
from orchestrator.preflight.allocation import on_nodes, refusal
from orchestrator.request.settings import settings
from orchestrator.store.runs import catalog, lost_runs, slurm_jobs
from orchestrator.store.runs.liveness import Liveness
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.slurm_jobs import NOT_SHARED, own_cluster

_SQUEUE = """case "$*" in
  *exit_code*) echo "{status}" ;;
  *) {answer} ;;
esac"""
_UNKNOWN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
# An answer is used for a second, so each test asks about another job.
_JOBS = itertools.count(1)


class Programs:
    """The programs of Slurm, as scripts. Calling it sets what squeue prints: a state with its reason, or a line of
    shell that writes to stderr."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def __call__(self, answer: str, exit_code: int = 0) -> None:
        shell = answer if ">&2" in answer else f"echo '{answer}'"
        self.write("squeue", _SQUEUE.format(answer=shell, status=exit_code << 8))


@pytest.fixture
def slurm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    programs = Programs(tmp_path / "bin")
    programs.directory.mkdir()
    monkeypatch.setenv("PATH", f"{programs.directory}:/usr/bin:/bin")
    programs.write("scontrol", "echo 'ClusterName             = one'")
    monkeypatch.setattr(slurm_jobs, "_known", slurm_jobs._Known())
    return programs


@pytest.mark.parametrize(("state", "kind"), [("RUNNING", CauseKind.REFUSED), ("PREEMPTED", None)])
def test_error_while_slurm_ends_the_job_does_not_refuse_the_run(
    slurm_says: Programs, monkeypatch: pytest.MonkeyPatch, state: str, kind: CauseKind | None
) -> None:
    """The lost nodes may be the error, and the job may start again: its run has no end yet."""
    job = str(next(_JOBS))
    store = make_run(job=job)
    store.take_over(store.record.model_copy(update={"supervisor_pid": 0}))
    store.close()
    slurm_says(state)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(submitted, "submitted_request", lambda root: None)
    monkeypatch.setattr(submitted, "run_once", Mock(side_effect=EngineError("n2: no answer")))
    assert submitted.main(str(store.paths.root)) == EngineError.exit_code
    result = view_of(store.paths).result()
    found = None if result is None or result.cause is None else result.cause.kind
    assert found == kind


def free_run(cluster: str = "one") -> RunView:
    """A run in a job, whose supervisor is not there. It was on another machine."""
    store = make_run(job=str(next(_JOBS)))
    store.take_over(store.record.model_copy(update={"cluster": cluster, "host": "n1"}))
    store.close()
    return view_of(store.paths)


def test_state_of_the_job_decides(slurm_says: Programs) -> None:
    """The reason of a queued run and its expected start are those of Slurm."""
    for answer, liveness, phase in (
        ("PENDING|Resources|2026-11-23T17:00:00", Liveness.LIVE, RunPhase.QUEUED),
        ("REQUEUE_HOLD|launch failure|N/A", Liveness.LIVE, RunPhase.QUEUED),
        ("RUNNING|None|N/A", Liveness.LIVE, RunPhase.STARTING),
        ("COMPLETING|None|N/A", Liveness.LIVE, RunPhase.STARTING),
        ("NODE_FAIL|None|N/A", Liveness.DEAD, RunPhase.LOST),
        (_UNKNOWN, Liveness.DEAD, RunPhase.LOST),
        ("echo Unable to contact slurm controller >&2; exit 1", Liveness.UNKNOWN, RunPhase.STARTING),
    ):
        slurm_says(answer)
        run = free_run()
        assert run.liveness is liveness, answer
        run.refresh()
        assert run.state.phase is phase, answer
        if answer.startswith("PENDING"):
            assert run.state.queued is not None
            assert (run.state.queued.reason, run.state.queued.start) == ("Resources", "2026-11-23T17:00:00")


def test_job_of_another_cluster_is_not_asked_about(slurm_says: Programs) -> None:
    """Two clusters may have the same home directory."""
    slurm_says(_UNKNOWN)
    assert free_run("two").liveness is Liveness.UNKNOWN


def test_recorded_end_needs_no_slurm(slurm_says: Programs) -> None:
    slurm_says("RUNNING|None|N/A")
    run = free_run()
    assert run.is_live
    (run.paths.root / "events.jsonl").open("a").write(
        '{"at":1.0,"mono":1.0,"type":"run_ended","outcome":"failed","exit_code":1}\n'
    )
    assert not run.is_live


def test_lost_run_is_closed_with_the_end_of_its_job(slurm_says: Programs) -> None:
    for answer, exit_code, text in (
        ("CANCELLED|None|N/A", 0, "was cancelled"),
        ("FAILED|NonZeroExitCode|N/A", 127, "has failed; see "),
        ("FAILED|NonZeroExitCode|N/A", NOT_SHARED, "is not on the nodes of Slurm's job"),
        (_UNKNOWN, 0, "is not known to Slurm any more"),
    ):
        slurm_says(answer, exit_code)
        run = free_run()
        (run.paths.root / "job.log").touch()
        lost_runs.close_lost_runs(catalog.survey())
        result = run.result()
        assert result is not None and result.cause is not None
        assert (result.outcome, result.exit_code) == ("lost", 125)
        assert text in result.cause.text


def test_supervisor_that_gives_no_sign_is_named_with_its_node(slurm_says: Programs) -> None:
    """Slurm itself reports a lost node after minutes, and then only that the job has lost one."""
    slurm_says("RUNNING|None|N/A")
    run = free_run()
    with (run.paths.root / "events.jsonl").open("a") as events:
        events.writelines(each.model_dump_json() + "\n" for each in one_task(run.record.started_mono))
    for at, silence in ((time.time() - 100, "1m40s"), (time.time() - 50, None), ("x", None), (-1e999, None)):
        (run.paths.root / "sample.json").write_text(json.dumps({"at": at}))
        run.refresh()
        said = [] if silence is None else [f"no sign from the supervisor for {silence}, on node n1"]
        assert run.remarks() == said, at
    slurm_jobs._known.answers.clear()
    slurm_says("NODE_FAIL|None|N/A")
    run.refresh()
    assert run.end_of_job() == f"Slurm's job {run.record.job} has lost a node; the supervisor was on node n1"


def test_job_of_an_interrupted_submission_is_cancelled(
    slurm_says: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the site prints text before the id, and the user has set SBATCH_WAIT."""
    slurm_says("PENDING|Resources|N/A")
    monkeypatch.setenv("SBATCH_WAIT", "1")
    waits = "touch began; until [ -e go ]; do sleep 0.02; done; echo Welcome; echo 7$SBATCH_WAIT"
    slurm_says.write("sbatch", f"cd {tmp_path}; {waits}")
    slurm_says.write("scancel", f'echo "$*" >{tmp_path}/cancelled')
    words = (ORCH, "up", "-d", "--engine", "slurm", "--nodes", "1", "--", "true")
    process = subprocess.Popen(
        words, cwd=tmp_path, start_new_session=True, preexec_fn=restore_terminal_signals
    )
    until((tmp_path / "began").exists)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    (tmp_path / "go").touch()
    assert process.wait(PATIENCE_S) == 130
    assert (tmp_path / "cancelled").read_text() == "7\n"


_NOT_FOUND, _EXITED = "sh: 1: /no/python: not found", "srun: error: n1: task 0: Exited with exit code 127"
_BY_THE_WAY = "srun: cluster configuration lacks support for cpu binding"
_FAILED = "srun: error: Application launch failed: Socket timed out on send/recv operation"


def test_failed_step_is_explained_with_what_to_do(slurm_says: Programs) -> None:
    slurm_says("RUNNING|None|N/A")
    engine = SlurmEngine("1")
    for code, lines, text in (
        (127, (_NOT_FOUND, _EXITED), "/no/python: not found"),
        (127, (_EXITED, _NOT_FOUND), "/no/python: not found"),
        (127, (_EXITED,), "exit code 127"),
        (1, (_BY_THE_WAY, _FAILED), f"n2: Slurm could not start a step there ({_FAILED[:55]}"),
        (1, (_BY_THE_WAY, _FAILED), '--slurm "--exclude=n2"'),
    ):
        assert text in engine.explain("n2", code, "\n".join(lines)), lines
    silent = engine.explain_silence("n2", 30.0, f"{_BY_THE_WAY}\n")
    assert silent.startswith("n2: the step of Slurm's job 1 did not answer within 30 s; look at slurmd")
    assert '--slurm "--exclude=n2"' in silent


def test_options_of_the_user_change_no_answer(slurm_says: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQUEUE_USERS filters what squeue prints, and SLURM_LABELIO makes srun number its lines."""
    for name in ("SQUEUE_USERS", "SLURM_LABELIO"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/this.conf")
    slurm_says('echo "${SQUEUE_USERS-RUNNING}|None|N/A"; : >&2')
    assert free_run().is_live
    slurm_says.write("srun", "env")
    connection = SlurmEngine("1").connect("n1", ["true"])
    with connection.stream.makefile() as printed:
        names = {line.partition("=")[0] for line in printed}
    connection.close()
    assert connection.wait(PATIENCE_S)
    assert "SLURM_CONF" in names
    assert "SLURM_LABELIO" not in names


def test_cluster_is_asked_for_again(slurm_says: Programs) -> None:
    """A page that is opened while Slurm's controller restarts is right afterwards."""
    slurm_says.write("scontrol", "exit 1")
    assert not own_cluster()
    slurm_says.write("scontrol", "echo 'ClusterName             = one'")
    assert own_cluster() == "one"


def test_controller_that_hangs_delays_one_question(
    slurm_says: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "_ASK_S", 0.3)
    slurm_says(f"echo asked >>{tmp_path}/asked; exec sleep 60 >&2")
    assert {free_run().liveness for _ in range(2)} == {Liveness.UNKNOWN}
    # The supervisor does not ask again either: it would lose its hosts.
    assert SlurmEngine("1").why_gone("n1") is None
    assert "gave no reason" in SlurmEngine("1").explain("n1", 1, "")
    assert (tmp_path / "asked").read_text().count("asked") <= 1


def test_steps_that_end_together_ask_once(
    slurm_says: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_STATE_S", PATIENCE_S)
    slurm_says(f"echo CANCELLED; echo asked >>{tmp_path}/asked; : >&2")
    engine = SlurmEngine("1")
    assert [engine.explain(host, 1, "") for host in ("n1", "n2")] == [
        "n1: Slurm's job 1 was cancelled",
        "n2: Slurm's job 1 was cancelled",
    ]
    assert (tmp_path / "asked").read_text().count("asked") == 1


def test_comment_of_a_job_is_not_read_as_its_fields(slurm_says: Programs) -> None:
    for restarts in (1, 0):
        job = f"JobId=1 JobName=a=b c JobState=COMPLETING Reason=None Requeue=1 Restarts={restarts}"
        slurm_says.write("scontrol", f"echo '{job} BatchFlag=1 Reboot=0 Comment=x Restarts=7 y'")
        environ = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}
        assert is_started_again("1", environ, may_ask=False) is bool(restarts)


def test_allocation_belongs_to_a_user_id_and_is_not_heterogeneous(
    slurm_says: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the user may have no name, or a different one."""
    monkeypatch.setenv("LOGNAME", "another")
    slurm_says.write("scontrol", "printf '%s\\n' \"$3\"")
    spec = settings.load({"engine": "slurm"}, {}, tmp_path).spec
    for nodes in ("n1", "n1 n2"):
        owner = f"printf 'RUNNING {os.getuid()} me\\n%.0s' {nodes}"
        slurm_says.write("squeue", f"case $* in *%U*) {owner} ;; *%N*) printf '%s\\n' {nodes} ;; esac")
        if nodes == "n1":
            assert [host.name for host in on_nodes(spec, {"SLURM_JOB_ID": "5"}).hosts] == ["n1"]
            continue
        with pytest.raises(UsageError, match="job 5 is heterogeneous"):
            on_nodes(spec, {"SLURM_JOB_ID": "5"})


_SUBMIT = "error: Job submit/allocate failed: "
_ADVICE = {
    f"{_SUBMIT}Invalid account or account/partition combination specified": "--account",
    f"{_SUBMIT}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)": (
        "`sacctmgr show qos` lists them"
    ),
    "error: Batch job submission failed: Invalid qos specification": "--qos=NAME",
    "error: User's group not permitted to use this partition": "name another with --partition",
    "fatal: error: Could not establish a configuration source": "log in to a node of the cluster",
}


def test_refusal_of_slurm_comes_with_advice() -> None:
    for text, advice in _ADVICE.items():
        said = refusal(f"sbatch: {text}")
        assert said.startswith("Slurm refuses the allocation: sbatch: ")
        assert advice in said.rpartition("; ")[2]


def test_job_that_does_not_fit_into_a_variable_is_refused(tmp_path: Path) -> None:
    """The limit counts bytes."""
    options = {"engine": "slurm", "nodes": 1, "env": ["TEXT=" + "\u00fc" * 61_000]}
    with pytest.raises(UsageError, match="a batch job takes 120,000"):
        submit(settings.load(options, {}, tmp_path), may_requeue=True)
    assert not catalog.all_runs()
