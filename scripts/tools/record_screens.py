"""Runs `orch up` in a pseudo terminal and draws its screen as SVG. Called by scripts/tools/record.

With --check it draws into a temporary directory instead, and compares the words of orch there with those of the
committed pictures. Numbers, names and the lines of tasks differ from run to run.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as Xml

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 100, 26
ORCH = Path(sys.executable).with_name("orch")
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


def nothing(directory: Path, environ: dict[str, str]) -> bool:
    """Draw the screen of the live run."""
    return False


def the_end(directory: Path, environ: dict[str, str]) -> bool:
    """The screen is drawn after the run's end."""
    return True


def kill_second_worker(directory: Path, environ: dict[str, str]) -> bool:
    """Kill worker:1. True: draw the screen after the run's end."""
    out = subprocess.run(
        [ORCH, "status", "--json"], cwd=directory, env=environ, capture_output=True, check=True
    )
    (pid,) = [task["pid"] for task in json.loads(out.stdout)["tasks"] if task["task"] == "worker:1"]
    os.kill(pid, signal.SIGKILL)
    return True


Then = Callable[[Path, dict[str, str]], bool]
# For each screen: file, words of `orch up --workers 4`, the text to wait for, and what to do then.
SCREENS: tuple[tuple[str, tuple[str, ...], str, Then], ...] = (
    ("screen-live.svg", ("--", "train.py"), "epoch 8/10", nothing),
    ("screen-failure.svg", (), "epoch 3/10", kill_second_worker),
    ("screen-restart.svg", ("--max-restarts", "3", "--chaos", "kill worker:1 at step 80"), "epoch", the_end),
)


DOCS = Path(__file__).resolve().parents[2] / "docs"
# The command; a line of tasks or the rest of one. How these are folded depends on milliseconds.
_NOT_OF_ORCH = re.compile(r"\$ |\s*[|│]|[a-z]+:[\d,-]+( +[a-z]+:[\d,-]+)* +\|")
_WORD = re.compile(r"[A-Za-z][A-Za-z/_-]*")


def main(options: Sequence[str]) -> int:
    if not options:
        record_all(DOCS)
        return 0
    if list(options) != ["--check"]:
        print("scripts/tools/record takes --check or nothing", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        record_all(Path(directory))
        found = [line for name, *_ in SCREENS for line in differences(DOCS / name, Path(directory) / name)]
    for line in found:
        print(line)
    print("run scripts/tools/record" if found else "the pictures are current")
    return 1 if found else 0


def differences(committed: Path, recorded: Path) -> list[str]:
    """Return a line about the words that only one of the pictures has, for each of them that has such words."""
    old, new = words_of(committed), words_of(recorded)
    sides = (("no longer shown", old - new), ("not in the picture", new - old))
    return [f"{committed.name}: {what}: {', '.join(sorted(words))}" for what, words in sides if words]


def words_of(picture: Path) -> set[str]:
    """Return the words that orch shows."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for element in Xml.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}text"):
        if not element.get("class", "").endswith("-title"):
            place = float(element.get("x", "0")), (element.text or "").replace("\xa0", " ")
            rows.setdefault(float(element.get("y", "0")), []).append(place)
    words: set[str] = set()
    for row in rows.values():
        text = " ".join(piece for _, piece in sorted(row))
        if not _NOT_OF_ORCH.match(text):
            words |= {word for token in text.split() if _WORD.fullmatch(word := token.strip("(),;:.`…"))}
    return words


def record_all(target: Path) -> None:
    """Draw all screens into the directory `target`."""
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "XDG_STATE_HOME": home, "TERM": "xterm-256color", "PS1": "$ "}
        directory = Path(home) / "digits"
        directory.mkdir()
        (directory / "train.py").write_text(readme_script())
        for name, options, until, then in SCREENS:
            record(target / name, directory, environ, options, until=until, then=then)


def readme_script() -> str:
    """Return the script at the beginning of the README."""
    readme = DOCS.parent / "README.md"
    (script,) = re.findall(r"```python\n(# train.py\n.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    return str(script)


def record(
    target: Path,
    directory: Path,
    environ: dict[str, str],
    options: Sequence[str],
    until: str,
    then: Then,
) -> None:
    """Draw the screen of `orch up --workers 4` once `until` stands on it, or at the run's end."""
    command = ["orch", "up", "--workers", "4", *options]
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {' '.join(map(quoted, command))}\r\n".encode())
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(ORCH, command, environ)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    deadline = time.monotonic() + _DEADLINE_S
    to_the_end = False
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                stream.feed(os.read(terminal, 65536))
            except OSError:  # the other side is closed: the run has ended
                break
            if not to_the_end and any(until in line for line in screen.display):
                to_the_end = then(directory, environ)
                if not to_the_end:
                    break
        draw(screen, target)
    finally:
        os.kill(pid, signal.SIGTERM)
        drain(terminal)
        os.waitpid(pid, 0)
        os.close(terminal)


def quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word


def drain(terminal: int) -> None:
    """Read until the other side closes, so that it can end."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


def draw(screen: pyte.Screen, target: Path) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, legacy_windows=False)
        for row in range(LINES):
            cells = [screen.buffer[row][column] for column in range(COLUMNS)]
            line = Text(no_wrap=True)
            for style, run in groupby(cells, key=style_of):
                line.append("".join(cell.data for cell in run), style)
            line.rstrip()
            console.print(line)
        console.save_svg(str(target), title="orch", code_format=SVG)


def style_of(cell: pyte.screens.Char) -> Style:
    name = cell.fg
    if len(name) == 6 and all(digit in "0123456789abcdef" for digit in name):
        name = f"#{name}"
    elif name.startswith("bright"):
        name = f"bright_{name.removeprefix('bright')}"
    name = name.replace("brown", "yellow")
    return Style(color=None if name == "default" else name, bold=cell.bold)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
