"""The declared options: where each may be set, what its values mean, and which source wins."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from orch_within import run_within
from spec_making import Load, refusal, toml_value

from orchestrator.client.launch import Cluster
from orchestrator.client.session import Session
from orchestrator.core.job.choices import FailurePolicy, KerasOption, StartOption, Strategy
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.job.profiled_steps import ProfiledSteps
from orchestrator.core.job.spec import CommandKind, JobSpec
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.host.cores import usable_cores
from orchestrator.pytest_plugin.clusters import ClustersOfTest, PreloadedClusters
from orchestrator.request.settings.declaration import Kind, Option, Part, Where
from orchestrator.request.settings.keywords import Environment, RoleOptions, Time, UpOptions, Words
from orchestrator.request.settings.options import GROUPS, ROLE_OPTIONS, SETTINGS, UP_OPTIONS
from orchestrator.request.settings.readers import reader_of
from orchestrator.request.settings.request import ColorMode, DisplayOptions, TimeFormat, UpRequest, WaitFor

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/tools"))

from options_table import PAGE, page_with_table  # noqa: E402

FIELDS = {
    Part.JOB: set(JobSpec.model_fields),
    Part.START: set(JobSpec.model_fields),
    Part.STRATEGY: set(StrategyChoice.__dataclass_fields__),
    Part.DISPLAY: set(DisplayOptions.__dataclass_fields__),
    Part.SCREEN: set(DisplayOptions.__dataclass_fields__),
}
# Options of any text whose default is described in words.
WORDS_AS_DEFAULT = ("name", "cwd", "checkpoint_dir", "log_dir", "gpus", "interface", "remote_python")


# -- the declarations


def test_table_in_the_documentation_is_current() -> None:
    page = PAGE.read_text()
    assert page == page_with_table(page), "run scripts/tools/options"


def test_names_and_letters_are_unique() -> None:
    assert len({option.name for option in UP_OPTIONS}) == len(UP_OPTIONS)
    letters = [option.letter for option in UP_OPTIONS if option.letter]
    assert len(set(letters)) == len(letters)
    assert set(ROLE_OPTIONS) == {"command", "env", "gpus", "hosts", "on_failure"}


def test_every_value_has_a_field_and_a_reader() -> None:
    for option in SETTINGS.values():
        fields = FIELDS.get(option.part, {option.field})
        assert option.field in fields or option.name == "no_fixes", option
        assert reader_of(option.kind, option.choices), option
        assert option.choices or option.kind is not Kind.CHOICE, option


def test_declared_defaults_are_those_of_the_job(load_here: Load) -> None:
    """A default in words, such as `the directory's`, is not a value of the option."""
    spec, wrong = load_here().spec, []
    for option in UP_OPTIONS:
        if option.part not in (Part.JOB, Part.START) or option.name in WORDS_AS_DEFAULT:
            continue
        try:
            declared = reader_of(option.kind, option.choices).text(option.default_text)
        except ValueError:
            continue
        if option.default is not None and getattr(spec, option.field) != declared:
            wrong.append(option.name)
    assert wrong == []


def test_other_defaults(load_here: Load, tmp_path: Path) -> None:
    request = load_here()
    spec, display = request.spec, request.display
    assert (spec.workers, spec.cwd, spec.directory) == (1, tmp_path, tmp_path)
    assert (spec.checkpoint_dir, spec.log_dir, spec.name_is_explicit) == (None, None, False)
    assert (spec.fixes, spec.chaos, spec.cores) == (True, (), usable_cores())
    assert (display.tasks, display.detach, display.color) == (None, False, ColorMode.AUTO)
    assert request.notices == ()


# -- the help


def help_of(tmp_path: Path, *words: str) -> str:
    environ = {"PATH": "/usr/bin:/bin", "COLUMNS": "80"}
    assert run_within((*words, "--help"), tmp_path, environ, tmp_path / "help") == 0
    return (tmp_path / "help.out").read_text()


def test_help_of_up_has_the_flags_in_the_groups_of_the_contract(tmp_path: Path) -> None:
    text = help_of(tmp_path, "up")
    assert not [
        option.flag
        for option in UP_OPTIONS
        if (f" {option.flag}" in text) is not (Where.COMMAND_LINE in option.where)
    ]
    groups = "Common, Roles and strategy, Failure, Resources, Hosts, Start, Debugging, Output"
    assert list(GROUPS) == groups.split(", ")
    assert [line[:-1] for line in text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)


def test_help_has_no_notes_of_the_option_parser(tmp_path: Path) -> None:
    """typer adds Python types and limits in its own syntax; defaults are a sentence of the help."""
    for verb in ("up", "logs", "kill"):
        assert not re.search(r"<\w+\[|\[x[<>]|\[default:", help_of(tmp_path, verb)), verb


def test_list_of_verbs_has_whole_sentences(tmp_path: Path) -> None:
    verbs = help_of(tmp_path).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(verbs) >= 13
    assert [line for line in verbs if not line.endswith(".") or line.endswith("...")] == []


# -- the keywords of Cluster, Session and the fixtures

TYPES: dict[Kind, Any] = {
    Kind.SWITCH: bool,
    Kind.TEXT: str,
    Kind.STEPS: str,
    Kind.PATH: str | Path,
    Kind.WORDS: Words,
    Kind.WHOLE_NUMBER: int,
    Kind.WORKERS: int | str,
    Kind.THREADS: int | Literal["auto"],
    Kind.DURATION: Time,
    Kind.LIMIT: Time,
    Kind.SIZE: int | str,
    Kind.GPU_MEMORY: int | str,
    Kind.ENVIRONMENT: Environment,
    Kind.MODULES: str | Sequence[str],
    Kind.DEBUGGED: str | Sequence[str],
    Kind.FAULTS: str | Sequence[str],
    Kind.STRATEGY: Literal[tuple(Strategy)],  # type: ignore[misc]
    Kind.DEVICE: str,
    Kind.MESH: str | Mapping[str, int],
    Kind.GPUS: str,
    Kind.HOSTS: str | Sequence[str],
}


def declared_type(option: Option) -> Any:
    return Literal[tuple(option.choices)] if option.kind is Kind.CHOICE else TYPES[option.kind]


def alternatives(annotation: Any) -> set[Any]:
    """The members of a union, and of its literals."""
    if get_origin(annotation) is Literal:
        return {str(word) for word in get_args(annotation)}
    members = get_args(annotation) if "Union" in str(get_origin(annotation)) else ()
    return set().union(*map(alternatives, members)) if members else {annotation}


def test_keywords_have_the_types_of_the_values() -> None:
    keywords = {option.name: option for option in SETTINGS.values() if Where.KEYWORD in option.where}
    hints = get_type_hints(UpOptions)
    assert {*hints, "workers", "command"} == {*keywords, "roles"}
    found = {name: alternatives(hint) for name, hint in hints.items() if name != "roles"}
    expected = {name: {*alternatives(declared_type(keywords[name])), type(None)} for name in found}
    assert found == expected
    roles = get_type_hints(RoleOptions)
    assert set(roles) == {"count", *ROLE_OPTIONS}
    expected = {name: alternatives(declared_type(option)) for name, option in ROLE_OPTIONS.items()}
    assert {name: alternatives(roles[name]) for name in ROLE_OPTIONS} == expected


def test_functions_that_start_clusters_have_typed_keywords() -> None:
    for start in (Cluster.__init__, Session.up, ClustersOfTest.__call__, PreloadedClusters.__call__):
        types = {name: each.annotation for name, each in inspect.signature(start).parameters.items()}
        expected = ("Unpack[UpOptions]", "int | str | None", "Words")
        assert (types["options"], types["workers"], types["command"]) == expected, start


def test_keywords_that_no_cluster_has_are_refused_at_once(tmp_path: Path) -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({"wrokers": 2}, 'unknown option "wrokers"; did you mean "workers"?'),
        ({"zzz": 2}, 'unknown option "zzz"; known: workers, command, name, replace, timeout'),
        ({"dry_run": True}, 'unknown option "dry_run"; known: workers'),
        ({"detach": True}, "detach has an effect in `orch up` only; the run continues while"),
        ({"wait": "done"}, "wait has an effect in `orch up` only; call run.wait_ready() or run.wait()"),
        ({"timestamps": True}, "timestamps has an effect in `orch up` only; leave it out"),
        ({"roles": {"ps": {"count": 3}}, "ps": 2}, "roles: count of ps: given already (--ps); keep one"),
        ({"roles": {"boss": {}}}, 'roles: unknown role "boss"; known: chief, worker, ps, evaluator'),
        ({"command": 3}, "the command: 3 is not a command; write a text or a list of texts"),
        ({"command": ["a\0b"]}, "the command: 'a\\x00b' contains a NUL"),
    ]
    for start in (Cluster, Session().up):
        for options, message in table:
            given = {"command": "true", "directory": tmp_path, **options}
            assert refusal(start, **given).startswith(message), options


# -- the values

FAULTS = ["kill 1 at ready", "stop chief at 30s for 25s"]
# By option: the text of a flag and of a variable, the value in a file and in Python, and what they mean.
READ: dict[str, tuple[str, object, object]] = {
    "name": ("digits", "digits", "digits"),
    "timeout": ("1h30m", 5400, 5400.0),
    "grace": ("5", "5s", 5.0),
    "failure_grace": ("250ms", 0.25, 0.25),
    "start_timeout": ("off", "OFF", None),
    "stall_timeout": ("1m30s", 90, 90.0),
    "evaluator_timeout": ("5s", "off", 5.0),
    "on_failure": ("restart-task", "restart-task", FailurePolicy.RESTART_TASK),
    "memory_limit": ("1.5GiB", 1536 << 20, 1536 << 20),
    "threads": ("3", 3, 3),
    "chaos": ("; ".join(FAULTS), FAULTS, parse_chaos("kill worker:1 at ready; stop worker:0 at 30s for 25s")),
    "global_batch": ("6", 6, 6),
    "env": ("A=1", {"A": 1}, {"A": "1"}),
    "start": ("spawn", "spawn", StartOption.SPAWN),
    "preload": ("numpy,xml.dom", ["numpy", "xml.dom"], ("numpy", "xml.dom")),
    "no_fixes": ("1", True, False),
    "keras": ("3", 3, KerasOption.THREE),
    "profile": ("7", "7", ProfiledSteps(first=7, last=7)),
    "tasks": ("chief,worker:1", [0, "worker:1"], (TaskRef(type="worker", index=0), TaskRef(type="worker", index=1))),
    "timestamps": ("ISO", "iso", TimeFormat.ISO),
    "no_prefix": ("yes", True, True),
    "color": ("never", "never", ColorMode.NEVER),
    "wait": ("ready", "ready", WaitFor.READY),
    "detach": ("on", True, True),
    "replace": ("true", True, True),
}  # fmt: skip


def values_of(request: UpRequest) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in READ:
        option = SETTINGS[name]
        part = request.display if option.part in (Part.DISPLAY, Part.SCREEN) else request.spec
        found[name] = getattr(part, "fixes" if name == "no_fixes" else option.field)
    return found


def test_values_from_every_source(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    expected = {name: meaning for name, (_, _, meaning) in READ.items()}
    texts = {name: text for name, (text, _, _) in READ.items()}
    typed: dict[str, Any] = {name: value for name, (_, value, _) in READ.items()}
    rest: dict[str, Any] = {"workers": 2, "command": ["train.py"]}
    assert values_of(load_here(**rest, **{**texts, "env": [texts["env"]]})) == expected
    variables = {SETTINGS[name].variable: text for name, text in texts.items()}
    assert values_of(load_here(environ=variables, **rest)) == expected
    expected["evaluator_timeout"] = None
    assert values_of(load_here(**rest, **typed)) == expected
    table = "\n".join(f"{SETTINGS[name].key} = {toml_value(value)}" for name, value in typed.items())
    assert values_of(load_here(table, **rest)) == expected
    underscores = table.replace("-", "_").replace("restart_task", "restart-task")
    assert values_of(load_here(underscores, **rest)) == expected


def test_paths_and_commands(load_here: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    (tmp_path / "sub").mkdir()
    toml = 'cwd = "sub"\ncheckpoint-dir = "~/ck"\nlog_dir = "/var/tmp/l"\ncommand = "/bin/echo \'a b\'"\n'
    spec = load_here(toml).spec
    assert (spec.cwd, spec.checkpoint_dir) == (tmp_path / "sub", Path("/somebody/ck"))
    assert (spec.log_dir, spec.command.argv) == (Path("/var/tmp/l"), ("/bin/echo", "a b"))
    assert load_here("", {"ORCH_COMMAND": "/bin/echo 'a b'"}).spec.command.argv == ("/bin/echo", "a b")
    given = load_here("", cwd=tmp_path, command=[Path("/bin/true"), "x"])
    assert given.spec.command.words == ("/bin/true", "x")
    load_here("", log_dir="logs", checkpoint_dir="ck", name="x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orch.toml", "sub"], "nothing is written"


def test_switch_or_value(load_here: Load) -> None:
    for value, meaning in {"true": TimeFormat.TIME, '"iso"': TimeFormat.ISO, "false": None}.items():
        assert load_here(f"timestamps = {value}").display.timestamps is meaning
    texts = {text: load_here("", {"ORCH_TIMESTAMPS": text}).display.timestamps for text in ("1", "off")}
    assert texts == {"1": TimeFormat.TIME, "off": None}
    assert load_here("", timestamps=True).display.timestamps is TimeFormat.TIME
    assert load_here("", evaluator=True).spec.evaluator_timeout_s == 600.0
    assert load_here("", wait="done").display.detach


# -- which source wins


def test_flag_over_variable_over_file_over_default(load_here: Load) -> None:
    toml = "workers = 2\ngrace = 2\nfailure-grace = 2\nthreads = 5\nno-fixes = true"
    environ = {"ORCH_WORKERS": "3", "ORCH_GRACE": "3", "ORCH_NO_FIXES": "0", "ORCH_THREADS": "auto"}
    spec = load_here(toml, environ, workers=4).spec
    assert (spec.workers, spec.grace_s, spec.failure_grace_s, spec.stall_timeout_s) == (4, 3.0, 2.0, None)
    assert (spec.fixes, spec.threads) == (True, None)
    assert load_here(toml, environ, threads="Auto").spec.threads is None
    assert load_here('threads = "auto"').spec.threads is None
    # An empty value counts as not given.
    empty = load_here("workers = 2", {"ORCH_WORKERS": ""}, workers=None, env=[], name=None)
    assert empty.spec.workers == 2


def test_variables_are_ignored_inside_a_task(load_here: Load) -> None:
    environ = {"ORCH_RUN_ID": "x", "ORCH_WORKERS": "nonsense", "ORCH_CHECKPOINT_DIR": "/elsewhere"}
    spec = load_here("workers = 2", environ).spec
    assert spec.workers == 2 and spec.checkpoint_dir is None


def test_env_is_merged_name_by_name(load_here: Load) -> None:
    toml = "env = {A = 'file', B = 'file', C = 'file'}"
    spec = load_here(toml, {"ORCH_ENV": "B='a b' C=var"}, env=["C=flag=x"]).spec
    assert spec.env == {"A": "file", "B": "a b", "C": "flag=x"}


def test_words_of_the_command_replace_those_of_the_file_unless_they_are_options(
    load_here: Load, tmp_path: Path
) -> None:
    (tmp_path / "mod.py").write_text("")
    toml = "command = ['/bin/echo', 'a']"
    longer = load_here(toml, command=["--epochs", "3"]).spec.command.argv
    assert longer == ("/bin/echo", "a", "--epochs", "3")
    assert load_here(toml, command=["/bin/true"]).spec.command.argv == ("/bin/true",)
    assert load_here(toml, command=["-m", "mod"]).spec.command.kind is CommandKind.MODULE
    said = refusal(load_here, toml, command=["no-such-program"])
    assert said.startswith("command not found: no-such-program"), "the user has just typed these words"


# -- notices


def test_notices(load_here: Load) -> None:
    misspelt = dict.fromkeys(("ORCH_WROKERS", "ORCH_STATE", "WORKERZ"), "2")
    assert load_here(environ={**misspelt, "ORCH_RUN_ID": "of-the-run-around-this"}).notices == ()
    assert load_here(environ=misspelt).notices == (
        "ORCH_WROKERS is not an option of orch; did you mean ORCH_WORKERS?",
    )
    inherited = load_here(environ={"TF_CONFIG": "{}"})
    assert inherited.spec.inherited_tf_config
    assert inherited.notices == ("TF_CONFIG is set in this environment; each task gets its own instead",)


def test_fault_that_probably_never_comes_gives_a_notice(load_here: Load, tmp_path: Path) -> None:
    silent = "waits for progress, and /bin/true is not a Python program"
    for chaos, notice in {
        "kill 0 at step 20": silent,
        "kill 0 at epoch 2": silent,
        "kill 0 at ready in attempt 2": "needs another attempt: --on-failure restart",
    }.items():
        (shown,) = load_here(chaos=chaos).notices
        assert "kill" in shown and notice in shown
    assert load_here(chaos="kill 0 at ready; kill 0 at 3s").notices == ()
    assert load_here(chaos="kill 0 at ready in attempt 2", on_failure="restart").notices == ()
    (tmp_path / "train.py").write_text("import tensorflow\n")
    python = load_here(chaos="kill 0 at step 3", command=["train.py"])
    assert not [notice for notice in python.notices if "chaos" in notice]


def test_any_gets_a_seed_that_repeats_the_choice(load_here: Load) -> None:
    drawn = load_here(workers=3, chaos="kill any at step 20").spec.chaos
    assert drawn[0].seed is not None
    assert load_here(workers=3, chaos=str(drawn[0])).spec.chaos == drawn


def test_module_to_preload_must_exist(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").touch()
    (tmp_path / "scripts" / "beside.py").touch()
    command = [sys.executable, "scripts/train.py"]
    assert load_here(command=command, preload=["xml.dom", "beside"]).spec.preload == ("xml.dom", "beside")
    table = {
        ("nosuchmodule",): "has no module nosuchmodule; install it, or leave the option out",
        ("json", "jsom"): 'has no module jsom; did you mean "json"?',
        ("nosuchmodule.part",): "has no module nosuchmodule;",
    }
    for modules, says in table.items():
        said = refusal(load_here, command=command, preload=[*modules])
        assert said.startswith("--preload") and says in said, said
