"""Any text from a user or another program gives a value, or a ValueError that explains it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fuzzing import any_text, documents, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import until

from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.text.durations import MAX_DURATION_S, format_duration, parse_duration
from orchestrator.core.text.sizes import MAX_SIZE, parse_size
from orchestrator.host import kernel_files
from worker.agent.processes import read_stat
from worker.agent.task_start import injected_env
from worker.bootstrap.install import Options

T = TypeVar("T")
figures = st.text("0123456789.eE+-_ \u0663\u00b2\uff11naif", max_size=12)
lengths = st.lists(figures | st.sampled_from(["ms", "s", "m", "h", "d", "S", " "]), max_size=6).map("".join)
amounts = st.lists(figures | st.sampled_from(["k", "Ki", "MiB", "GB", "g", "b", "i", " "]), max_size=5).map(
    "".join
)


def parsed(parse: Callable[[str], T], text: str) -> T | None:
    """None for a ValueError that has an explanation."""
    try:
        return parse(text)
    except ValueError as error:
        assert str(error)
        return None


@given(lengths | any_text)
@fuzzed(100)
def test_any_length_of_time(text: str) -> None:
    seconds = parsed(parse_duration, text)
    if seconds is not None:
        assert 0 <= seconds <= MAX_DURATION_S
        assert math.isclose(parse_duration(format_duration(seconds)), seconds, abs_tol=0.0006)


@given(amounts | any_text)
@fuzzed(100)
def test_any_amount_of_memory(text: str) -> None:
    size = parsed(parse_size, text)
    if size is not None:
        assert 1 <= size <= MAX_SIZE
        assert parse_size(str(size)) == size


parts = ["worker", "chief", "ps", "evaluator", ":", "0", "1", "999999", " ", "\u0663", "-", "\n"]
refs = st.lists(st.sampled_from(parts), max_size=4).map("".join)
options = st.sampled_from(["task", "exception_file", "stacks_file", "tracer", "fixes"])


@given(refs | any_text | figures)
@example("9" * 5000)
@fuzzed(100)
def test_any_name_of_a_task(text: str) -> None:
    task = parsed(TaskRef.parse, text)
    if task is not None:
        assert text.isascii()
        assert TaskRef.parse(str(task)) == task


@given(st.dictionaries(options, documents))
@fuzzed(60)
def test_any_options_of_the_bootstrap(values: dict[str, object]) -> None:
    options = Options(values)
    assert options.tracer is None or isinstance(options.tracer, int)
    for file in (options.exception_file, options.stacks_file):
        assert file is None or (isinstance(file, str) and file)
    assert options.fixes in (True, False)


def test_python_starts_with_any_orch_bootstrap() -> None:
    """The variable must not keep the user's program from running."""
    base = {**os.environ, **injected_env({"task": "worker:0"}, os.environ)}
    program = "import os; print('ran', 'ORCH_BOOTSTRAP' in os.environ)"
    for text in ("", "{", "[]", "null", "3", '{"task": 3, "fixes": true}', "[" * 100_000, "\udcff"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**base, "ORCH_BOOTSTRAP": text},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "ran False\n"), (text[:30], done.stderr)
        assert "Traceback" not in done.stderr, text[:30]


fields = st.sampled_from(["oom_kill", "Pss:", "0::/a/b", "3:memory,cpu:/x", "::", "0::/../.."])
kernel_line = st.tuples(fields, st.sampled_from([" ", ":", "\n", "\t"]), figures).map("".join)
kernel_lines = st.lists(kernel_line, max_size=4).map("\n".join)


@given(kernel_lines | any_text)
@example("oom_kill \u00b2")
@example("9" * 5000)
@fuzzed(100)
def test_any_kernel_text(place: Path, text: str) -> None:
    path = place / "self" / "cgroup"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    number = kernel_files.read_number(place / "missing", path)
    assert number is None or number >= 0
    assert kernel_files.read_field(path, "oom_kill") >= 0
    for group in kernel_files.groups(place, place / "cgroups", "memory"):
        assert group.is_relative_to(place / "cgroups")


def test_process_can_have_any_name() -> None:
    for name in (b") R 1 1", b"((", b"a b\n) Z 0", b"\xff\xfe)", b" "):
        named = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r})"
        words = [sys.executable, "-I", "-S", "-c", f"{named}; print('up', flush=True); sys.stdin.read()"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            stat = until(lambda child=child: read_stat(child.pid))
            assert (stat.pid, stat.parent) == (child.pid, os.getpid()), name
            assert stat.state in "RSD" and stat.start_ticks > 0
            child.send_signal(signal.SIGKILL)
