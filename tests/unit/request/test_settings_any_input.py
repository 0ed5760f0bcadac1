"""Any orch.toml, variable or flag gives a valid request or a UsageError."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_making import toml_value

from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import JobSpec
from orchestrator.request.settings.config_document import config_document, placeholder_plan
from orchestrator.request.settings.options import SETTINGS
from orchestrator.request.settings.settings import load
from orchestrator.store.runs.paths import RunPaths

_MANY = 50


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def expect_a_request_or_a_usage_error(
    toml: bytes | None, environ: Mapping[str, str], flags: Mapping[str, object], place: Path
) -> None:
    file = place / "orch.toml"
    if toml is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(toml)
    try:
        request = load(flags, {"PATH": os.defpath, **environ}, place)
    except UsageError as error:
        assert str(error).strip()
        return
    spec = request.spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    if spec.workers <= _MANY:
        plan = placeholder_plan(spec, RunPaths(place / "run"), environ)
        json.dumps(config_document(spec, plan))


words = st.sampled_from(
    ["", "1", "0", "-1", "30s", "true", "A=1", "/bin/true", "--epochs 3", "auto", "ready", "'", "~x/y", "0,1"]
) | st.sampled_from(
    ["restart", "restart-task", "private", "none", "2GiB", "1.5g", "kill 1 at step 2; stop 0 at 3s"]
)
texts = words | st.text(max_size=12)
scalars = (
    st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.sampled_from([10**200, float("inf"), float("nan"), 1e308, "x" * 5000])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([setting.key for setting in SETTINGS.values()] + list(SETTINGS)) | st.text(max_size=6)


@given(table=st.dictionaries(keys, values, max_size=4))
def test_any_toml_is_a_request_or_a_usage_error(place: Path, table: dict[str, object]) -> None:
    lines = [f"{toml_value(key)} = {toml_value(value)}" for key, value in table.items()]
    expect_a_request_or_a_usage_error("\n".join(lines).encode(), {}, {"command": ["/bin/true"]}, place)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_any_bytes_are_a_request_or_a_usage_error(place: Path, toml: bytes) -> None:
    expect_a_request_or_a_usage_error(toml, {}, {"command": ["/bin/true"]}, place)


variables = st.sampled_from(
    [setting.variable for setting in SETTINGS.values()] + ["TF_CONFIG", "no_proxy", "ORCH_RUN_ID"]
)
variable_values = texts | st.text(st.characters(codec=None), max_size=8) | st.just("\udcff\udc80")


@given(environ=st.dictionaries(variables, variable_values, max_size=5))
def test_any_environment_is_a_request_or_a_usage_error(place: Path, environ: dict[str, str]) -> None:
    expect_a_request_or_a_usage_error(None, environ, {}, place)


typed = (
    scalars
    | st.none()
    | st.lists(scalars, max_size=3)
    | st.dictionaries(texts, scalars, max_size=3)
    | st.binary(max_size=4)
)


@given(flags=st.dictionaries(st.sampled_from(list(SETTINGS)), typed, max_size=4))
def test_any_flags_are_a_request_or_a_usage_error(place: Path, flags: dict[str, object]) -> None:
    expect_a_request_or_a_usage_error(None, {}, flags, place)


def test_generated_toml_is_valid(place: Path) -> None:
    env = {"A": "\u00fc\x7f"}
    (place / "orch.toml").write_text(f"{toml_value('env')} = {toml_value(env)}\nworkers = {toml_value(3)}")
    spec = load({"command": ["/bin/true"]}, {}, place).spec
    assert (spec.workers, spec.env) == (3, env)
