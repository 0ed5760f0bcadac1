"""Text with control characters, or with characters that reverse the text around them, is made safe."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_command import Orch

from orchestrator import Cluster, OrchError
from orchestrator.cli.completion import run_words
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.testing import assert_chief_checkpoint, assert_failed_first, assert_succeeded

# LRE, RLE, PDF, LRO, RLO; LRI, RLI, FSI, PDI; marks and separators.
REVERSING = [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))] + [
    "\u200e", "\u200f", "\u061c", "\u2028", "\u2029",
]  # fmt: skip
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202etxt.exe\u2066\x9b31m"


@pytest.mark.parametrize("character", REVERSING, ids=lambda character: f"U+{ord(character):04X}")
def test_character_that_reverses_text_is_replaced(character: str) -> None:
    assert safe(f"a{character}b") == "a\ufffdb"
    assert safe_lines(f"a{character}b\nc") == "a\ufffdb\nc"


@given(st.text())
def test_safe_text_has_no_control_characters(text: str) -> None:
    shown = safe(text)
    assert not set(shown) & set(REVERSING)
    assert not any(unicodedata.category(character) == "Cc" and character != "\t" for character in shown)
    assert safe(shown) == shown


def test_other_scripts_are_unchanged() -> None:
    text = "שלום عالم 日本語 naïve 👩‍🚀"
    assert safe(text) == text


def test_record_of_another_origin_is_printed_safely(orch: Orch) -> None:
    """A run's directory may come from an archive."""
    assert orch("up", "--", "true").code == 0
    record = orch.run_dir() / "run.json"
    changed = json.loads(record.read_text()) | {
        "name": f"$(reboot) {HOSTILE}",
        "versions": {HOSTILE: HOSTILE},
    }
    record.write_text(json.dumps(changed))
    assert run_words("") == [orch.directory.name], "the name comes from the directory"
    for words in (("status",), ("ls",), ("prune", "--dry-run", "--keep", "0")):
        done = orch(*words)
        assert not set(done.out + done.err) & {"\x1b", "\x07", "\x9b", *REVERSING}, words


def test_report_is_printed_safely(orch: Orch) -> None:
    """The directory's name, the script's name, the exception and the last lines are hostile."""
    place = orch.directory / f"dir{HOSTILE}"
    place.mkdir()
    name = f"train{HOSTILE}.py"
    (place / name).write_text(f"print({HOSTILE!r})\nraise ValueError({HOSTILE!r})\n")
    done = orch("up", "--log-dir", str(place / "logs"), "--", name, cwd=place)
    assert done.code == 1
    assert "ValueError: " in done.err
    for shown in (
        done.err,
        orch("status", cwd=place).out,
        orch("ls", cwd=place).out,
        orch("config", "--", name, cwd=place).out,
    ):
        assert "dir" in shown or "train" in shown
        assert not set(shown) & {"\x1b", "\x07", "\x9b", *REVERSING}
    assert not set(done.out) & {"\x1b", "\x07", "\x9b"}


def test_messages_of_the_python_api_are_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest and a traceback print a message as it is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / f"dir{HOSTILE}"
    place.mkdir()
    (place / "fail.py").write_text(f"print({HOSTILE!r})\nraise ValueError({HOSTILE!r})\n")
    (place / f"{HOSTILE}.py").write_text("import time\ntime.sleep(600)\n")
    with Cluster(1, ["fail.py"], place, log_dir=place / "logs") as failed:
        failed.wait(check=False)
    with Cluster(1, [f"{HOSTILE}.py"], place, timeout=0.5) as late:
        late.wait(check=False)
    for check in (
        lambda: assert_succeeded(failed),
        lambda: assert_failed_first(failed, "worker:1"),
        lambda: assert_failed_first(failed, "worker:0", exception="other"),
        lambda: assert_chief_checkpoint(failed),
        lambda: assert_succeeded(late),
        lambda: assert_failed_first(late, "worker:0"),
        failed.wait,
        late.wait,
        lambda: Cluster(1, [f"none{HOSTILE}.py"], place).__enter__(),
    ):
        with pytest.raises((AssertionError, OrchError)) as caught:
            check()
        assert str(caught.value)
        assert not set(str(caught.value)) & {"\x1b", "\x07", "\x9b", "\r", *REVERSING}
