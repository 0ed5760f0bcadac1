"""Folding on the screen: start-up lines of TensorFlow, equal lines of several tasks, repeated warnings, and lines that
the other tasks print after the first failure."""

from __future__ import annotations

from making import event, exited
from moments import moment, running
from screen import Watched, chunk

from orchestrator.client.view.aftermath import Aftermath, Failure, first_failure, grouped_tasks
from orchestrator.client.view.folding import WINDOW_S, Folder, group_label
from orchestrator.core.state.events import TeardownBegan, TeardownReason
from orchestrator.store.logs.lines import Block

_NOW = 1_795_379_605.0
# As TensorFlow 2.21 printed them under MultiWorkerMirroredStrategy and ParameterServerStrategy.
_STARTUP = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795379602.682954    6861 port.cc:153] oneDNN custom operations are on. You may see slightly different ...
2026-11-22 20:33:13.683649: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized ...
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate flags.
I0000 00:00:1795379602.683649    6861 cudart_stub.cc:31] Could not find cuda drivers on your machine, ...
E0000 00:00:1795379605.605281    6861 cuda_platform.cc:52] failed call to cuInit: INTERNAL: ... UNKNOWN ERROR (303)
I0000 00:00:1795379605.624606    8044 coordination_service.cc:221] Initializing CoordinationService
I0000 00:00:1795379605.625128    8044 grpc_server_lib.cc:467] Started server with target: grpc://127.0.0.1:34711
I0000 00:00:1795379605.723969    8051 coordination_service.h:529] /job:worker/replica:0/task:0 has connected to ...
I0000 00:00:1795379605.724046    8051 coordination_service.cc:505] Example stragglers:
/job:worker/replica:0/task:1
I0000 00:00:1795379605.724333    8044 coordination_service_agent.cc:245] Coordination agent has successfully connected.
I0000 00:00:1795382660.117556   18590 eager_service_impl.cc:349] Creating sync eager service context with ...
I0000 00:00:1795382660.117652   18590 eager_service_impl.cc:355] SessionOptions: goo.gle/debugstr
device_count {
  key: "CPU"
}
allow_soft_placement: true

I0000 00:00:1795379607.119142    6861 generator_dataset_op.cc:213] Memory patch applied: M_TRIM_THRESHOLD=128
W0000 00:00:1795379607.142382    6861 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized because
I0000 00:00:1795405269.452568   19373 tf_record_dataset_op.cc:390] TFRecordDataset `buffer_size` is unspecified, ...
I0000 00:00:1795405776.405961   12591 profiler_session.cc:117] Profiler session initializing.
I0000 00:00:1795405577.645043    2333 kernel_and_device.cc:101] Ignoring error status when releasing multi-device \
function handle UNIMPLEMENTED: Releasing a ...
E0000 00:00:1795405270.406793   19096 util.cc:131] oneDNN supports DT_BOOL only on platforms with AVX-512. Falling ...
"""
_STARTED = "TensorFlow started (25 lines; --hint)"


class Folded:
    """The lines that a Folder shows, with their prefixes."""

    def __init__(self, *tasks: str, verbose: bool = False) -> None:
        self.folder = Folder("--hint", verbose=verbose)
        if tasks:
            self.folder.expect(tasks)

    def feed(self, text: str, task: str = "worker:0", at: float = 0.0, attempt: int = 1) -> list[str]:
        return _lines(self.folder.feed(Block(task, attempt, _NOW + at, text.encode())))

    def release(self, at: float) -> list[str]:
        return _lines(self.folder.release(_NOW + at))

    def finish(self) -> list[str]:
        return _lines(self.folder.finish())


def _lines(blocks: list[Block]) -> list[str]:
    return [f"{block.task} | {line}" for block in blocks for line in block.data.decode().splitlines()]


def test_startup_lines_of_tensorflow_are_one_line() -> None:
    """In each attempt, and for all tasks that print them together, also if nothing follows."""
    folded = Folded("worker:0")
    assert folded.feed(_STARTUP) == []
    assert folded.feed("Epoch 1/3\n", at=1.0) == [f"worker:0 | {_STARTED}", "worker:0 | Epoch 1/3"]
    assert folded.feed(_STARTUP, at=2.0) == []
    assert folded.feed(_STARTUP + "b\n", at=9.0, attempt=2) == [f"worker:0 | {_STARTED}", "worker:0 | b"]
    assert folded.finish() == []
    folded = Folded("worker:0", "worker:1")
    assert folded.feed(_STARTUP) + folded.feed(_STARTUP, "worker:1", 0.1) == []
    assert folded.release(1.0) == ["worker:0-1 | TensorFlow started (50 lines; --hint)"]


def test_lines_of_one_task() -> None:
    """Lines of native code are hidden only if they are TensorFlow's known ones."""
    native = "0000 00:00:1795379605.605281    6861"
    bar, traceback = "63/63 [=====] - ETA: 0s - loss: 4.2456", "Traceback (most recent call last):"
    short = "orch: Keras 3.15.1 has faults with 2 workers, fixed for this process"
    unchanged = (
        f"E{native} cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY",
        f"E{native} coordination_service.cc:9] task:1 has been set to ERROR in coordination",
        f"I{native} own.cc:9] a line of the script",
        "/job:worker/replica:0/task:1 is my name",
        f"{bar}W{native} dataset.cc:997] another warning",
        f"it said: {traceback}",
    )
    rows = {line: [line] for line in unchanged} | {
        f"{bar}W{native} dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized": [bar],
        f"1/9 loss: 0.5\r2/9 loss: 0.4{traceback}\n  File": [
            "1/9 loss: 0.5",
            "2/9 loss: 0.4",
            traceback,
            "  File",
        ],
        f"{short}: fit and evaluate (keras-team/keras#20585), gradient clipping": [short],
    }
    found = {line: Folded("worker:0").feed(f"{line}\n") for line in rows}
    assert found == {line: [f"worker:0 | {each}" for each in shown] for line, shown in rows.items()}
    assert Folded("worker:0", verbose=True).feed(f"{short}: fit\n") == [f"worker:0 | {short}: fit"]


