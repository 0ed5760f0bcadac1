"""Which start-up messages of TensorFlow are dropped."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cluster import LONGEST_RUN_S, ROOT

from worker.training.process.output import drop_startup_messages

STARTUP = (
    b"I0000 00:00:1 1 port.cc:153] oneDNN custom operations are on. You may see slightly different results\n"
)
NO_GPU = b"E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n"
REAL = b"E0000 00:00:1 1 server.cc:1] Could not start gRPC server\n"

WRITES = """
import os, sys
from worker.training.process.output import without_startup_messages
def write(text): os.write(2, text)
try:
    with without_startup_messages():
        write(b"oneDNN custom operations are on.\\nkept\\n")
        exec(sys.argv[1])
except ValueError:
    pass
write(b"after\\n")
"""


def test_only_startup_messages_are_dropped() -> None:
    assert drop_startup_messages(STARTUP + REAL + b"no newline", has_gpu=False) == REAL + b"no newline"


def test_driver_errors_are_kept_if_there_is_a_driver() -> None:
    assert drop_startup_messages(NO_GPU, has_gpu=False) == b""
    assert drop_startup_messages(NO_GPU, has_gpu=True) == NO_GPU


def written(code: str, **environment: str) -> tuple[int, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    process = subprocess.run(
        [sys.executable, "-c", WRITES, code],
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    return process.returncode, process.stderr


@pytest.mark.parametrize("code", ["pass", "raise ValueError"])
def test_other_lines_are_written_also_after_an_error(code: str) -> None:
    assert written(code) == (0, "kept\nafter\n")


def test_log_level_of_the_user_turns_filtering_off() -> None:
    code, text = written("pass", TF_CPP_MIN_LOG_LEVEL="0")
    assert (code, text) == (0, "oneDNN custom operations are on.\nkept\nafter\n")


def test_crash_while_lines_are_held_back_is_reported() -> None:
    code, text = written("os.abort()")
    assert code != 0
    assert "Fatal Python error: Aborted" in text
