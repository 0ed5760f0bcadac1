"""The symptom of a failed task: its last output, classified, with advice for known failures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from orchestrator.core.diagnosis.shortages import FULL_DISK, NO_FILES, NO_PROCESSES
from orchestrator.core.state.events import Symptom, SymptomKind

TAIL_LINES = 20
_MAX_LINE = 400
# Texts of TensorFlow 2.21 in a task that lost a peer. The peer that they name is not reliable.
_PEER_LOST = re.compile(
    r"Socket closed|failed to connect to all addresses|UNAVAILABLE|\bUnavailableError"
    r"|unhealthy \(stopped sending heartbeats\)|stopped sending heartbeats"
    r"|The tasks have crashed|CoordinationServiceError|coordination service|Coordination service"
    r"|Collective ops is aborted|recv_tensor|RecvBufResponse|\bAbortedError",
)
# Texts that a database or a file can raise, too. They count as a lost peer only if TensorFlow's code raised them.
_CONNECTION_LOST = re.compile(
    r"Connection reset by peer|Connection refused|Connection timed out|Broken pipe|BrokenPipeError"
    r"|Connection\w*Error|EOFError|peer.*(?:closed|gone|lost)",
)
_TENSORFLOW = re.compile(r"tensorflow|\bgrpc|/tsl/", re.IGNORECASE)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_GROUP = re.compile(r"  \+ Exception Group Traceback \(most recent call last\):")
_GUTTER = re.compile(r"^ +[|+] ")
# A class defined in a function is called __main__.function.<locals>.Name.
_EXCEPTION = re.compile(r"^[A-Za-z_](?:[\w.]|<locals>)*(?:: .*)?$")
_GROUP_HEAD = re.compile(r"\(\d+ sub-exceptions?\)$")
# Longest output after an uncaught exception, in lines. More output means that the exception was handled.
_LINES_AFTER = 5
# Bound on the text of an exception, in characters from its end, where the last exception is.
_MAX_TEXT = 32 * 1024
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass(frozen=True)
class Signature:
    """A known failure: the pattern of its text, and the advice."""

    pattern: re.Pattern[str]
    advice: str


# The first match counts; a shortage of memory or disk comes before all (diagnosis/cause.py: advice_on).
SIGNATURES = (
    Signature(
        re.compile(
            r"Attempt to convert a value \(PerReplica|Invalid reduction dimension 0"
            r"|`strategy\.reduce\(\)`.*PerReplica"
        ),
        "Keras 3's fit is broken with several workers (keras-team/keras#20585): remove --no-fixes if you gave it,"
        " or use tf_keras (--keras legacy), or a custom training loop.",
    ),
    Signature(
        re.compile(r"Could not start gRPC server|Address already in use|EADDRINUSE|errno: ?98"),
        "The task's port was taken although orch held it: does the program bind it itself? A server that is not"
        " TensorFlow's needs SO_REUSEPORT or --env TF_GRPC_REUSE_PORT=0.",
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
        re.compile(r"You must feed a value for placeholder tensor '(?:\w+/)*cond/"),
        "A step on several replicas created variables, which are not initialized there: create them before, in the"
        " strategy's scope, by `model.build(...)` or an Input layer, and `optimizer.build(model.trainable_variables)`.",
    ),
    Signature(
        re.compile(r"'ShardedVariable' object has no attribute 'handle'"),
        "Keras 3 cannot train partitioned variables: remove --no-fixes if you gave it, or variable_partitioner.",
    ),
    Signature(
        re.compile(r"must specify an aggregation method to update a AggregatingVariable in Replica Context"),
        "Under CentralStorageStrategy a replica cannot set such a variable: remove --no-fixes if you gave it, because"
        " Keras 3's LossScaleOptimizer needs the fixes; give your own variable an `aggregation`.",
    ),
    Signature(
        re.compile(r"has no attribute 'reset_states'"),
        "`reset_states` is Keras 2's name: call `reset_state`, or run on tf_keras with --keras legacy.",
    ),
    Signature(
        re.compile(
            r"TF_CONFIG.*(?:invalid|malformed|must|JSON)|JSONDecodeError.*TF_CONFIG|Task type .* not in cluster"
        ),
        "The program does not accept this TF_CONFIG: compare with `orch config`.",
    ),
    Signature(
        re.compile(r"No space left on device|ENOSPC"),
        FULL_DISK,
    ),
    Signature(
        re.compile(r"CUDA_ERROR_OUT_OF_MEMORY|ResourceExhaustedError|\bOOM when allocating"),
        "A device ran out of memory: a smaller batch, or fewer workers on it.",
    ),
    Signature(
        re.compile(r"MemoryError|std::bad_alloc|Cannot allocate memory"),
        "The machine ran out of memory, or met a limit (ulimit -v): fewer workers, or a smaller batch.",
    ),
    Signature(
        re.compile(r"Too many open files|EMFILE"),
        NO_FILES,
    ),
    Signature(
        re.compile(
            r"can't start new thread|pthread_create|Thread tf_\w* creation|BlockingIOError: \[Errno 11\] Resource temp"
            r"|fork: (?:retry: )?Resource temporarily unavailable"
        ),
        NO_PROCESSES,
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


class Uncaught(BaseModel):
    """An uncaught exception as the task itself wrote it: `type` is the full name, `text` the complete traceback with
    its causes, `at` the place in the source that raised it."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    type: str
    message: str
    text: str
    at: str | None = None

    @property
    def line(self) -> str:
        """The last line of the traceback: type and first line of the message."""
        said = self.message.strip().partition("\n")[0]
        name = self.type.removeprefix("builtins.")
        return f"{name}: {said}" if said else name