def test_lines_that_differ_in_time_or_duration_only_are_one_line() -> None:
    """But not lines of another epoch, or with another loss."""
    native = "W0000 00:00:1795379607.{0}19142    6861 own.cc:213] odd"
    for line in (
        native,
        "8/8 - {0}s - 8{0}ms/step - accuracy: 0.5859 - loss: 0.6864",
        "\x1b[1m8/8\x1b[0m \x1b[32m━━\x1b[0m \x1b[1m{0}s\x1b[0m 1{0}us/step - loss: 0.5",
        "epoch 1/10: loss 1.4192, accuracy 0.5750, 87.{0} steps/s",
    ):
        folded = Folded("worker:0", "worker:1")
        assert folded.feed(line.format(7) + "\n") == []
        assert folded.feed(line.format(8) + "\n", "worker:1", 0.1) == [f"worker:0-1 | {line.format(7)}"]
        if line != native:
            folded.feed(line.format(7) + "\n")
            assert folded.feed(line.replace("5", "6").format(7) + "\n", "worker:1", 0.1) == []


def test_line_waits_no_longer_than_the_window_and_keeps_its_place() -> None:
    folded = Folded("worker:0", "worker:1")
    assert folded.feed("a\nb\na\n") == []
    assert folded.feed("a\na\nb\n", "worker:1", 0.1) == ["worker:0-1 | a"]
    assert folded.release(WINDOW_S - 0.01) == []
    assert folded.release(WINDOW_S + 0.01) == ["worker:0 | b", "worker:0-1 | a"]
    assert folded.release(WINDOW_S + 0.2) == ["worker:1 | b"]
    assert folded.feed("a\n", "worker:1", 1.0) == []
    assert folded.feed("a\n", "worker:0", 1.1 + WINDOW_S) == ["worker:1 | a"]


def test_flood_passes_unchanged_after_the_lines_before_it() -> None:
    folded = Folded("worker:0", "worker:1")
    folded.feed("before\n", "worker:1")
    shown = folded.feed("line\n" * 10_000)
    assert shown == ["worker:1 | before", *["worker:0 | line"] * 10_000]
    shown = [folded.feed(f"{number}\n" * 100, at=1.0) for number in range(50)]
    assert [len(lines) for lines in shown[:4]] == [0, 0, 300, 100]


def test_warnings_of_the_same_code_line_fold_with_a_count() -> None:
    folded = Folded("worker:0")
    warning = "/a/train.py:7: UserWarning: bad sample {0}\n  warnings.warn(text)\n"
    logged = "WARNING:tensorflow:{0} calls to <function f at 0x7f{0}> retrace\n"
    shown = [line for n in range(25) for line in folded.feed(warning.format(n) + logged.format(n))]
    user, native = "/a/train.py:7: UserWarning", "tensorflow:N calls to <function f at N> retrace"
    assert [line.removeprefix("worker:0 | ") for line in shown + folded.finish()] == [
        *f"{warning}{logged}".format(0).splitlines(),
        *(f"(repeated {count} times) {text}" for count in (10, 25) for text in (user, native)),
    ]


def test_label_names_each_role_and_range_and_is_read_back() -> None:
    rows = {
        ("worker:0",): "worker:0",
        ("worker:3", "worker:0", "worker:2"): "worker:0,2-3",
        ("worker:0", "chief:0", "worker:1"): "chief:0 worker:0-1",
        ("chief:0", "ps:0", "worker:1"): "chief:0 ps:0 worker:1",
    }
    assert {tasks: group_label([*tasks]) for tasks in rows} == rows
    assert [grouped_tasks(label) for label in rows.values()] == [{*tasks} for tasks in rows]


