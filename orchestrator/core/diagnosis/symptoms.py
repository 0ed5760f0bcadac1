"""The symptom of a failed task: its last output, classified, with advice for known failures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from pydantic import BaseModel, ConfigDict

from orchestrator.core.diagnosis.shortages import FULL_DISK, NO_FILES, NO_PROCESSES
from orchestrator.core.diagnosis.stack_text import is_user_file
from orchestrator.core.state.events import Symptom, SymptomKind
from orchestrator.core.state.result import Seconds

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
    r"|Connection\w{0,40}Error|EOFError|peer.{0,400}(?:closed|gone|lost)",
)
_TENSORFLOW = re.compile(r"tensorflow|\bgrpc|/tsl/", re.IGNORECASE)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_GROUP = re.compile(r"  \+ Exception Group Traceback \(most recent call last\):")
_PLACE = re.compile(r'[ |+]*File "(.+?)", line (\d+)(?:, in |$)')
_GUTTER = re.compile(r"^ +[|+] ")
# A class defined in a function is called __main__.function.<locals>.Name.
_EXCEPTION = re.compile(r"^[A-Za-z_](?:[\w.]|<locals>)*(?:: .*)?$")
# Autograph's message, also inside Keras's: frames and an exception, indented by four.
_USER_CODE = re.compile(r"( *)(?:[A-Za-z_][\w.]*: )?in user code:")
_GRAPH_ERROR = "Graph execution error:"
_GRAPH_PLACE = re.compile(r"Detected at node |<stack traces |File \"|Node: |\d{1,9} root error")
_KERAS_HEAD = "Exception encountered when calling "
_KERAS_ARGUMENTS = re.compile(r"\n\n(?:Call a|A)rguments received by ")
_LITERAL_CONTROL = re.compile(r"\\x1b\[[0-9;]{0,16}m")
_NAMED_ERROR = re.compile(r"[A-Za-z_][\w.]{0,200}(?:Error|Exception): ")
_FUNCTION_NODE = re.compile(r"\{\{function_node [^{}\n]{1,300}\}\} ")
# TensorFlow's file that calls Python functions of a graph.
_SCRIPT_OPS = "tensorflow/python/ops/script_ops.py"
_OP_ERRORS = "tensorflow.python.framework.errors"
_GROUP_HEAD = re.compile(r"\(\d+ sub-exceptions?\)$")
# Longest output after an uncaught exception, in lines. More output means that the exception was handled.
_LINES_AFTER = 5
# Bound on the text of an exception, in characters from its end, where the last exception is.
_MAX_TEXT = 32 * 1024
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


# Errors of Keras 3 (3.15) about code that runs on tf_keras (2.21).
_REFUSED_BY_KERAS_3 = (
    r"Only instances of `?keras\.Layer`? can be added",
    r"A KerasTensor cannot be used as input to a TensorFlow function",
    r"The filename must end in `\.weights\.h5`",
    r"[Tt]he filepath provided must end in `\.(?:keras|weights\.h5)`",
    r"Invalid filepath extension for saving",
    r"File format not supported: .{0,400}Keras 3 only supports",
    r"Argument\(s\) not recognized: \{'lr'",
    r"`keras\.optimizers\.legacy` is not supported in Keras 3",
    r"Unrecognized keyword arguments passed to \w+: \{'(?:weights|batch_input_shape)'",
    r"Trainer\.\w+\(\) got an unexpected keyword argument '(?:workers|use_multiprocessing|max_queue_size)'",
    r"ModelCheckpoint\.__init__\(\) got an unexpected keyword argument 'period'",
    r"module 'keras\.[\w.]+' has no attribute 'experimental'",
    r"No module named 'tensorflow\.keras\.[\w.]*experimental",
    r"Expected `metrics` argument to be a list, tuple, or dict",
    r"`name` must be passed as a keyword argument\. Received: add_weight\(",
    r"Could not interpret optimizer identifier: <tensorflow\.python\.",
    r"Cannot convert '\d+' to a shape",
)
# Known failures: the pattern of the text, and the advice. The first match counts; a shortage
# of memory or disk comes before all (diagnosis/cause.py: advice_on). A `.*` would take minutes over some texts.
SIGNATURES = (
    (
        r"Attempt to convert a value \(PerReplica|Invalid reduction dimension 0"
        r"|`strategy\.reduce\(\)`.{0,400}PerReplica",
        "Keras 3's fit is broken with several workers (keras-team/keras#20585): remove --no-fixes if you gave it,"
        " or use tf_keras (--keras legacy), or a custom training loop.",
    ),
    (
        r"Could not start gRPC server|Address already in use|EADDRINUSE|errno: ?98",
        "The task's port was taken although orch held it: does the program bind it itself? A server that is not"
        " TensorFlow's needs SO_REUSEPORT or --env TF_GRPC_REUSE_PORT=0.",
    ),
    (
        r"No module named '?tf_keras(?![\w.])|Keras 2.{0,200}tf_keras.{0,200}install|requires.{0,400}`tf_keras`",
        "tf_keras is missing where the command runs: pip install tf_keras.",
    ),
    (
        # Neither tensorflow_hub nor a part of TensorFlow.
        r"No module named '?tensorflow(?![\w.])",
        "TensorFlow is missing where the command runs: pip install tensorflow, or name the interpreter that has it.",
    ),
    (
        r"You must feed a value for placeholder tensor '(?:\w+/)*cond/",
        "A step on several replicas created variables, which are not initialized there: create them before, in the"
        " strategy's scope, by `model.build(...)` or an Input layer, and `optimizer.build(model.trainable_variables)`.",
    ),
    (
        r"Mixing different tf\.distribute\.Strategy objects|not created in the distribution strategy scope",
        "Something that has variables, such as the optimizer, was created outside of the strategy's scope: create it"
        " within `with strategy.scope():`.",
    ),
    (
        r"'ShardedVariable' object has no attribute 'handle'",
        "Keras 3 cannot train partitioned variables: remove --no-fixes if you gave it, or variable_partitioner.",
    ),
    (
        r"must specify an aggregation method to update a AggregatingVariable in Replica Context",
        "Under CentralStorageStrategy a replica cannot set such a variable: remove --no-fixes if you gave it, because"
        " Keras 3's LossScaleOptimizer needs the fixes; give your own variable an `aggregation`.",
    ),
    (
        r"Unable to automatically build the model(?s:.{0,2000}?)does not have a `call\(\)` method",
        "Under a strategy Keras 3 builds a model before its first step, by `call`. A model whose steps use other models"
        " (a GAN) sets `self.built = True` at the end of its __init__, or defines `call`.",
    ),
    (
        r"ValueError: None values not supported\.",
        "If the data has no targets: under a strategy Keras 3 computes the compiled loss to build the model. Compile"
        " without `loss` if the model computes its own, or give targets.",
    ),
    (
        r"float\(\) argument must be a string or a real number, not '\w{0,60}(?:Mirrored|SyncOnRead|PerReplica)\w*'",
        "A variable of a strategy is not a number: read it by `keras.ops.convert_to_numpy(variable)`, as in"
        " `float(keras.ops.convert_to_numpy(optimizer.learning_rate))`.",
    ),
    (
        r"input depth must be evenly divisible by filter depth",
        "Probably a worker got no example of a batch, which oneDNN's convolutions do not accept: use drop_remainder, or"
        " files of equal length, or --env TF_ENABLE_ONEDNN_OPTS=0.",
    ),
    (
        r"has no attribute 'reset_states'",
        "`reset_states` is Keras 2's name: call `reset_state`, or run on tf_keras with --keras legacy.",
    ),
    (
        r'epoch_iterator\.py"[^"]{0,400}float\d{0,2}\' object cannot be interpreted as an integer',
        "Keras 3 needs a whole number of steps (steps_per_epoch, validation_steps, steps): use `//`, as in"
        " `steps_per_epoch=100 // 20`, or run on tf_keras with --keras legacy.",
    ),
    (
        r'(?:traceback_utils|callback_list)\.py"[^"]{0,400}\(\) got an unexpected keyword argument \'logs\'',
        "Keras 3 passes `logs` by name to on_train_batch_end and other functions of a callback: name the parameter"
        " `logs`, as in `lambda batch, logs: ...`, or run on tf_keras with --keras legacy.",
    ),
    (
        "|".join(_REFUSED_BY_KERAS_3),
        "Keras 3 refuses this, and tf_keras (Keras 2) does not: run with --keras legacy.",
    ),
    (
        r"TF_CONFIG.{0,400}(?:invalid|malformed|must|JSON)|JSONDecodeError.{0,400}TF_CONFIG"
        r"|Task type .{0,80} not in cluster",
        "The program does not accept this TF_CONFIG: compare with `orch config`.",
    ),
    (
        r"\bbdb\.BdbQuit\b",
        "A task has no terminal to debug in: --interactive TASK gives it yours, --debug TASK lets VS Code attach, and"
        " --env PYTHONBREAKPOINT=0 ignores `breakpoint()`.",
    ),
    (r"No space left on device|ENOSPC", FULL_DISK),
    (
        r"CUDA_ERROR_OUT_OF_MEMORY|ResourceExhaustedError|\bOOM when allocating",
        "A device ran out of memory: a smaller batch, or fewer workers on it.",
    ),
    (
        r"MemoryError|std::bad_alloc|Cannot allocate memory",
        "The machine ran out of memory, or met a limit (ulimit -v): fewer workers, or a smaller batch.",
    ),
    (r"Too many open files|EMFILE", NO_FILES),
    (
        r"can't start new thread|pthread_create|Thread tf_\w* creation|BlockingIOError: \[Errno 11\] Resource temp"
        r"|fork: (?:retry: )?Resource temporarily unavailable",
        NO_PROCESSES,
    ),
    (
        r"ParameterServerStrategy.{0,400}Keras|Cannot get the cardinality"
        r"|pass this dataset to.{0,400}ClusterCoordinator",
        "Keras 3's fit does not support ParameterServerStrategy (keras-team/keras#18624): use tf_keras or a"
        " custom loop.",
    ),
    (
        r"Mixed.{0,400}auto.?shard|Could not apply FILE based sharding|AutoShardPolicy.{0,400}FILE|not enough files"
        r"|Found an unshardable source dataset",
        "The data set cannot be sharded by files: set the auto-shard policy to DATA or OFF.",
    ),
)


class Uncaught(BaseModel):
    """An uncaught exception as the task itself wrote it: `type` is the full name, `text` the complete traceback with
    its causes, `at` the place in the source that raised it, `mono` the time, by the clock of its host."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    type: str
    message: str
    text: str
    at: str | None = None
    mono: Seconds | None = None

    @property
    def whole(self) -> str:
        """The type and the message, as the traceback ends."""
        said = _CONTROL.sub("", self.message[:_MAX_TEXT]).strip()
        name = self.type.removeprefix("builtins.")
        return f"{name}: {said}" if said else name

    @property
    def line(self) -> str:
        """The type and the first line of the message, or those of the user's exception that TensorFlow or Keras wraps;
        for a graph's error with its reason."""
        return _first_line(_innermost(self.whole)[0])


