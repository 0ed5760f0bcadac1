"""Who is to blame and what to do: reads last words and process states, never what peers say of each other."""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass

from orchestrator.events import Symptom, SymptomKind
from orchestrator.result import Cause, CauseKind, exit_text
from orchestrator.state import RunState, TaskPhase, TaskState

TAIL_LINES = 20
_MAX_LINE = 400
# The kernel's letters for a stopped process (man 5 proc): by a signal, and by a tracer.
_STOPPED_LETTERS = frozenset("Tt")

# What TensorFlow (measured with 2.21) prints in a task that lost a peer. None of these names the culprit rightly.
_COLLATERAL = re.compile(
    r"Socket closed|Connection reset by peer|Connection refused|failed to connect to all addresses"
    r"|UNAVAILABLE|UnavailableError|unhealthy \(stopped sending heartbeats\)|stopped sending heartbeats"
    r"|The tasks have crashed|CoordinationServiceError|coordination service|Coordination service"
    r"|Collective ops is aborted|recv_tensor|RecvBufResponse|AbortedError|Broken pipe|BrokenPipeError"
    r"|ConnectionResetError|ConnectionRefusedError|Connection timed out|EOFError|peer.*(?:closed|gone|lost)",
)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: .*)?$")
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass(frozen=True)
class Signature:
    """A failure known from the field: what it looks like, and the one line that says what to do."""

    pattern: re.Pattern[str]
    advice: str


SIGNATURES = (
    Signature(
        re.compile(
            r"Attempt to convert a value \(PerReplica|Invalid reduction dimension 0"
            r"|`strategy\.reduce\(\)`.*PerReplica"
        ),
        "Keras 3's fit is broken with several workers (keras-team/keras#20585): use a custom training loop, or"
        " tf_keras with TF_USE_LEGACY_KERAS=1.",
    ),
    Signature(
        re.compile(r"Could not start gRPC server|Address already in use|EADDRINUSE|errno: ?98"),
        "The task's port was taken although orch held it: does the program bind it itself? A server that is not"
        " TensorFlow's needs SO_REUSEPORT, or --env TF_GRPC_REUSE_PORT=0.",
    ),
    Signature(
        re.compile(
            r"No module named '?tf_keras|Keras 2.*tf_keras.*(?:install|not installed)|requires.*`tf_keras`"
        ),
        "tf_keras is missing where the command runs: pip install tf_keras.",
    ),
    Signature(
        re.compile(r"No module named '?tensorflow"),
        "TensorFlow is missing where the command runs: pip install tensorflow, or name the interpreter that has it.",
    ),
    Signature(
        re.compile(r"has no attribute 'reset_states'"),
        "`reset_states` is Keras 2's name: call `reset_state`, or run with TF_USE_LEGACY_KERAS=1 and tf_keras.",
    ),
    Signature(
        re.compile(
            r"TF_CONFIG.*(?:invalid|malformed|must|JSON)|JSONDecodeError.*TF_CONFIG|Task type .* not in cluster"
        ),
        "The program does not accept this TF_CONFIG: compare with `orch config`.",
    ),
    Signature(
        re.compile(r"No space left on device|ENOSPC"),
        "The disk is full: free some space, or move checkpoints and logs with --checkpoint-dir and --log-dir.",
    ),
    Signature(
        re.compile(r"CUDA_ERROR_OUT_OF_MEMORY|ResourceExhaustedError|\bOOM when allocating"),
        "A device ran out of memory: a smaller batch, or fewer workers on it.",
    ),
    Signature(
        re.compile(r"MemoryError|std::bad_alloc|Cannot allocate memory"),
        "The machine ran out of memory: fewer workers.",
    ),
    Signature(
        re.compile(
            r"ParameterServerStrategy.*Keras|Cannot get the cardinality|pass this dataset to.*ClusterCoordinator"
        ),
        "Keras 3's fit does not support ParameterServerStrategy (keras-team/keras#18624): use tf_keras or a"
        " custom loop.",
    ),
    Signature(
        re.compile(
            r"Mixed.*auto.?shard|AutoShardPolicy.*FILE|not enough files|Found an unshardable source dataset"
        ),
        "The data set cannot be sharded by files: set the auto-shard policy to DATA or OFF.",
    ),
)


