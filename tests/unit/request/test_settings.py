"""orch.toml, and [tool.orch] in pyproject.toml: lines in messages, files that are not read, and any input."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acting_as import needs_root
from hypothesis import given
from hypothesis import strategies as st
from spec_making import Load, refusal, toml_value
from users import ORDINARY

from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import JobSpec
from orchestrator.request.settings.config_document import config_document, placeholder_plan
from orchestrator.request.settings.options import SETTINGS
from orchestrator.request.settings.settings import load
from orchestrator.store.runs.paths import RunPaths

PROJECT = '[project]\nname = "tf-orch"\n'
# The text of orch.toml, and the beginning of the refusal.
MISTAKES = {
    "\n\nwrokers = 4": 'line 3: unknown key "wrokers"; did you mean "workers"?',
    "logdir = 'x'": 'line 1: unknown key "logdir"; did you mean "log-dir"?',
    "zzz = 1": 'line 1: unknown key "zzz"; known: workers, command, name,',
    "[up]\nworkers = 4": 'line 1: unknown key "up"; known:',
    "name = 'a'\nworkers = '4'": 'line 2: workers: "4" is not a whole number; remove the quotes',
    "detach = 'true'": 'line 1: detach: "true" is neither true nor false; remove the quotes',
    "workers = 1\nworkers = 2": "line 2: not valid TOML: Cannot overwrite a value",
    "workers = ": "line 1: not valid TOML: Invalid value",
    "a\n[\n": "line 1: not valid TOML: ",
    "log-dir = 'a'\nlog_dir = 'b'": 'line 2: "log_dir" is given twice, once with - and once with _',
    "workers = 2\n[env]\nTF_CONFIG = 'x'": "line 2: env: TF_CONFIG is set by orch for each task",
    'strategy = "mirrored"\nworkers = 2\n': "line 2: workers: mirrored runs as one process",
    # Tables of roles.
    "\n[roles.pss]\ncount = 2": 'line 2: [roles]: unknown role "pss"; did you mean "ps"?',
    "[roles.ps]\ncuont = 2": 'line 1: [roles]: ps has an unknown key "cuont"; did you mean "count"?',
    "workers = 2\n[roles.worker]\ncount = 2": "line 3: count of worker: given already (orch.toml, line 1: w",
    "[roles.ps]\n\ncount = 'two'": 'line 3: count of ps: "two" is not a whole number',
    "[roles.ps]\ncount = 2000000": "line 2: count of ps: a job has at most 4,000 tasks, not 2,000,000",
    "[roles.evaluator]\ncount = 2": "line 2: count of evaluator: a job has at most one",
    "[roles.evaluator]\non-failure = 'retry'": 'line 2: on-failure of evaluator: "retry" is not known',
    "[roles.evaluator]\ncommand = 'no.py'": "line 2: command of evaluator: script not found: no.py",
    "[roles.ps]\nenv = { ORCH_TASK = 'x' }": "line 2: env of ps: ORCH_TASK is set by orch",
    "[roles.ps]\nenv.TF_GRPC_REUSE_PORT = '0'": "line 2: env of ps: TF_GRPC_REUSE_PORT is the same for all",
    "[roles.worker]\ngpus = '7'": "line 2: gpus of worker: there is no GPU 7",
    "[roles.ps]\nhosts = ['c']": "line 2: hosts of ps: ps: c is not a host of the run; it has none: add --hosts",
    "hosts = 'a'\n[roles.ps]\nhosts = ['c']": "line 3: hosts of ps: ps: c is not a host of the run; it has a",
    "hosts = 'a'\n[roles.ps]\nhosts = ['a:2']": 'line 3: hosts of ps: write "a"; users and numbers',
    "[roles.ps]\non-failure = 'a'\non_failure = 'a'": 'line 1: [roles]: ps: "on_failure" is given twice, once w',
    "roles = 3": "line 1: [roles]: 3 is not a table; write [roles.ps]",
    "[roles]\nps = 2": "line 1: [roles]: ps is 2, not a table; write [roles.ps]",
}
# The same, below the lines of PROJECT in pyproject.toml.
PROJECT_MISTAKES = {
    "[tool.orch]\nwrokers = 3": 'line 4: unknown key "wrokers"; did you mean "workers"?',
    "[tool.orch]\n\nworkers = '3'": 'line 5: workers: "3" is not a whole number; remove',
    "workers = 1\n[tool.orch]\nname = 3": "line 5: name: 3 is not text",
    "[tool.orch.roles.ps]\ncuont = 2": "line 3: [roles]: ps has an unknown key",
    "[tool]\norch = 3": "line 4: tool.orch is 3, not a table; write [tool.orch]",
    "[tool]\norch = { workers = 0 }": "line 4: workers: must be at least 1, not 0",
    "[tool.orch]\nworkers = ": "line 4: not valid TOML: Invalid value",
}


def test_mistake_is_named_with_its_line(load_here: Load, tmp_path: Path) -> None:
    for toml, message in MISTAKES.items():
        assert refusal(load_here, toml).startswith(f"orch.toml, {message}"), toml
    (tmp_path / "orch.toml").unlink()
    for text, message in PROJECT_MISTAKES.items():
        (tmp_path / "pyproject.toml").write_text(PROJECT + text)
        assert refusal(load_here).startswith(f"pyproject.toml, {message}"), text


def test_same_keys_in_pyproject(load_here: Load, tmp_path: Path) -> None:
    for settings in (
        '[tool.orch]\nworkers = 3\nfailure-grace = 2\n[tool.orch.roles.ps]\ncount = 2\nenv = { A = "1" }\n',
        '[tool]\norch.workers = 3\norch.failure_grace = "2s"\norch.roles.ps = { count = 2, env = { A = "1" } }\n',
        '[tool]\norch = { workers = 3, failure-grace = 2, roles = { ps = { count = 2, env = { A = "1" } } } }\n',
    ):
        (tmp_path / "pyproject.toml").write_text(PROJECT + settings)
        spec = load_here(environ={"ORCH_FAILURE_GRACE": "4"}, failure_grace=None).spec
        assert (spec.roles["worker"], spec.roles["ps"], spec.failure_grace_s) == (3, 2, 4.0), settings
        assert spec.role_settings["ps"].env == {"A": "1"}, settings
    said = refusal(load_here, "workers = 2")
    assert said.startswith("pyproject.toml, line 4: [tool.orch] is in the same directory as orch"), said


def test_project_without_settings_of_orch_does_not_matter(load_here: Load, tmp_path: Path) -> None:
    for project in (b"[tool.ruff]\nline-length = 9\n", b"not TOML\n", b'name = "tf-torch"\n\xff'):
        (tmp_path / "pyproject.toml").write_bytes(project)
        assert load_here("workers = 2").spec.workers == 2, project


# -- files that are not read


def test_file_that_cannot_be_text_is_refused(load_here: Load, tmp_path: Path) -> None:
    assert load_here("\ufeffworkers = 3").spec.workers == 3
    (tmp_path / "orch.toml").write_bytes(b"workers = 1\nname = '\xff'\n")
    assert refusal(load_here).startswith("orch.toml, line 2: not UTF-8 text; save the file as UTF-8")
    assert "longer than 1 MiB" in refusal(load_here, "#" * (1 << 20) + "#")
    for nested in ("command = " + "[" * 5000 + "]" * 5000, "workers = " + "9" * 5000):
        assert refusal(load_here, nested).startswith("orch.toml: not valid TOML")


def test_place_without_a_regular_file_is_refused_at_once(load_here: Load, tmp_path: Path) -> None:
    place = tmp_path / "orch.toml"
    place.mkdir()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    assert f"{place}: cannot be read (Is a directory); fix or remove it" in refusal(load_here)
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before
    place.rmdir()
    os.mkfifo(place)
    assert f"{place}: is not a regular file; fix or remove it" in refusal(load_here)
    place.unlink()
    place.symlink_to("/dev/zero")
    assert "is not a regular file" in refusal(load_here)
    place.unlink()
    place.symlink_to("gone.toml")
    said = refusal(load_here)
    assert f"{place}: is a link to gone.toml, which does not exist; fix or remove it" in said
    said = refusal(load, {"command": ["/bin/true"]}, {}, tmp_path / "gone")
    assert re.match(r"the current directory: .*gone does not exist", said)


@needs_root
@pytest.mark.parametrize("planted", ["file", "link"])
def test_file_of_another_user_is_refused_where_all_users_may_write(tmp_path: Path, planted: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    command = {"command": ["/bin/true"]}
    # A pyproject.toml without settings of orch does not matter.
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    os.chown(tmp_path / "pyproject.toml", ORDINARY, ORDINARY)
    tmp_path.chmod(0o1777)
    load(command, {}, tmp_path)
    for name, text in {"orch.toml": "workers = 3\n", "pyproject.toml": "[tool.orch]\nworkers = 3\n"}.items():
        if planted == "link":
            (here / name).symlink_to(tmp_path / "own")
        (here / name).write_text(text)
        os.chown(here / name, ORDINARY, ORDINARY, follow_symlinks=False)
        # Members of a group share the settings of their project.
        here.chmod(0o2775)
        assert load(command, {}, here).spec.workers == 3
        for mode in (0o1777, 0o777):
            here.chmod(mode)
            # With fs.protected_symlinks the kernel itself refuses the link.
            why = f"(belongs to the user {ORDINARY}, and all users may write|cannot be read)"
            assert re.match(f"{here / name}: {why}", refusal(load, command, {}, here)), name
        os.chown(here / name, os.geteuid(), 0, follow_symlinks=False)
        assert load(command, {}, here).spec.workers == 3
        (here / name).unlink()


# -- any input

_MANY = 50


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


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


variables = st.sampled_from(
    [setting.variable for setting in SETTINGS.values()] + ["TF_CONFIG", "no_proxy", "ORCH_RUN_ID"]
)
variable_values = texts | st.text(st.characters(codec=None), max_size=8) | st.just("\udcff\udc80")
typed = (
    scalars
    | st.none()
    | st.lists(scalars, max_size=3)
    | st.dictionaries(texts, scalars, max_size=3)
    | st.binary(max_size=4)
)
COMMAND: dict[str, object] = {"command": ["/bin/true"]}
TOML, BYTES, ENVIRONMENT, FLAGS = SOURCES = (
    st.dictionaries(keys, values, max_size=4),
    st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")),
    st.dictionaries(variables, variable_values, max_size=5),
    st.dictionaries(st.sampled_from(list(SETTINGS)), typed, max_size=4),
)


@pytest.mark.parametrize("source", SOURCES, ids=["toml", "bytes", "environment", "flags"])
@given(data=st.data())
def test_any_input_is_a_request_or_a_usage_error(place: Path, source: Any, data: st.DataObject) -> None:
    drawn = data.draw(source)
    lines = (
        [f"{toml_value(key)} = {toml_value(value)}" for key, value in drawn.items()] if source is TOML else []
    )
    toml = drawn if source is BYTES else "\n".join(lines).encode() if source is TOML else None
    environ = drawn if source is ENVIRONMENT else {}
    flags = drawn if source is FLAGS else {} if source is ENVIRONMENT else COMMAND
    file = place / "orch.toml"
    file.unlink(missing_ok=True)
    if toml is not None:
        file.write_bytes(toml)
    try:
        spec = load(flags, {"PATH": os.defpath, **environ}, place).spec
    except UsageError as error:
        assert str(error).strip()
        return
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    if spec.workers <= _MANY:
        json.dumps(config_document(spec, placeholder_plan(spec, RunPaths(place / "run"), environ)))
