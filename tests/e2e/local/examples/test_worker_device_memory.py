"""Memory of a device: the table of weights, and the figures of --device-memory's refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.options.checks import memory_problem
from worker.training.options.fields import Options
from worker.training.options.parser import parse_options
from worker.training.weights import bytes_per_device, dense_units, format_bytes, weight_table

DIGITS = ((8, 8, 1), 10)


def parameters(width: int) -> int:
    """Return the parameters of the network for the digits: two convolutions, two dense layers, each with a bias."""
    return 9 * 32 + 32 + 9 * 32 * 64 + 64 + 256 * 64 * width + 64 * width + 64 * width * 10 + 10


@pytest.mark.parametrize("width", [1, 3])
def test_table_has_the_parameters_of_the_network(width: int) -> None:
    assert sum(weight.elements() for weight in weight_table(*DIGITS, width)) == parameters(width)


def test_device_holds_weights_gradients_and_two_moments() -> None:
    assert bytes_per_device(weight_table(*DIGITS, 1)) == parameters(1) * 4 * 4


@given(st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_devices_together_hold_cut_weights_once_and_others_each(width: int, parts: int) -> None:
    table = weight_table((28, 20, 3), 7, width)
    kept = bytes_per_device([weight for weight in table if weight.cut is None])
    cut = bytes_per_device([weight for weight in table if weight.cut is not None])
    assert bytes_per_device(table, parts) * parts == cut + kept * parts


def test_training_within_the_budget_is_accepted() -> None:
    takes = bytes_per_device(weight_table(*DIGITS, 1))
    assert memory_problem(Options(device_memory=takes), *DIGITS) is None
    assert memory_problem(Options(), *DIGITS) is None
    assert memory_problem(Options(device_memory=takes - 1), *DIGITS) is not None


def test_refusal_names_the_smallest_mesh_that_fits() -> None:
    asked = Options(width=64, device_memory=8_000_000)
    found = memory_problem(asked, *DIGITS)
    assert found == (
        "weights, gradients and Adam's moments take 17.8 MB a device; --device-memory is 8.0 MB: "
        "cut the model: --mesh model=4 takes 4.7 MB"
    )
    named = int(found.partition("model=")[2].partition(" ")[0])
    assert dense_units(64) % named == 0
    assert memory_problem(replace(asked, strategy="dtensor", mesh=(1, named)), *DIGITS) is None
    for parts in (parts for parts in range(1, named) if dense_units(64) % parts == 0):
        assert memory_problem(replace(asked, strategy="dtensor", mesh=(1, parts)), *DIGITS) is not None


@pytest.mark.parametrize(("width", "way"), [(1, "allow more"), (2, "take a smaller --width")])
def test_refusal_if_no_mesh_fits(width: int, way: str) -> None:
    found = memory_problem(Options(width=width, device_memory=1000), *DIGITS)
    assert found is not None
    assert "no --mesh cuts it far enough" in found and found.endswith(way)


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 bytes"), (1000, "1.0 KB"), (12_300_000, "12.3 MB"), (2 * 10**9, "2.0 GB")]
)
def test_sizes_are_formatted_in_decimal_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strategy=dtensor"], "dtensor needs --mesh batch=B,model=M"),
        (["--mesh=batch=2"], "--mesh is for --strategy dtensor"),
        (["--strategy=dtensor", "--mesh=model=3"], "--mesh model=3 cannot cut the dense layer's 64 units"),
        (
            ["--strategy=dtensor", "--mesh=batch=2", "--global-batch=33"],
            "--global-batch 33 cannot be cut into 2",
        ),
        (["--strategy=dtensor", "--mesh=batch=2", "--loop=fit"], "take `-- --loop custom`"),
        (["--device-memory=500KB"], "--device-memory is 500.0 KB: cut the model: --mesh model=2 takes"),
        (["--device-memory=8MB", "--dataset=mnist", "--width=9"], "a device; --device-memory is 8.0 MB"),
        (["--device-memory=lots"], "argument --device-memory: 'lots' is not a size"),
        (["--width=0"], "argument --width: '0' is not a whole number"),
    ],
)
def test_wrong_mesh_and_memory_options_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_options(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err


def test_custom_loop_is_the_default_of_a_mesh() -> None:
    assert parse_options(["--strategy=dtensor", "--mesh=batch=2,model=2"]).loop == "custom"
    assert parse_options(["--strategy=mirrored"]).loop == "fit"