def read_symptom(tail: str) -> Symptom:
    """Classify a task's last output (a few KiB of text, control sequences and all)."""
    lines = [_CONTROL.sub("", line.rpartition("\r")[2] or line)[:_MAX_LINE] for line in tail.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    exception = _last_exception(lines)
    return Symptom(
        kind=_kind(tail, exception),
        exception=exception,
        advice=next((s.advice for s in SIGNATURES if s.pattern.search(tail)), None),
        lines=tuple(lines[-TAIL_LINES:]),
    )


def _kind(tail: str, exception: str | None) -> SymptomKind:
    if exception is not None:
        return SymptomKind.COLLATERAL if _COLLATERAL.search(exception) else SymptomKind.OWN
    # Without a traceback only the end counts: a warning about a peer an hour ago says nothing.
    return SymptomKind.COLLATERAL if _COLLATERAL.search(tail[-4096:]) else SymptomKind.UNKNOWN


def _last_exception(lines: list[str]) -> str | None:
    """The `SomeError: message` line that ends the last traceback, if there is one."""
    start = max((i for i, line in enumerate(lines) if _TRACEBACK.match(line)), default=None)
    if start is None:
        return None
    for line in lines[start + 1 :]:
        if line and not line[0].isspace() and _EXCEPTION.match(line):
            return line.strip()
    return None


def find_cause(state: RunState, first: TaskState) -> Cause:
    """The task that the failure really began with; often, but not always, the first that ended badly."""
    kind = first.symptom.kind if first.symptom else SymptomKind.UNKNOWN
    died_of_signal = first.signal is not None and kind is not SymptomKind.COLLATERAL
    if not died_of_signal and kind is not SymptomKind.OWN:
        stopped = _first_stopped(first)
        if stopped is not None:
            text = "stopped by SIGSTOP (or a debugger), so its peers lost it"
            return Cause(task=stopped, kind=CauseKind.STOPPED, text=text)
    if kind is SymptomKind.COLLATERAL:
        left = _left_early(state, first)
        if left is not None:
            text = "left early: it exited with 0 while its peers still trained"
            return Cause(task=left.name, kind=CauseKind.LEFT_EARLY, text=text)
        own = _own_failure(state, first)
        if own is not None:
            # How it exited may be orch's doing by then; what it raised is not.
            text = (own.symptom and own.symptom.exception) or _how(own)
            return Cause(task=own.name, kind=CauseKind.EXITED, text=text)
    return Cause(task=first.name, kind=CauseKind.EXITED, text=_how(first))


def _first_stopped(first: TaskState) -> str | None:
    return next((task for task, letter in first.peers_at_exit.items() if letter in _STOPPED_LETTERS), None)


def _left_early(state: RunState, first: TaskState) -> TaskState | None:
    gone = [
        task
        for task in state.tasks.values()
        if task.phase is TaskPhase.SUCCEEDED and (task.exit_order or 0) < (first.exit_order or 0)
    ]
    return min(gone, key=lambda task: task.exit_order or 0, default=None)


def _own_failure(state: RunState, first: TaskState) -> TaskState | None:
    """A task with an exception of its own that took longer to exit than the peer that lost it."""
    own = [
        task
        for task in state.tasks.values()
        if task.name != first.name and task.exit_code != 0 and _raised(task.symptom)
    ]
    return min(own, key=lambda task: task.exit_order or 0, default=None)


def _raised(symptom: Symptom | None) -> bool:
    """An exception of its own; the one that a stop raises in Python code is none."""
    if symptom is None or symptom.kind is not SymptomKind.OWN:
        return False
    return not (symptom.exception or "").startswith(("KeyboardInterrupt", "SystemExit"))


def _how(task: TaskState) -> str:
    if task.start_error is not None:
        return f"could not be started: {task.start_error}"
    if task.signal == signals.SIGKILL:
        return "SIGKILL, likely out of memory (or somebody's kill -9)"
    return exit_text(task.exit_code, task.signal)
