"""Suggestions for misspelt words."""

from __future__ import annotations

import pytest

from orchestrator.cli.parameters import Screen, color_mode
from orchestrator.core.errors import UsageError
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.job.gpus import parse_gpus
from orchestrator.core.job.roles import in_words
from orchestrator.core.job.strategy import parse_device, parse_strategy
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.text.counted import counted
from orchestrator.core.text.nearest import did_you_mean, listed, nearest
from orchestrator.core.text.signal_names import parse_signal


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("mirored", ("mirrored", "tpu"), "mirrored"),
        ("LOG_DIR", ("log-dir", "name"), "log-dir"),
        ("frobnicate", ("mirrored", "tpu"), None),
        ("", ("auto",), None),
        ("mirrored" * 100_000, ("mirrored",), None),
    ],
)
def test_nearest_word_is_found(word: str, known: tuple[str, ...], meant: str | None) -> None:
    assert nearest(word, known) == meant


def test_role_counts_as_text() -> None:
    assert did_you_mean("alwys", ("auto", "always"), "write auto") == 'did you mean "always"?'
    assert did_you_mean("blue", ("auto", "always"), "write auto") == "write auto"
    assert (listed(("auto", "always", "never")), listed(("one",))) == ("auto, always or never", "one")


@pytest.mark.parametrize(
    ("read", "text", "meant"),
    [
        (parse_strategy, "mirored", "mirrored"),
        (parse_device, "gup:1", "GPU:1"),
        (parse_gpus, "nnoe", "none"),
        (parse_signal, "SIGTREM", "TERM"),
        (TaskRef.parse, "workr:1", "worker:1"),
        (TaskRef.parse, "cheif", "chief"),
        (TaskRef.parse, "wroker", "worker:0"),
        (parse_chaos, "kil worker:1 at step 2", "kill"),
        (parse_chaos, "kill workr:1 at step 2", "worker:1"),
    ],
)
def test_error_of_a_reader_names_the_nearest_word(read: object, text: str, meant: str) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match=f'did you mean "{meant}"[?]$'):
        read(text)


def test_unknown_color_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r'--color: "alwys" is not known; did you mean "always"\?'):
        color_mode(Screen(color="alwys"))


def test_count_has_singular_and_plural() -> None:
    assert [counted(number, "task") for number in (0, 1, 1234)] == ["0 tasks", "1 task", "1,234 tasks"]
    assert counted(2, "process", "processes") == "2 processes"
    assert [counted(number, "core") for number in (0.5, 1.0, 2.0)] == ["0.5 cores", "1 core", "2 cores"]
    assert in_words({"chief": 1, "worker": 2, "ps": 2}) == "5 tasks (1 chief, 2 workers, 2 ps)"