def read_symptom(tail: str, uncaught: Uncaught | None = None) -> Symptom:
    """Classify a task's last output (a few KiB, with control sequences) and the exception that it wrote itself."""
    lines = _plain_lines(tail)
    raised = _last_raised(lines) if uncaught is None else _raised_by(uncaught)
    source = tail if uncaught is None else f"{uncaught.text[-_MAX_TEXT:]}\n{uncaught.line}"
    return Symptom(
        kind=_kind(tail, raised),
        exception=raised.line if raised else None,
        place=_place(raised.traceback) if raised else None,
        advice=_advice(source) or _advice(tail),
        lines=tuple(lines[-TAIL_LINES:]),
    )


def _plain_lines(tail: str) -> list[str]:
    lines = [_CONTROL.sub("", line.rpartition("\r")[2] or line)[:_MAX_LINE] for line in tail.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _advice(text: str) -> str | None:
    return next((advice for pattern, advice in SIGNATURES if re.search(pattern, text)), None)


@dataclass(frozen=True)
class _Raised:
    """The exception that ends a log: its line `SomeError: message`, the members of a group, and the traceback.

    `source` is the text that says whether TensorFlow raised it: the traceback, with the exceptions before it if known.
    """

    line: str
    leaves: tuple[str, ...]
    traceback: str
    source: str


def _raised_by(uncaught: Uncaught) -> _Raised:
    """Return the exception that the task wrote itself. The members of a group are read from its text."""
    lines = _plain_lines(uncaught.text[-_MAX_TEXT:])
    read = _last_raised(lines)
    if read is not None and _SCRIPT_OPS in read.traceback:
        return read  # the message of TensorFlow's exception ends with this traceback
    text = "\n".join(lines)
    leaves = read.leaves if read is not None else (f"{uncaught.line}\n{uncaught.message[:_MAX_TEXT]}",)
    return _raised(uncaught.whole, leaves, text if read is None else read.traceback, text)


def _raised(whole: str, leaves: tuple[str, ...], traceback: str, source: str) -> _Raised:
    """Return the exception `whole` (type and message), or the exception of the user's code that it repeats."""
    inner, frames = _innermost(whole)
    line = _first_line(inner)[:_MAX_LINE]
    called = traceback if _SCRIPT_OPS in traceback else frames
    places = [frame for frame in called.split("\n") if _PLACE.match(frame)]
    if places and not whole.startswith(_OP_ERRORS):
        # Python code raised it and TensorFlow only called that code: the innermost frame says whose it is.
        leaves, source = (line,), places[-1]
    return _Raised(line=line, leaves=leaves, traceback=f"{traceback}\n{frames}", source=source)


def _innermost(whole: str) -> tuple[str, str]:
    """Return the exception of the user's code that TensorFlow or Keras quotes in the message of another one, and the
    text before it, which contains its frames."""
    inner, frames = whole, ""
    lines = whole.split("\n")
    heads = [(at, head) for at, line in enumerate(lines) if (head := _USER_CODE.fullmatch(line.rstrip()))]
    if heads:
        at, head = heads[-1]
        indent = " " * (len(head[1]) + 4)
        frame = (f"{indent} ", f"{indent}File ")
        begins = [line.startswith(indent) and not line.startswith(frame) for line in lines]
        end = next((i for i in range(at + 2, len(lines)) if begins[i] and not lines[i - 1].strip()), None)
        if end is not None:
            said = takewhile(lambda line: not line.strip() or line.startswith(indent), lines[end:])
            inner = "\n".join(line.removeprefix(indent) for line in said).strip()
            frames = "\n".join(lines[:end])
    elif lines[0].endswith(_GRAPH_ERROR):
        frames = whole.partition("[[{{")[0]
    return _FUNCTION_NODE.sub("", _without_arguments(inner)), frames


def _without_arguments(exception: str) -> str:
    """Remove what Keras writes around the message of an exception in a layer's call."""
    kind, _, said = exception.partition(": ")
    is_key = kind == "KeyError" and said[1:].startswith(_KERAS_HEAD)
    if is_key:  # the text of a KeyError is the repr() of its message
        said = _LITERAL_CONTROL.sub("", said[1:-1]).replace("\\n", "\n")
    if not said.startswith(_KERAS_HEAD):
        return exception
    message = _KERAS_ARGUMENTS.split(said.partition("\n\n")[2], maxsplit=1)[0].strip()
    message = message.rpartition("Error encountered:\n\n")[2]
    if _NAMED_ERROR.match(message):
        return message
    return f"{kind}: {message!r}" if is_key else f"{kind}: {message}"


def _kind(tail: str, raised: _Raised | None) -> SymptomKind:
    if raised is not None:
        lost = all(_reports_lost_peer(leaf, raised.source) for leaf in raised.leaves)
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
    whole = "\n".join(texts[end:]).strip()
    leaves = tuple(_leaves(block[end + 1 :])) if in_group else ()
    # TensorFlow's first line can be just "Graph execution error:", with the reason on later lines.
    leaf = whole if whole.startswith("tensorflow.") else _first_line(whole)
    traceback = "\n".join(block[:end])
    return _raised(whole, leaves or (leaf,), traceback, traceback)


def _first_line(message: str) -> str:
    """Return the first line of a message; for TensorFlow's `Graph execution error:` with the reason, which is between
    the places and the graph's node."""
    first, _, others = message.partition("\n")
    reasons = [line.strip() for line in others.partition("[[{{")[0].split("\n") if line.strip()]
    if not first.endswith(_GRAPH_ERROR) or "[[{{" not in others:
        return first
    after = max((i + 1 for i, line in enumerate(reasons) if _GRAPH_PLACE.match(line)), default=0)
    return " ".join([first, *reasons[after : after + 1]])


def _place(traceback: str) -> str | None:
    """Return the innermost line of the user's own files, or else the innermost one, as `FILE:LINE`."""
    found = [match for line in traceback.split("\n") if (match := _PLACE.match(line))]
    own = [match for match in found if is_user_file(match[1])]
    last = (own or found)[-1:]
    return f"{last[0][1]}:{last[0][2]}" if last else None


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
