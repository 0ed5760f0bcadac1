"""Secrets do not appear in orch's files, in the command lines of its processes, or on the screen."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_command import Orch, Started
from pages import embedded, strings_of
from waiting import until

from orchestrator.core.text.secrets import MASK, mask_secrets, mask_words

IN_WORD, IN_NEXT_WORD, IN_URL, GIVEN, INHERITED = (f"hunter{number}" for number in range(2, 7))
SECRETS = (IN_WORD, IN_NEXT_WORD, IN_URL, GIVEN, INHERITED)
# A value whose name does not mark it as a secret, as long as GIVEN. Command lines do not show it either.
OTHER = "visible"
OPTIONS = ("--env", f"MY_API_KEY={GIVEN}", f"--env=OTHER={OTHER}", "-te", f"A={OTHER}", f"-eB={OTHER}")
# The words after `--` are the task's own, although one looks like an option of orch.
COMMAND = (
    *("--", "train.py", "-e", "x=1", f"--password={IN_WORD}", "--api-key", IN_NEXT_WORD),
    f"s3://me:{IN_URL}@store/data",
)
ENV: dict[str, str | None] = {"WANDB_API_KEY": INHERITED}


def secrets_in(text: str) -> set[str]:
    return {secret for secret in SECRETS if secret in text}


def in_files(directory: Path) -> dict[str, set[str]]:
    """The secrets in the files of a directory, by file name."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    found = {str(path.relative_to(directory)): secrets_in(path.read_text(errors="replace")) for path in files}
    return {name: secrets for name, secrets in found.items() if secrets}


# Words of a command, and how they are shown.
MASKED: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("train.py", "--lr", "0.1"), ("train.py", "--lr", "0.1")),
    (("--token", "abc", "--lr"), ("--token", MASK, "--lr")),
    (("--token=abc",), (f"--token={MASK}",)),
    (("env", "DB_PASSWORD=x=y", "train.py"), ("env", f"DB_PASSWORD={MASK}", "train.py")),
    (("--header", "Authorization: Bearer abc"), ("--header", f"Authorization: {MASK}")),
    (("https://me:pw@host/x",), (f"https://{MASK}@host/x",)),
    (('{"api_key": "a\\"b", "lr": "1"}',), ('{"api_key": "***", "lr": "1"}',)),
    (('--json={"a": {"authToken" : "abc"}}',), ('--json={"a": {"authToken" : "***"}}',)),
    (("-c", "f({'password':'abc'})"), ("-c", "f({'password':'***'})")),
    (('{\\"secret\\": \\"abc\\", \\"x\\": 1}',), ('{\\"secret\\": \\"***\\", \\"x\\": 1}',)),
    (('{"password": "cut o',), ('{"password": "***"',)),
    (('{"max_tokens": 512, "name": "x"}',), ('{"max_tokens": 512, "name": "x"}',)),
    (
        ("DB_PASS=abc", "GH_PAT=abc", "env-pin=1"),
        (f"DB_PASS={MASK}", f"GH_PAT={MASK}", f"env-pin={MASK}"),
    ),
    (("++a.api_key=abc", "+db@x.pass=abc"), (f"++a.api_key={MASK}", f"+db@x.pass={MASK}")),
    (
        ("http://h/p?x=1&token=abc&y=2#access_token=d",),
        (f"http://h/p?x=1&token={MASK}&y=2#access_token={MASK}",),
    ),
    (("--url", "https://h/c?sv=1&sig=ab%2Fc"), ("--url", f"https://h/c?sv=1&sig={MASK}")),
    (("--passes=3", "PATIENCE=3", "--path=/x"), ("--passes=3", "PATIENCE=3", "--path=/x")),
    # A text that contains such a word is not a secret's name.
    (("-c", "print('token=1')"), ("-c", "print('token=1')")),
    (("/data/tokens/x=1", "--secret", "--lr=1"), ("/data/tokens/x=1", "--secret", "--lr=1")),
]


def test_secrets_in_a_command_are_masked() -> None:
    wrong = [(words, mask_words(words)) for words, masked in MASKED if mask_words(words) != masked]
    assert not wrong, wrong


@given(st.text().filter(lambda text: not text.startswith("-") and text != MASK), st.lists(st.text()))
def test_value_of_a_secret_option_is_masked(secret: str, others: list[str]) -> None:
    masked = mask_words(["--api-token", secret, "--", *others])
    assert masked[:3] == ("--api-token", MASK, "--")
    assert len(masked) == len(others) + 3


