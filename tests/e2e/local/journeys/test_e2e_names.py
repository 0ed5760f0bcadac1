"""Control characters in a directory, an option or a name are shown as pictures and do not reach the terminal."""

from __future__ import annotations

import pytest
from orch_command import Finished, Orch

_CONTROL = "ev\x1b[31mil\nü\r\x07"
_SHOWN = "evil␊ü␍␇"


def _is_harmless(done: Finished) -> bool:
    text = (done.out + done.err).replace("\n", "")
    return text.isprintable()


def test_control_characters_in_directory(orch: Orch) -> None:
    directory = orch.directory / _CONTROL
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
def test_control_characters_in_option(orch: Orch, option: str) -> None:
    done = orch.within("up", option, f"/proc/{_CONTROL}", "--", "true")
    assert (done.code, done.out) == (2, "")
    assert _is_harmless(done) and option in done.err


@pytest.mark.parametrize("verb", ["status", "logs", "down", "wait", "attach"])
def test_control_characters_in_run_name(orch: Orch, verb: str) -> None:
    done = orch(verb, _CONTROL)
    assert done.code == 3 and _is_harmless(done)
