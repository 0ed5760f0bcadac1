"""Runs `orch up` in a pseudo terminal and draws its screen as SVG. Called by scripts/tools/record.

With --check it draws into a temporary directory instead, and compares the words of orch there with those of the
committed pictures. Numbers, names and the lines of tasks differ from run to run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import time
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import pyte
import record_page
from record_page import DOCS, ORCH
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 100, 26
_DEADLINE_S = 180.0
# rich's own template without its web fonts: the picture loads nothing from anywhere.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


class Recorded(NamedTuple):
    """A screen of `orch up --workers 4`, with further words: that of the live run once it shows a text (`at`), or that
    of its end, after the kill of a task (`victim`) at that text."""

    file: str
    words: tuple[str, ...]
    at: str | None = None
    victim: str | None = None


SCREENS = (
    Recorded("screen-live.svg", ("--", "train.py"), at="epoch 8/10"),
    Recorded("screen-failure.svg", (), at="epoch 3/10", victim="worker:1"),
    Recorded("screen-restart.svg", ("--max-restarts", "3", "--chaos", "kill worker:1 at step 80")),
)
# The command; a line of tasks or the rest of one. How these are folded depends on milliseconds.
_NOT_OF_ORCH = re.compile(r"\$ |\s*[|│]|[a-z]+:[\d,-]+( +[a-z]+:[\d,-]+)* +\|")
_WORD = re.compile(r"[A-Za-z][A-Za-z/_-]*")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/tools/record", description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        record_all(DOCS)
        record_page.draw_all()
        return 0
    with tempfile.TemporaryDirectory() as directory:
        record_all(Path(directory))
        found = [line for name, *_ in SCREENS for line in differences(DOCS / name, Path(directory) / name)]
    found += record_page.faults(DOCS)
    print(*found, "run scripts/tools/record" if found else "the pictures are current", sep="\n")
    return bool(found)


def differences(committed: Path, recorded: Path) -> list[str]:
    """Return a line about the words that only one of the pictures has, for each of them that has such words."""
    old, new = words_of(committed), words_of(recorded)
    sides = (("no longer shown", old - new), ("not in the picture", new - old))
    return [f"{committed.name}: {what}: {', '.join(sorted(words))}" for what, words in sides if words]


def words_of(picture: Path) -> set[str]:
    """Return the words that orch shows."""
    placed = [
        (float(element.get("y", "0")), float(element.get("x", "0")), element.text or "")
        for element in Xml.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}text")
        if not element.get("class", "").endswith("-title")
    ]
    words: set[str] = set()
    for _, row in groupby(sorted(placed), key=lambda piece: piece[0]):
        text = " ".join(piece for *_, piece in row).replace("\xa0", " ")
        if not _NOT_OF_ORCH.match(text):
            words |= {word for token in text.split() if _WORD.fullmatch(word := token.strip("(),;:.`…"))}
    return words


def record_all(target: Path) -> None:
    """Draw all screens into the directory `target`."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(# train.py\n.*?)```", readme, re.DOTALL)
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "XDG_STATE_HOME": home, "TERM": "xterm-256color", "PS1": "$ "}
        directory = Path(home) / "digits"
        directory.mkdir()
        (directory / "train.py").write_text(script)
        for recorded in SCREENS:
            draw(screen_of(recorded, directory, environ), target / recorded.file)


def screen_of(recorded: Recorded, directory: Path, environ: dict[str, str]) -> pyte.Screen:
    command = ["orch", "up", "--workers", "4", *recorded.words]
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {shlex.join(command)}\r\n".replace("'", '"').encode())
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(ORCH, command, environ)
    termios.tcsetwinsize(terminal, (LINES, COLUMNS))
    deadline, at = time.monotonic() + _DEADLINE_S, recorded.at
    try:
        while time.monotonic() < deadline and (data := read(terminal)):
            stream.feed(data)
            if at is not None and any(at in line for line in screen.display):
                if recorded.victim is None:
                    break
                kill(recorded.victim, directory, environ)
                at = None
    finally:
        os.kill(pid, signal.SIGTERM)
        while read(terminal):
            pass
        os.waitpid(pid, 0)
        os.close(terminal)
    return screen


def read(terminal: int) -> bytes:
    """Return the next output; nothing when the other side is closed or silent."""
    if not select.select([terminal], [], [], _DEADLINE_S)[0]:
        return b""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def kill(task: str, directory: Path, environ: dict[str, str]) -> None:
    status = subprocess.check_output([ORCH, "status", "--json"], cwd=directory, env=environ)
    (pid,) = (each["pid"] for each in json.loads(status)["tasks"] if each["task"] == task)
    os.kill(pid, signal.SIGKILL)


def draw(screen: pyte.Screen, target: Path) -> None:
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    for row in range(LINES):
        line = Text(no_wrap=True)
        for style, run in groupby((screen.buffer[row][column] for column in range(COLUMNS)), key=style_of):
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        console.print(line)
    console.save_svg(str(target), title="orch", code_format=SVG)


def style_of(cell: pyte.screens.Char) -> Style:
    name = cell.fg.replace("brown", "yellow")
    if re.fullmatch("[0-9a-f]{6}", name):
        name = f"#{name}"
    elif name.startswith("bright"):
        name = f"bright_{name.removeprefix('bright')}"
    return Style(color=None if name == "default" else name, bold=cell.bold)


if __name__ == "__main__":
    sys.exit(main())
