"""The texts of values: durations, sizes, devices, tasks, addresses; and suggestions for misspelt words."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from spec_making import refusal

from orchestrator.cli.parameters import Screen, color_mode
from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.job.gpus import parse_gpus
from orchestrator.core.job.roles import in_words
from orchestrator.core.job.strategy import Mesh, parse_device, parse_strategy
from orchestrator.core.job.tf_config import ClusterSpec, TaskRef, TFConfig
from orchestrator.core.text.counted import counted
from orchestrator.core.text.durations import MAX_DURATION_S, check_duration, format_duration, parse_duration
from orchestrator.core.text.nearest import did_you_mean, listed, nearest
from orchestrator.core.text.signal_names import parse_signal
from orchestrator.core.text.sizes import parse_size

ROOT = Path(__file__).resolve().parents[3]


# -- durations and sizes

DURATIONS = {
    "30": 30,
    "1.5": 1.5,
    ".5": 0.5,
    "0": 0,
    "30s": 30,
    "500ms": 0.5,
    "5m": 300,
    "1h30m": 5400,
    "1H30M": 5400,
    " 2d ": 172800,
    "1m500ms": 60.5,
    "1.5h": 5400,
}
NO_DURATIONS = ["", "s", "5x", "1h 30m", "30m1h", "1m1m", "1e3", "nan", "inf", "٣", "5,0", "+5"]
SIZES = {
    "2GiB": 2 << 30,
    "2G": 2 * 10**9,
    "2gb": 2 * 10**9,
    "512 MB": 512 * 10**6,
    ".5k": 500,
    "4096": 4096,
    "4096b": 4096,
    "1tib": 1 << 40,
}
NO_SIZES = ["", "B", "i", "1iB", "-1", "1e9", "1.2.3M", "1 G G", "9" * 30, "0.1"]


def test_durations_are_read_or_refused() -> None:
    assert {text: parse_duration(text) for text in DURATIONS} == DURATIONS
    said = {text: refusal(parse_duration, text) for text in NO_DURATIONS}
    assert all("is not a duration; write 30, 1.5, 500ms" in each for each in said.values()), said
    for text in ("-1", "-5m"):
        assert f'"{text}" is negative' in refusal(parse_duration, text)
    for text in ("367d", "9" * 30, "9" * 400):
        assert "longer than a year" in refusal(parse_duration, text)
    assert all(refusal(check_duration, seconds) for seconds in (float("nan"), -0.1, float("inf")))


@given(st.integers(0, int(MAX_DURATION_S * 1000)))
def test_formatted_duration_can_be_read_back(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@given(st.text(max_size=20))
def test_any_text_is_seconds_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds <= MAX_DURATION_S


def test_sizes_are_read_or_refused() -> None:
    assert {text: parse_size(text) for text in SIZES} == SIZES
    assert [text for text in NO_SIZES if not refusal(parse_size, text)] == []


# -- devices and meshes


def test_devices_are_read_or_refused() -> None:
    table = {"cpu:0": "CPU:0", "/gpu:1": "GPU:1", "/device:GPU:12": "GPU:12", "GPU:01": "GPU:1"}
    assert {text: parse_device(text) for text in table} == table


@given(st.integers(1, 32), st.integers(1, 32))
def test_shown_mesh_can_be_read_back(batch: int, model: int) -> None:
    assert Mesh.parse(str(Mesh(batch, model))) == Mesh(batch, model)


# -- tasks and addresses


def cluster(**addresses: list[str]) -> ClusterSpec:
    return ClusterSpec(addresses={role: tuple(those) for role, those in addresses.items()})


def test_names_of_tasks_are_read_or_refused() -> None:
    read = [str(TaskRef.parse(text)) for text in ("worker:1", "3", "chief", "ps:0", "evaluator")]
    assert read == ["worker:1", "worker:3", "chief:0", "ps:0", "evaluator:0"]
    wrong = ["", "worker", "ps", "boss:0", "worker:", "worker:-1", "worker:1:2", "Worker:0", "-1", "²"]
    said = {text: refusal(TaskRef.parse, text) for text in wrong}
    assert all(re.search("is not a task|names a role", each) for each in said.values()), said


def test_addresses_have_a_host_and_a_port() -> None:
    for address in ("[::1]:80", "node-3.cluster_x:65535", "10.0.0.1:1"):
        assert cluster(worker=[address]).addresses["worker"] == (address,)
    wrong = ["", "host", ":80", "host:", "host:0", "host:65536", "ho st:80", "host:8o", "a:b:80", "-a:1"]
    said = {address: refusal(cluster, worker=[address]) for address in wrong}
    assert all(re.search("is not host:port|port must be 1 to 65535", each) for each in said.values()), said


def test_cluster_is_refused() -> None:
    table: list[tuple[dict[str, list[str]], str]] = [
        ({"worker": ["a:1", "a:1"]}, "a:1 is given twice: to worker:0 and worker:1"),
        ({"worker": ["a:1"], "ps": ["a:1"]}, "a:1 is given twice: to worker:0 and ps:0"),
        ({"worker": []}, "role worker has no address"),
        ({"chief": ["a:1", "a:2"]}, "at most one chief, not 2"),
        ({"evaluator": ["a:1", "a:2"]}, "at most one evaluator"),
        ({"boss": ["a:1"]}, "'boss' is not a task type"),
        ({}, "at least 1 item"),
    ]
    for addresses, message in table:
        assert message in refusal(cluster, **addresses), addresses


def test_task_that_its_cluster_does_not_have_is_refused() -> None:
    two = cluster(worker=["127.0.0.1:1", "127.0.0.1:2"])
    for task, says in (("worker:2", "the cluster has only 2 of worker"), ("ps:0", "does not have its role")):
        assert says in refusal(TFConfig, cluster=two, task=TaskRef.parse(task)), task


# -- misspelt and other words


def test_only_a_similar_word_is_suggested() -> None:
    table: list[tuple[str, tuple[str, ...], str | None]] = [
        ("mirored", ("mirrored", "tpu"), "mirrored"),
        ("LOG_DIR", ("log-dir", "name"), "log-dir"),
        ("frobnicate", ("mirrored", "tpu"), None),
        ("", ("auto",), None),
        ("mirrored" * 100_000, ("mirrored",), None),
    ]
    for word, known, meant in table:
        assert nearest(word, known) == meant, word[:20]
    assert did_you_mean("alwys", ("auto", "always"), "write auto") == 'did you mean "always"?'
    assert did_you_mean("blue", ("auto", "always"), "write auto") == "write auto"
    assert (listed(("auto", "always", "never")), listed(("one",))) == ("auto, always or never", "one")


def test_errors_name_the_nearest_word() -> None:
    table: list[tuple[Callable[[str], object], str, str]] = [
        (parse_strategy, "mirored", "mirrored"),
        (parse_device, "gup:1", "GPU:1"),
        (parse_gpus, "nnoe", "none"),
        (parse_signal, "SIGTREM", "TERM"),
        (TaskRef.parse, "workr:1", "worker:1"),
        (TaskRef.parse, "cheif", "chief"),
        (TaskRef.parse, "wroker", "worker:0"),
        (parse_chaos, "kil worker:1 at step 2", "kill"),
        (parse_chaos, "kill workr:1 at step 2", "worker:1"),
        (lambda word: color_mode(Screen(color=word)), "alwys", "always"),
    ]
    for read, text, meant in table:
        assert refusal(read, text).endswith(f'did you mean "{meant}"?'), text


def test_counts_have_singular_and_plural() -> None:
    assert [counted(number, "task") for number in (0, 1, 1234)] == ["0 tasks", "1 task", "1,234 tasks"]
    assert counted(2, "process", "processes") == "2 processes"
    assert [counted(number, "core") for number in (0.5, 1.0, 2.0)] == ["0.5 cores", "1 core", "2 cores"]
    assert in_words({"chief": 1, "worker": 2, "ps": 2}) == "5 tasks (1 chief, 2 workers, 2 ps)"


def test_strategies_have_one_spelling_in_messages_and_documentation() -> None:
    """Users see the words of `--strategy`, or the name of TensorFlow's class."""
    variants = "|".join(_other_spellings(name) for name in Strategy if "-" in name)
    # Files of examples, modules and functions of Python keep their underscores.
    other = re.compile(rf"(?<![\w./])(?:{variants})(?!Strategy|[\w(|\\]|\.py|/)")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "mkdocs.yml"]
    found = [f"{path}: {word}" for path in pages for word in other.findall(path.read_text())]
    for path in (*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("worker/**/*.py")):
        source = path.read_text()
        nodes = ast.walk(ast.parse(source)) if other.search(source) else ()
        texts = [
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        found += [f"{path}: {word}" for text in texts for word in other.findall(text)]
    assert found == []


def _other_spellings(name: str) -> str:
    """`one_device|OneDevice`"""
    return f"{name.replace('-', '_')}|{''.join(part.title() for part in name.split('-'))}"