_FAILURE = Failure("worker:1", 1, _NOW)


def _block(task: str, text: str = "x\n" * 9, after_s: float = 0.1, attempt: int = 1) -> Block:
    return Block(task, attempt, _NOW + after_s, text.encode())


def _failing() -> Aftermath:
    aftermath = Aftermath()
    assert aftermath.feed([_block("worker:1", "Traceback\n", after_s=-0.1)])
    assert aftermath.begin(_FAILURE) == []
    return aftermath


def test_lines_after_the_failure_are_counted_if_they_are_many() -> None:
    peers = [_block("worker:0,2", "x\n" * 2), _block("worker:3", "y\n" * 4)]
    many = [_block("worker:0", "x\n" * 60), _block("worker:0", "y\n" * 8)]
    rows: list[tuple[list[Block], list[str]]] = [
        (many, ["worker:0 | 68 lines after worker:1 failed (orch logs worker:0 shows them)"]),
        (peers, ["worker:0,2-3 | 8 lines after worker:1 failed (orch logs shows them)"]),
        ([_block("worker:0", "saved\nbye\n")], ["worker:0 | saved", "worker:0 | bye"]),
    ]
    for blocks, shown in rows:
        aftermath = _failing()
        assert aftermath.feed(blocks) == []
        # The time of the failure may vary from state to state.
        assert aftermath.begin(_FAILURE._replace(at=_NOW + 1e-5)) == []
        assert _lines(aftermath.flush()) == shown
        assert aftermath.flush() == []
    # The next attempt shows them.
    aftermath = _failing()
    aftermath.feed([_block("worker:0")])
    assert len(aftermath.begin(None)) == 1
    assert aftermath.feed([_block("worker:0", attempt=2)])


def test_other_lines_pass() -> None:
    for what, block in {
        "of the culprit": _block("worker:1"),
        "of the culprit and another": _block("worker:0-1"),
        "before the culprit's last line": _block("worker:0", after_s=-0.2),
        "of the next attempt": _block("worker:0", attempt=2),
        "at an unknown time": Block("worker:0", 1, None, b"x\n" * 9),
    }.items():
        assert _failing().feed([block]) == [block], what
        assert Aftermath().feed([block]) == [block], what
    # The connection is lost before the exit is noticed.
    assert _failing().feed([_block("worker:0", "E0000 ring_alg.cc:291] ...\n" * 9, after_s=-0.02)]) == []


def _torn_down(reason: TeardownReason, mono: float = 15.1) -> TeardownBegan:
    return event(TeardownBegan, mono, reason=reason, grace_s=1)


def test_failure_is_the_first_bad_exit_before_the_teardown_or_a_limit() -> None:
    exits = exited(2, 0, mono=15), exited(1, 3, mono=15)
    state = running(3, *exits, _torn_down(TeardownReason.FAILURE), exited(0, signal=9, mono=15))
    assert first_failure(state, 100.0) == Failure("worker:1", 1, 115.0)
    # A teardown for another reason folds nothing.
    for reason in (TeardownReason.REQUEST, TeardownReason.FINISHED):
        assert first_failure(running(3, *exits, _torn_down(reason)), 0.0) is None
    aftermath = Aftermath()
    aftermath.begin(first_failure(running(2, _torn_down(TeardownReason.LIMIT, 15.0)), _NOW - 15.0))
    assert aftermath.feed([_block("worker:0"), _block("worker:1")]) == []
    (folded,) = aftermath.flush()
    assert folded.data == b"18 lines while the run was stopped (orch logs shows them)\n"


def test_terminal_shows_folded_lines_in_their_place() -> None:
    """It holds the lines until the teardown is known, some milliseconds after the exit of the culprit."""
    with Watched(folder=Folder("--hint")) as watched:
        watched.view.update(moment(running(2)))
        watched.view.show([chunk(b"hello\n"), chunk(b"hello\n", 1), chunk(b"alone\n", 1)])
        watched.view.say("orch: a message")
        shown = ["worker:0-1 | hello", "worker:1 | alone", "orch: a message"]
        assert watched.frame()[:3] == shown
        watched.now, failed = 100.0, exited(1, 3, mono=15)
        watched.view.update(moment(running(2, failed), now=15.0))
        watched.view.show([chunk(b"lost my peer\n" * 40, time=watched.now)])
        assert not any("lost" in line for line in watched.frame())
        watched.view.update(moment(running(2, failed, _torn_down(TeardownReason.FAILURE, 15.01)), now=16.0))
        assert watched.frame()[3].startswith("digits")
        shown += ["worker:0 | 40 lines after worker:1 failed (orch logs worker:0 shows them)"]
        assert watched.finish() == shown
