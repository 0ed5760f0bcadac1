"""A directory, a value or a word with control characters in it: shown, and no terminal is steered by it."""

from __future__ import annotations

import pytest
from orch_command import Finished, Orch

_EVIL = "ev\x1b[31mil\nü\r\x07"
_SHOWN = "evil␊ü␍␇"


def _is_harmless(done: Finished) -> bool:
    text = (done.out + done.err).replace("\n", "")
    return text.isprintable()


def test_an_evil_directory(orch: Orch) -> None:
    directory = orch.directory / _EVIL
    directory.mkdir()
    logs = directory / "logs"
    ended = orch("up", "-q", "--log-dir", str(logs), "--", "sh", "-c", "exit 3", cwd=directory)
    assert ended.code == 3 and _is_harmless(ended)
    assert f"{_SHOWN}/logs/" in ended.err, "where the log is"
    for words in (("ls",), ("status",), ("config", "--", "true")):
        done = orch(*words, cwd=directory)
        assert (done.code, done.err) == (0, ""), words
        assert _is_harmless(done) and _SHOWN in done.out, words


@pytest.mark.parametrize(
    "option", ["--cwd", "--checkpoint-dir", "--log-dir", "--name", "--timeout", "--tasks"]
)
def test_an_evil_word(orch: Orch, option: str) -> None:
    done = orch.within("up", option, f"/proc/{_EVIL}", "--", "true")
    assert (done.code, done.out) == (2, "")
    assert _is_harmless(done) and option in done.err


@pytest.mark.parametrize("verb", ["status", "logs", "down", "wait", "attach"])
def test_an_evil_run(orch: Orch, verb: str) -> None:
    done = orch(verb, _EVIL)
    assert done.code == 3 and _is_harmless(done)