# Names of real programs, and forms in which commands carry them.
NAMES = (
    *("DB_PASS", "GH_PAT", "API_KEY", "PGPASSWORD", "aws_secret_access_key"),
    *("token", "hf-token", "db.password", "x.auth"),
)
FORMS = """
{name}={secret}
--{name}={secret}
++a.{name}={secret}
+b@c.{name}={secret}
~{name}={secret}
https://h/x?{name}={secret}
https://h/x?a=1&{name}={secret}&b=2
--url=https://h/#{name}={secret}
https://me:{secret}@h/{name}
{{"{name}": "{secret}"}}
--config={{'a': 1, '{name}': '{secret}'}}
{name}: {secret}
""".strip().splitlines()
SECRET_TEXT = st.from_regex(r"hunter[A-Za-z0-9%._~+/-]{1,20}", fullmatch=True)


WITHIN_URLS = SECRET_TEXT.filter(lambda text: "@" not in text and "/" not in text)


@given(st.sampled_from(NAMES), st.sampled_from(FORMS), WITHIN_URLS, st.booleans())
def test_secret_in_any_form_is_masked(name: str, form: str, secret: str, upper: bool) -> None:
    word = form.format(name=name.upper() if upper else name, secret=secret)
    assert "hunter" not in "".join(mask_words(["train.py", word]))
    assert "hunter" not in str(mask_secrets({"OPTIONS": f"--lr=1 {word}", "OTHER": word}))
    assert mask_secrets({name: secret}) == {name: MASK}


@given(st.lists(st.text()))
def test_masking_again_changes_nothing(words: list[str]) -> None:
    masked = mask_words(words)
    assert len(masked) == len(words)
    assert mask_words(masked) == masked


@pytest.fixture(scope="module")
def live(shared_orch: Orch) -> Started:
    """A run whose command and environment have secrets. It ends with 3 once there is the file `go`."""
    shared_orch.script(
        "train.py", "import os, time\nprint('up')\nwhile not os.path.exists('go'): time.sleep(0.01)\nexit(3)"
    )
    up = shared_orch.start("up", "--name", "it", *OPTIONS, *COMMAND, env=ENV, cold=True)
    until(lambda: shared_orch.run_dirs() and shared_orch.pids())
    return up


def test_command_lines_of_orch_contain_no_secret(live: Started, shared_orch: Orch) -> None:
    """All users can read command lines. A task's contains the words that the user gave."""
    stars = "*" * len(GIVEN)
    hidden = ["--env", f"MY_API_KEY={stars}", f"--env=OTHER={stars}", "-te", f"A={stars}", f"-eB={stars}"]
    shown = psutil.Process(live.process.pid).cmdline()
    assert shown[shown.index("--name") :] == ["--name", "it", *hidden, *COMMAND]
    for pid in (shared_orch.supervisor(), shared_orch.agent()):
        assert secrets_in(" ".join(psutil.Process(pid).cmdline())) == set()
    (task,) = shared_orch.pids()
    environ = psutil.Process(task).environ()
    assert (environ["MY_API_KEY"], environ["WANDB_API_KEY"]) == (GIVEN, INHERITED)


def test_verbs_show_no_secret_of_a_live_run(live: Started, shared_orch: Orch) -> None:
    shows_none(shared_orch, ("status",), ("status", "--json"), ("ls", "--json"), ("stacks",))


def test_files_and_documents_of_an_ended_run_contain_no_secret(live: Started, shared_orch: Orch) -> None:
    (shared_orch.directory / "go").touch()
    done = live.finish()
    assert done.code == 3
    assert secrets_in(done.out + done.err) == set()
    shows_none(shared_orch, ("status",), ("status", "--json"), ("logs",), ("history",), ("ls", "--json"))
    for name in ("page.html", "page.md"):
        assert shared_orch("report", "-o", name).code == 0
    page = embedded((shared_orch.directory / "page.html").read_bytes())
    assert secrets_in(" ".join(strings_of(page))) == set()
    assert secrets_in((shared_orch.directory / "page.md").read_text()) == set()
    assert in_files(shared_orch.state) == {}


def test_looks_at_a_command_show_no_secret(orch: Orch) -> None:
    orch.script("train.py", "")
    given = (*OPTIONS[:3], *COMMAND)
    shows_none(
        orch, ("config", *given), ("config", "--json", *given), ("doctor", "--json", *COMMAND), env=ENV
    )


def shows_none(orch: Orch, *verbs: tuple[str, ...], env: dict[str, str | None] | None = None) -> None:
    found = {verb: orch.within(*verb, env=env) for verb in verbs}
    wrong = {verb: done for verb, done in found.items() if not done.out or secrets_in(done.out + done.err)}
    assert not wrong, wrong
