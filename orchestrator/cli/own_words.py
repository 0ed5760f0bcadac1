"""Hides the values of `--env` in this process's command line, which all users can read (/proc/PID/cmdline, ps)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# `--env`, `-e`, and `-e` among other letters (`-de`); then `=` or nothing, and the value in the same word.
_OPTION = re.compile(rb"(?:--env(?==|\Z)=?|-[A-Za-z]*?e)(.*)\Z", re.DOTALL)
# Fields of /proc/PID/stat after the command's name (man 5 proc_pid_stat: arg_start and arg_end).
_ARG_START, _ARG_END = 45, 46


def hide_env_values() -> None:
    """Overwrite the values in the process's memory. The words in sys.argv stay as they are."""
    if not any(_OPTION.match(os.fsencode(word)) for word in sys.argv):
        return
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            for place, length in _values(os.pread(memory, end - start, start)):
                os.pwrite(memory, b"*" * length, start + place)
        finally:
            os.close(memory)
    except (OSError, OverflowError):
        return  # a system that does not allow it; the values stay visible


def _values(words: bytes) -> Iterator[tuple[int, int]]:
    """Yield (position, length) of each value in the words, which end with NUL. Words after `--` belong to the task."""
    place, is_next = 0, False
    for word in words.split(b"\0"):
        if word == b"--":
            return
        option = _OPTION.match(word)
        if is_next or option is not None:
            value = (word if is_next or option is None else option[1]).partition(b"=")[2]
            yield place + len(word) - len(value), len(value)
        is_next = option is not None and not option[1]
        place += len(word) + 1