def read_symptom(tail: str, uncaught: Uncaught | None = None) -> Symptom:
    """Classify a task's last output (a few KiB, with control sequences) and the exception that it wrote itself."""
    lines = _plain_lines(tail)
    raised = _last_raised(lines) if uncaught is None else _raised_by(uncaught)
    source = tail if uncaught is None else f"{uncaught.text[-_MAX_TEXT:]}\n{uncaught.line}"
    return Symptom(
        kind=_kind(tail, raised),
        exception=raised.line if raised else None,
        advice=_advice(source) or _advice(tail),
        lines=tuple(lines[-TAIL_LINES:]),
    )


def _plain_lines(tail: str) -> list[str]:
    lines = [_CONTROL.sub("", line.rpartition("\r")[2] or line)[:_MAX_LINE] for line in tail.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _advice(text: str) -> str | None:
    return next((signature.advice for signature in SIGNATURES if signature.pattern.search(text)), None)


@dataclass(frozen=True)
class _Raised:
    """The exception that ends a log: its line `SomeError: message`, the members of a group, and the traceback."""

    line: str
    leaves: tuple[str, ...]
    traceback: str


def _raised_by(uncaught: Uncaught) -> _Raised:
    """Return the exception that the task wrote itself. The members of a group are read from its text."""
    lines = _plain_lines(uncaught.text[-_MAX_TEXT:])
    read = _last_raised(lines)
    line = uncaught.line[:_MAX_LINE]
    leaves = read.leaves if read is not None else (f"{line}\n{uncaught.message[:_MAX_TEXT]}",)
    return _Raised(line=line, leaves=leaves, traceback="\n".join(lines))


def _kind(tail: str, raised: _Raised | None) -> SymptomKind:
    if raised is not None:
        lost = all(_reports_lost_peer(leaf, raised.traceback) for leaf in raised.leaves)
        return SymptomKind.COLLATERAL if lost else SymptomKind.OWN
    # Without a traceback only the end counts: an older warning about a peer has another reason.
    end = tail[-4096:]
    return SymptomKind.COLLATERAL if _reports_lost_peer(end, end) else SymptomKind.UNKNOWN


def _reports_lost_peer(text: str, source: str) -> bool:
    if _PEER_LOST.search(text):
        return True
    return bool(_CONNECTION_LOST.search(text) and (_TENSORFLOW.search(text) or _TENSORFLOW.search(source)))


def _last_raised(lines: list[str]) -> _Raised | None:
    """Return the last traceback's exception if the log ends with it."""
    heads = [i for i, line in enumerate(lines) if _TRACEBACK.match(line) or _GROUP.match(line)]
    if not heads:
        return None
    block = lines[heads[-1] :]
    in_group = bool(_GROUP.match(block[0]))
    # An exception group is printed with a gutter, "  | ", indented by two more for its members.
    texts = [line.removeprefix("  | ") for line in block] if in_group else block
    end = next((i for i, text in enumerate(texts) if i and _EXCEPTION.match(text)), None)
    if end is None or _continues(block[end + 1 :]):
        return None
    line = texts[end].strip()
    leaves = tuple(_leaves(block[end + 1 :])) if in_group else ()
    # TensorFlow's first line can be just "Graph execution error:", with the reason on later lines.
    whole = "\n".join(block[end:]) if line.startswith("tensorflow.") else line
    return _Raised(line=line, leaves=leaves or (whole,), traceback="\n".join(block[:end]))


def _leaves(block: list[str]) -> Iterator[str]:
    """Yield the exceptions in a group, without groups inside it."""
    for line in block:
        text = _GUTTER.sub("", line)
        is_other = _TRACEBACK.match(text) or _GROUP_HEAD.search(text)
        if text != line and _EXCEPTION.match(text) and not is_other:
            yield text


def _continues(after: list[str]) -> bool:
    """Whether the program printed more after the exception than its indented notes and the interpreter's last lines."""
    return sum(1 for line in after if line.strip() and not line[0].isspace()) > _LINES_AFTER
