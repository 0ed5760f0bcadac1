"""Text with control characters, or with characters that reverse the text around them, is made safe.

Names, output and exception of a run have such text. Every verb shows the run, and every file for people is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from orch_command import Finished, Orch
from pages import embedded, strings_of

from orchestrator import Cluster, OrchError
from orchestrator.cli.completion import run_words
from orchestrator.client import api
from orchestrator.client.api import Run
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.testing import assert_chief_checkpoint, assert_failed_first, assert_succeeded

# LRE, RLE, PDF, LRO, RLO; LRI, RLI, FSI, PDI; marks and separators.
REVERSING = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))} | set(
    "\u200e\u200f\u061c\u2028\u2029"
)
CONTROL = set("\x1b\x07\x0e\r\x9b\x9c\x9d\x90")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202etxt.exe\u2066\x9b31m"
# Titles, links, the clipboard, cursor movement, other character sets, and rich's markup.
OUTPUT = (
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJmIH4=\x07",
    "\x1b]8;;http://evil\x1b\\\\link\x1b]8;;\x1b\\\\",
    "\x1b[2J\x1b[1;1H\x1b[?1049h\x1b[6n",
    "\x1bP+q544e\x1b\\\\",
    "\x1b(0\x0e",
    "\x9b31m\x9d0;title\x9c",
    "[red]markup[/red] [link=http://evil]x[/link]",
    "before\rafter",
    HOSTILE,
)
SCRIPT = f"train{HOSTILE}.py"


def test_characters_that_reverse_text_are_replaced() -> None:
    text = "".join(f"a{character}b" for character in REVERSING)
    assert safe(text) == "a\ufffdb" * len(REVERSING)
    assert safe_lines(f"{text}\nc") == f"{safe(text)}\nc"
    scripts = "שלום عالم 日本語 naïve 👩‍🚀"
    assert safe(scripts) == scripts


@dataclass(frozen=True)
class Hostile:
    """A failed run whose directory, script, output and exception are hostile, and one that timed out."""

    orch: Orch
    place: Path
    done: Finished
    failed: Run
    late: Run

    def shows(self, *words: str) -> Finished:
        return self.orch(*words, cwd=self.place)


@pytest.fixture(scope="module")
def hostile(shared_orch: Orch) -> Hostile:
    place = shared_orch.directory / f"dir{HOSTILE}"
    place.mkdir()
    (place / SCRIPT).write_text(f"for text in {OUTPUT!r}:\n    print(text)\nraise ValueError({HOSTILE!r})\n")
    options = ("--log-dir", str(place / "logs"), "--junit", "junit.xml", "--color", "always")
    late = shared_orch("up", "--timeout", "0.1", "--", "sh", "-c", "sleep 600", HOSTILE, cwd=place)
    done = shared_orch("up", *options, "--", SCRIPT, cwd=place)
    assert (late.code, done.code) == (124, 1), (late, done)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(shared_orch.state))
        runs = [api.find(run.name) for run in shared_orch.run_dirs()]
    return Hostile(shared_orch, place, done, failed=runs[1], late=runs[0])


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_output_of_a_task_does_not_control_the_terminal(hostile: Hostile) -> None:
    for done in (hostile.done, hostile.shows("--color", "always", "logs", hostile.failed.id)):
        assert "[red]markup[/red]" in done.out
        assert not set(without_colours(done.out + done.err)) & (CONTROL - {"\n"})


def test_report_is_printed_safely(hostile: Hostile) -> None:
    assert "ValueError: " in hostile.done.err
    assert not set(without_colours(hostile.done.err)) & (CONTROL | REVERSING)


def test_verbs_print_no_such_text(hostile: Hostile) -> None:
    run = hostile.failed.id
    wrong = []
    verbs = ("status", "status --json", "history", "wait", "stacks", "down", "report -o report.md")
    commands = [[*verb.split(), run] for verb in verbs]
    commands += [["ls"], ["ls", "--all"], ["prune", "--dry-run", "--keep", "0"]]
    for words in (*commands, ["config", "--", SCRIPT], ["doctor", "--", SCRIPT]):
        done = hostile.shows(*words)
        if not done.out + done.err or set(done.out + done.err) & (CONTROL | REVERSING):
            wrong.append((words, done))
    assert not wrong, wrong


def test_files_for_people_have_no_such_text(hostile: Hostile) -> None:
    for name in ("page.html", "page.md"):
        assert hostile.shows("report", hostile.failed.id, "-o", name).code == 0
    data = embedded((hostile.place / "page.html").read_bytes())
    page = [text for text in strings_of(data) if set(text) & (CONTROL | REVERSING)]
    assert not page, page
    for name in ("page.md", "junit.xml"):
        assert not set((hostile.place / name).read_text()) & (CONTROL | REVERSING), name


def test_messages_of_the_python_api_are_safe(hostile: Hostile) -> None:
    """pytest and a traceback print a message as it is."""
    failed, late = hostile.failed, hostile.late
    checks: list[Callable[[], object]] = [
        lambda: assert_succeeded(failed),
        lambda: assert_failed_first(failed, "worker:1"),
        lambda: assert_failed_first(failed, "worker:0", exception="other"),
        lambda: assert_chief_checkpoint(failed),
        lambda: assert_succeeded(late),
        lambda: assert_failed_first(late, "worker:0"),
        failed.wait,
        late.wait,
        lambda: Cluster(1, [f"none{HOSTILE}.py"], hostile.place).__enter__(),
    ]
    for check in checks:
        with pytest.raises((AssertionError, OrchError)) as caught:
            check()
        assert str(caught.value)
        assert not set(str(caught.value)) & (CONTROL | REVERSING)


def test_record_of_another_origin_is_printed_safely(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's directory may come from an archive."""
    monkeypatch.setenv("XDG_STATE_HOME", str(hostile.orch.state))
    record = hostile.late.dir / "run.json"
    before = record.read_text()
    changes = {"name": f"$(reboot) {HOSTILE}", "versions": {HOSTILE: HOSTILE}}
    record.write_text(json.dumps(json.loads(before) | changes))
    try:
        assert not any("reboot" in word or set(word) & (CONTROL | REVERSING) for word in run_words(""))
        for words in (("status", hostile.late.id), ("ls", "--all"), ("prune", "--dry-run", "--keep", "0")):
            done = hostile.shows(*words)
            assert not set(done.out + done.err) & (CONTROL | REVERSING), words
    finally:
        record.write_text(before)
