"""Hides secrets in commands and environments, for everything that is shown or written to disk (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

MASK = "***"
# The short ones count between other characters only: PATIENCE, --passes and COMPASS are not secret.
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PWD|KEY|CREDENTIAL|AUTH|COOKIE|BEARER|SIGNATURE"
    r"|(?<![A-Z0-9])(?:DSN|JWT|PASS|PAT|PIN|PW|SAS|SIG)(?![A-Z0-9])",
    re.IGNORECASE,
)
# An option, a variable or a key of Hydra (++db.token). Program text and paths may contain such words without being
# secret.
_NAME = re.compile(r"[+~]*[\w.@\[\]-]*\Z")
# The patterns below first require what follows the name (?=...): once a secret word is found, they match, and do not
# try the next one. A parameter of a URL: ?token=...
_SECRET_PARAMETER = re.compile(
    rf"(?P<name>[?&;#](?=[\w.\[\]-]*=[^&;#\s\"'])[\w.\[\]-]*(?:{_SECRET.pattern})[\w.\[\]-]*=)[^&;#\s\"']+",
    re.IGNORECASE,
)
# A member of a JSON document or a Python dictionary: "api_key": "...", its quotes escaped up to four times, or not.
_SECRET_MEMBER = re.compile(
    r"""(?P<name>(?P<quote>\\{0,15}["'])(?=[\w.-]*(?P=quote)\s*:\s*\\{0,15}["'])"""
    rf"""[\w.-]*(?:{_SECRET.pattern})[\w.-]*(?P=quote)\s*:\s*)"""
    r"""(?P<mark>\\{0,15}["']).*?(?:(?<!\\)(?P=mark)|\Z)""",
    re.IGNORECASE | re.DOTALL,
)
# A header within a command line, up to the end of its quotes.
_SECRET_HEADER = re.compile(
    rf"(?P<name>(?<![\w.-])(?=[\w.-]*: [^\"'\n])[\w.-]*(?:{_SECRET.pattern})[\w.-]*: )[^\"'\n]+",
    re.IGNORECASE,
)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def mask_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command's words with secrets replaced: `--api-key=***`, `--token ***`, `TOKEN=***`,
    `Authorization: ***`, `{"api_key": "***"}`, logins and parameters (`?token=***`) in URLs."""
    masked: list[str] = []
    hides_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        header, colon, _ = word.partition(": ")
        is_option = word.startswith("-")
        if hides_next and not is_option:
            masked.append(MASK)
        elif equals and _is_secret_word(name):
            masked.append(f"{name}={MASK}")
        elif colon and _is_secret_word(header):
            masked.append(f"{header}: {MASK}")
        else:
            masked.append(_mask_within(word))
        hides_next = is_option and not equals and _is_secret_word(name)
    return tuple(masked)


def _is_secret_word(word: str) -> bool:
    return _NAME.match(word) is not None and _SECRET.search(word) is not None


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable with this name is hidden."""
    return _SECRET.search(name) is not None


def mask_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Replace the values of variables with secret-looking names, and secrets within the other values."""
    return {name: MASK if _SECRET.search(name) else _mask_text(value) for name, value in env.items()}


@lru_cache(maxsize=1024)
def _mask_text(text: str) -> str:
    """Mask a text that may be one word, or a command line. Most values are those of all tasks of a run."""
    text = _SECRET_HEADER.sub(rf"\g<name>{MASK}", mask_words([text])[0])
    return " ".join(mask_words(text.split(" ")))


def _mask_within(text: str) -> str:
    text = _SECRET_PARAMETER.sub(rf"\g<name>{MASK}", _URL_LOGIN.sub(MASK, text))
    return _SECRET_MEMBER.sub(rf"\g<name>\g<mark>{MASK}\g<mark>", text)
