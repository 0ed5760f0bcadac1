"""Make text of tasks, files and names safe for a terminal: control sequences are removed, except colours (pure).

The grammar of control sequences is that of ECMA-48 (5th edition, 1991), with xterm's BEL as an end of OSC.
"""

from __future__ import annotations

import re
from functools import lru_cache

RESET = "\x1b[0m"
_SAFE_ASCII = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
_HIGH = bytes(range(0x80, 0x100))
_C1_IN_UTF8 = re.compile(rb"\xc2[\x80-\x9f]")
# No repeated class contains the first character of a match, so the time is linear in the length of the line.
_SEQUENCE = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]{0,64}m)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI, complete
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"  # OSC, DCS, SOS, PM, APC up to their end; without an
    r"[^\x07\x1b\x90\x98\x9b-\x9f\n]*(?:\x07|\x1b\\|\x9c)"  # end, their text stays
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*"  # CSI, incomplete
    r"|\x1b[ -/]*[0-~]"  # two-character escapes and character sets
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # any other control character, also a single ESC
)
# Unicode symbols for control characters: from U+2400 on, and one for DEL.
_SYMBOLS = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\x7f": "\u2421"}
_MAX_FRAMES = 64
# Parameters of SGR: text that cannot be seen, and colours by their number (5;N) or their parts (2;R;G;B).
_CONCEAL = "8"
# Terminals without coloured underlines read each number of this colour as a separate code, and 8 conceals text.
_UNDERLINE_COLOUR = "58"
_EXTENDED_COLOURS = ("38", "48", _UNDERLINE_COLOUR)
_COLOUR_NUMBERS = {"5": 2, "2": 4}
# In a path, a carriage return or newline is an ordinary character and is shown as its picture.
_PICTURES = str.maketrans({"\n": "\u240a", "\r": "\u240d"})
# Characters that reverse the reading order (Unicode's UAX 9) or end a line: with them a text can look like another.
# Arabic and Hebrew letters are readable without them.
_BIDI = str.maketrans(
    dict.fromkeys(
        "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029", "\ufffd"
    )
)


def is_clean(data: bytes) -> bool:
    """True if `data` is valid UTF-8 with no control characters except tabs and newlines. Processes some GB/s."""
    odd = data.translate(None, _SAFE_ASCII)
    if not odd:
        return True
    if odd.translate(None, _HIGH):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\xc2" not in odd or _C1_IN_UTF8.search(data) is None


def clean_lines(data: bytes, *, colour: bool) -> bytes:
    """Return whole lines as safe UTF-8. Text before a carriage return is overwritten by the text after it.

    With `colour`, colour sequences stay and are reset at the end of each line.
    """
    if is_clean(data):
        return data
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if b"\r" in data or colour:
        lines = data.split(b"\n")
        return "\n".join([clean_line(line, colour=colour) for line in lines]).encode()
    return _strip(data.decode("utf-8", "replace"), colour=False).encode()


def clean_line(line: bytes, *, colour: bool) -> str:
    """Return a line without its newline as safe text: the last visible frame between carriage returns."""
    if is_clean(line):
        return line.decode()
    rest = line.rstrip(b"\r")
    text = ""
    for _ in range(_MAX_FRAMES):
        rest, carriage_return, frame = rest.rpartition(b"\r")
        text = _strip(frame.decode("utf-8", "replace"), colour=colour)
        if not carriage_return or not _is_blank(text):
            break
    return text + RESET if "\x1b" in text else text


def one_line(text: str) -> str:
    """Return text of a task as one safe line without colours."""
    return clean_line(text.replace("\n", " ").encode("utf-8", "replace"), colour=False)


def safe(text: str) -> str:
    """Return one line: control sequences removed, other control characters (except tabs) as their pictures, and
    characters that change the reading order replaced."""
    return text if text.isprintable() else one_line(text.translate(_PICTURES)).translate(_BIDI)


def without_bidi(text: str) -> str:
    """Replace the characters that change the reading order."""
    return text if text.isascii() else text.translate(_BIDI)


def safe_lines(text: str) -> str:
    """The same for a message of several lines."""
    return text if text.isprintable() else "\n".join(safe(line) for line in text.split("\n"))


def last_frame(line: bytes) -> bytes:
    """Return the part of a line after its last carriage return, without the line end."""
    return line.rstrip(b"\r\n").rpartition(b"\r")[2]


def _strip(text: str, *, colour: bool) -> str:
    return _SEQUENCE.sub(_keep_colour if colour else _symbol, text)


def _symbol(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) > 1:
        return ""
    return _SYMBOLS.get(found, "\ufffd")


def _keep_colour(match: re.Match[str]) -> str:
    return _visible_colour(match[0]) if match["colour"] else _symbol(match)


@lru_cache(maxsize=1024)
def _visible_colour(sequence: str) -> str:
    """Return an SGR sequence without `conceal` and the colour of underlines; nothing if terminals disagree on what its
    numbers mean."""
    if "8" not in sequence:
        return sequence
    rest, kept = sequence[2:-1].split(";"), []
    while rest:
        word = rest.pop(0)
        number, *parts = (part.lstrip("0") for part in word.split(":"))
        if number == _CONCEAL or _CONCEAL in parts:
            continue  # some terminals read each part as a separate code
        colour = [word]
        if number in _EXTENDED_COLOURS and not parts:
            # The numbers of the colour, 8 among them, belong to it.
            count = _COLOUR_NUMBERS.get(rest[0].lstrip("0") if rest else "")
            if count is None or len(rest) < count:
                return ""
            colour += rest[:count]
            del rest[:count]
        if number != _UNDERLINE_COLOUR:
            kept += colour
    return f"\x1b[{';'.join(kept)}m" if kept else ""


def _is_blank(text: str) -> bool:
    return not text or text.isspace() or not _SEQUENCE.sub("", text).strip()
