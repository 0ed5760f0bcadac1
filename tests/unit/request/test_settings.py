"""Settings: the precedence of sources, and messages with the source, the mistake and a correction."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from spec_making import Load

from orchestrator.client.submit import submit
from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import CommandKind
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.request.settings.request import ColorMode, TimeFormat, WaitFor
from orchestrator.request.settings.settings import load


def test_misspelt_variable_gives_a_notice(load_here: Load) -> None:
    environ = dict.fromkeys(("ORCH_WROKERS", "ORCH_STATE", "WORKERZ"), "2")
    assert load_here(environ={**environ, "ORCH_RUN_ID": "of-the-run-around-this"}).notices == ()
    assert load_here(environ=environ).notices == (
        "ORCH_WROKERS is not an option of orch; did you mean ORCH_WORKERS?",
    )


def test_defaults(load_here: Load, tmp_path: Path) -> None:
    request = load_here()
    assert request.spec.workers == 1
    assert (request.spec.grace_s, request.spec.failure_grace_s, request.spec.timeout_s) == (10.0, 0.5, None)
    assert request.spec.cwd == request.spec.directory == tmp_path
    assert request.spec.checkpoint_dir is request.spec.log_dir is None
    assert not request.spec.name_is_explicit
    assert request.display.tasks is None and not request.display.detach
    assert request.display.color is ColorMode.AUTO
    assert request.notices == ()


def test_flag_over_variable_over_file_over_default(load_here: Load) -> None:
    toml, environ = "workers = 2\ngrace = 2\nfailure-grace = 2", {"ORCH_WORKERS": "3", "ORCH_GRACE": "3"}
    spec = load_here(toml, environ, workers=4).spec
    assert (spec.workers, spec.grace_s, spec.failure_grace_s) == (4, 3.0, 2.0)


def test_variables_are_ignored_inside_a_task(load_here: Load) -> None:
    environ = {"ORCH_RUN_ID": "x", "ORCH_WORKERS": "nonsense", "ORCH_CHECKPOINT_DIR": "/elsewhere"}
    spec = load_here("workers = 2", environ).spec
    assert spec.workers == 2 and spec.checkpoint_dir is None


def test_empty_variables_and_absent_flags_count_as_not_given(load_here: Load) -> None:
    assert load_here("workers = 2", {"ORCH_WORKERS": ""}, workers=None, env=[], name=None).spec.workers == 2


def test_every_setting_from_the_file(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    request = load_here(
        """
workers = 4
name = "digits"
timeout = "1h30m"
grace = 5
failure_grace = 0.25
cwd = "sub"
checkpoint-dir = "ck"
log_dir = "/var/tmp/l"
command = "/bin/echo 'a b'"
tasks = [0, "worker:2"]
timestamps = true
no-prefix = true
color = "never"
detach = true
wait = "ready"
replace = true
[env]
A = "1"
N = 3
"""
    )
    spec, display = request.spec, request.display
    assert (spec.workers, spec.name, spec.name_is_explicit) == (4, "digits", True)
    assert (spec.timeout_s, spec.grace_s, spec.failure_grace_s) == (5400.0, 5.0, 0.25)
    assert (spec.cwd, spec.checkpoint_dir, spec.log_dir) == (
        tmp_path / "sub",
        tmp_path / "ck",
        Path("/var/tmp/l"),
    )
    assert spec.command.argv == ("/bin/echo", "a b")
    assert spec.env == {"A": "1", "N": "3"}
    assert display.tasks == (TaskRef(type="worker", index=0), TaskRef(type="worker", index=2))
    assert display.timestamps is TimeFormat.TIME and display.no_prefix and display.detach and display.replace
    assert (display.color, display.wait) == (ColorMode.NEVER, WaitFor.READY)


def test_timestamps_are_a_switch_or_a_format(load_here: Load) -> None:
    for value, expected in (("true", TimeFormat.TIME), ('"iso"', TimeFormat.ISO), ("false", None)):
        assert load_here(f"timestamps = {value}").display.timestamps is expected
    for text, expected in (("1", TimeFormat.TIME), ("ISO", TimeFormat.ISO), ("off", None)):
        assert load_here(None, {"ORCH_TIMESTAMPS": text}).display.timestamps is expected
    assert load_here(timestamps=True).display.timestamps is TimeFormat.TIME
    with pytest.raises(
        UsageError, match='ORCH_TIMESTAMPS: "utc" is not a format of times; write time or iso'
    ):
        load_here(None, {"ORCH_TIMESTAMPS": "utc"})


def test_every_setting_from_variables(load_here: Load) -> None:
    environ = {
        "ORCH_WORKERS": "3",
        "ORCH_NAME": "n",
        "ORCH_TIMEOUT": "5m",
        "ORCH_ENV": "A=1 B='2 3'",
        "ORCH_COMMAND": "/bin/echo 'a b'",
        "ORCH_TASKS": "0,2",
        "ORCH_TIMESTAMPS": "1",
        "ORCH_DETACH": "off",
        "ORCH_COLOR": "always",
    }
    request = load_here(None, environ)
    assert (request.spec.workers, request.spec.name, request.spec.timeout_s) == (3, "n", 300.0)
    assert request.spec.env == {"A": "1", "B": "2 3"}
    assert request.spec.command.argv == ("/bin/echo", "a b")
    assert [str(task) for task in request.display.tasks or ()] == ["worker:0", "worker:2"]
    assert request.display.timestamps and not request.display.detach
    assert request.display.color is ColorMode.ALWAYS


def test_env_is_merged_name_by_name(load_here: Load) -> None:
    spec = load_here(
        "env = {A = 'file', B = 'file', C = 'file'}", {"ORCH_ENV": "B=var C=var"}, env=["C=flag=x"]
    ).spec
    assert spec.env == {"A": "file", "B": "var", "C": "flag=x"}


def test_typed_flags_of_the_python_api(load_here: Load, tmp_path: Path) -> None:
    request = load_here(
        workers=2, grace=1, env={"A": "1"}, cwd=tmp_path, tasks=[1], command=[Path("/bin/true"), "x"]
    )
    assert request.spec.command.words == ("/bin/true", "x")
    assert request.spec.grace_s == 1.0
    assert request.display.tasks == (TaskRef(type="worker", index=1),)


def test_wait_implies_detach(load_here: Load) -> None:
    assert load_here(wait="done").display.detach


def test_options_are_added_to_the_command_of_the_file(load_here: Load) -> None:
    assert load_here("command = ['/bin/echo', 'a']", command=["--epochs", "3"]).spec.command.argv == (
        "/bin/echo",
        "a",
        "--epochs",
        "3",
    )


def test_command_replaces_that_of_the_file(load_here: Load) -> None:
    assert load_here("command = '/bin/echo a'", command=["/bin/true"]).spec.command.argv == ("/bin/true",)


def test_module_replaces_the_command_of_the_file(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("")
    assert load_here("command = '/bin/echo a'", command=["-m", "mod"]).spec.command.kind is CommandKind.MODULE


def test_inherited_tf_config_gives_a_notice(load_here: Load) -> None:
    request = load_here(environ={"TF_CONFIG": "{}"})
    assert request.spec.inherited_tf_config
    assert request.notices == ("TF_CONFIG is set in this environment; each task gets its own instead",)


def test_tilde_is_expanded(load_here: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    assert load_here("checkpoint-dir = '~/ck'").spec.checkpoint_dir == Path("/somebody/ck")


FILE_MISTAKES = [
    ("\n\nwrokers = 4", 'orch.toml, line 3: unknown key "wrokers"; did you mean "workers"?'),
    ("logdir = 'x'", 'orch.toml, line 1: unknown key "logdir"; did you mean "log-dir"?'),
    ("zzz = 1", 'orch.toml, line 1: unknown key "zzz"; known: workers, command, name,'),
    ("[up]\nworkers = 4", 'orch.toml, line 1: unknown key "up"; known:'),
    (
        "name = 'a'\nworkers = '4'",
        'orch.toml, line 2: workers: "4" is not a whole number; remove the quotes',
    ),
    ("workers = true", "orch.toml, line 1: workers: true is not a whole number"),
    ("workers = 1.5", "orch.toml, line 1: workers: 1.5 is not a whole number"),
    ("workers = 0", "orch.toml, line 1: workers: must be at least 1, not 0"),
    ("workers = " + "9" * 30, "orch.toml, line 1: workers: a number of 100 bits is too big"),
    ("workers = " + "9" * 5000, "orch.toml: not valid TOML: "),
    ("name = 3", "orch.toml, line 1: name: 3 is not text; put it in quotes"),
    ("name = 'a b'", 'orch.toml, line 1: name: "a b" is not a name; use 1 to 63 of'),
    ("grace = 'x'", 'orch.toml, line 1: grace: "x" is not a duration; write 30, 1.5, 500ms'),
    ("grace = -1", "orch.toml, line 1: grace: -1 is not a length of time"),
    ("grace = nan", "orch.toml, line 1: grace: nan is not a length of time"),
    ("grace = []", "orch.toml, line 1: grace: [] is not a duration"),
    ("timeout = 0", "orch.toml, line 1: timeout: a time-out of 0 would end the run at once; leave it out"),
    (
        "start-timeout = 0",
        "orch.toml, line 1: start-timeout: a time-out of 0 would end the run at once; write off",
    ),
    ("detach = 'true'", 'orch.toml, line 1: detach: "true" is neither true nor false; remove the quotes'),
    ("color = 'red'", 'orch.toml, line 1: color: "red" is not known; write auto, always or never'),
    ("wait = 3", "orch.toml, line 1: wait: 3 is not known; write ready or done"),
    ("cwd = 3", "orch.toml, line 1: cwd: 3 is not a path; put it in quotes"),
    ("cwd = ''", "orch.toml, line 1: cwd: the path is empty"),
    ('log-dir = "a\\u0000b"', "orch.toml, line 1: log-dir: 'a\\x00b' contains a NUL"),
    (
        "cwd = '~nobody-of-that-name/x'",
        'orch.toml, line 1: cwd: "~nobody-of-that-name/x": Could not determine home',
    ),
    ("tasks = 1.5", "orch.toml, line 1: tasks: 1.5 is not a task; write worker:0 or 0"),
    ("tasks = []", "orch.toml, line 1: tasks: no task is named"),
    ("env = 3", "orch.toml, line 1: env: 3 is not a table; write env = {"),
    ("[env]\nA = []", "orch.toml, line 1: env: A is []; a variable's value is text"),
    ("workers = 2\n[env]\nTF_CONFIG = 'x'", "orch.toml, line 2: env: TF_CONFIG is set by orch for each task"),
    ("command = 3", "orch.toml, line 1: command: 3 is not a command; write a text or a list of texts"),
    ("command = ['a', 3]", "orch.toml, line 1: command: 3 is not text; put each word"),
    ('command = "echo \'a"', 'orch.toml, line 1: command: "echo \'a" cannot be split into words: No closing'),
    (
        "command = 'no-such-program-anywhere'",
        "orch.toml, line 1: command: command not found: no-such-program",
    ),
    ("workers = 1\nworkers = 2", "orch.toml, line 2: not valid TOML: Cannot overwrite a value"),
    ("workers = ", "orch.toml, line 1: not valid TOML: Invalid value"),
    ("a\n[\n", "orch.toml, line 1: not valid TOML: "),
    (
        "log-dir = 'a'\nlog_dir = 'b'",
        'orch.toml, line 2: "log_dir" is given twice, once with - and once with _',
    ),
]


def test_named_pipe_in_place_of_the_file_is_refused_at_once(load_here: Load, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "orch.toml")
    with pytest.raises(UsageError, match=r"orch\.toml: is not a regular file; fix or remove it"):
        load_here()


def test_dangling_link_is_an_error(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "orch.toml").symlink_to("gone.toml")
    with pytest.raises(
        UsageError, match=r"orch\.toml: is a link to gone\.toml, which does not exist; fix or remove it"
    ):
        load_here()


def test_byte_order_mark_is_accepted(load_here: Load) -> None:
    assert load_here("\ufeffworkers = 3").spec.workers == 3


@pytest.mark.parametrize(
    ("toml", "message"), FILE_MISTAKES, ids=[repr(toml)[:40] for toml, _ in FILE_MISTAKES]
)
def test_mistake_in_the_file_names_its_line(load_here: Load, toml: str, message: str) -> None:
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        load_here(toml)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ORCH_WORKERS", "x", 'ORCH_WORKERS: "x" is not a whole number'),
        ("ORCH_WORKERS", "0", "ORCH_WORKERS: must be at least 1, not 0"),
        ("ORCH_GRACE", "5x", 'ORCH_GRACE: "5x" is not a duration'),
        ("ORCH_DETACH", "maybe", 'ORCH_DETACH: "maybe" is neither true nor false; write 1 or 0'),
        ("ORCH_ENV", "A", 'ORCH_ENV: "A" is not NAME=VALUE'),
        ("ORCH_ENV", "=x", 'ORCH_ENV: "=x" is not NAME=VALUE'),
        ("ORCH_ENV", "'", 'ORCH_ENV: "\'" cannot be split into words'),
        ("ORCH_NAME", "a/b", 'ORCH_NAME: "a/b" is not a name'),
        ("ORCH_CWD", "/no/such/place", "ORCH_CWD: /no/such/place does not exist; name an existing directory"),
        ("ORCH_LOG_DIR", "\udcff", "ORCH_LOG_DIR: '\\udcff' contains a NUL or bytes that are not UTF-8"),
        ("ORCH_COMMAND", "no-such-program-anywhere", "ORCH_COMMAND: command not found: no-such-program"),
        ("ORCH_TASKS", "9", "ORCH_TASKS: there is no worker:9 in this run; it has worker:0"),
    ],
)
def test_mistake_in_a_variable_names_it(load_here: Load, variable: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        load_here(None, {variable: value})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"workers": 0}, "--workers: must be at least 1, not 0"),
        ({"workers": -1}, "--workers: must be at least 1, not -1"),
        ({"workers": "many"}, '--workers: "many" is not a whole number'),
        ({"failure_grace": "soon"}, '--failure-grace: "soon" is not a duration'),
        ({"env": ["A"]}, '--env: "A" is not NAME=VALUE'),
        ({"env": ["ORCH_TASK=x"]}, "--env: ORCH_TASK is set by orch for each task and cannot be given"),
        (
            {"workers": 4, "tasks": "9"},
            "--tasks: there is no worker:9 in this run; it has worker:0 to worker:3",
        ),
        ({"workers": 4, "tasks": "evaluator"}, "--tasks: there is no evaluator:0 in this run"),
        ({"tasks": "boss"}, "--tasks: 'boss' is not a task; write worker:0, chief"),
        ({"tasks": "0,"}, "--tasks: '' is not a task"),
        ({"cwd": "/no/such/place"}, "--cwd: /no/such/place does not exist"),
        ({"cwd": "/dev/null"}, "--cwd: /dev/null is not a directory"),
        ({"cwd": "/dev/null/x"}, "--cwd: /dev/null/x does not exist"),
        ({"command": ["a\0b"]}, "the command: 'a\\x00b' contains a NUL"),
        ({"wrokers": 3}, 'unknown option "wrokers"; did you mean "workers"?'),
    ],
)
def test_mistake_in_a_flag_names_it(load_here: Load, flags: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        load_here(None, None, **flags)


def test_task_beyond_the_largest_run_is_refused_quickly(load_here: Load) -> None:
    with pytest.raises(UsageError, match="is not a task; write worker:0"):
        load_here(workers=10**12, tasks=str(10**12))


def test_file_that_is_not_utf8_is_refused(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "orch.toml").write_bytes(b"workers = 1\nname = '\xff'\n")
    with pytest.raises(UsageError, match=r"^orch\.toml, line 2: not UTF-8 text; save the file as UTF-8"):
        load_here()


def test_unreadable_file_is_refused(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "orch.toml").mkdir()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UsageError, match=r"orch\.toml: cannot be read \(Is a directory\); fix or remove it"):
        load_here()
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def test_endless_file_is_refused(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "orch.toml").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is not a regular file"):
        load_here()


def test_huge_file_is_refused(load_here: Load) -> None:
    with pytest.raises(UsageError, match="longer than 1 MiB"):
        load_here("#" * (1 << 20) + "#")


def test_deeply_nested_toml_is_refused(load_here: Load) -> None:
    with pytest.raises(UsageError, match=r"^orch\.toml"):
        load_here("command = " + "[" * 5000 + "]" * 5000)


def test_removed_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the current directory: .*gone does not exist"):
        load({"command": ["/bin/true"]}, {}, tmp_path / "gone")


def test_load_writes_nothing(load_here: Load, tmp_path: Path) -> None:
    load_here(log_dir="logs", checkpoint_dir="ck", name="x")
    assert list(tmp_path.iterdir()) == []


def test_element_of_a_job_array_is_a_run_of_its_own(load_here: Load, tmp_path: Path) -> None:
    element = {"SLURM_ARRAY_TASK_ID": "3"}
    request = load_here(environ=element, name="sweep", checkpoint_dir="ckpt")
    assert (request.spec.name, request.spec.checkpoint_dir) == ("sweep-3", tmp_path / "ckpt" / "3")
    assert f"element 3 of a job array: run sweep-3, checkpoints in {tmp_path}/ckpt/3" in request.notices
    assert load_here(environ=element).spec.checkpoint_dir is None
    # The user has separated them already.
    own = load_here(environ=element, name="sweep-3", checkpoint_dir="ckpt/3").spec
    assert (own.name, own.checkpoint_dir) == ("sweep-3", tmp_path / "ckpt" / "3")
    assert load_here(environ=element, name="n" * 63).spec.name == "n" * 61 + "-3"


@pytest.mark.parametrize("words", ["--array=1-3", "--exclusive -a 1-3"])
def test_job_array_is_not_one_detached_run(
    load_here: Load, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    request = load_here(engine="slurm", nodes=1, slurm=words)
    with pytest.raises(UsageError, match="each element of a job array is a run of its own"):
        submit(request)


@pytest.mark.parametrize(
    "environ", [{"SLURM_ARRAY_TASK_ID": "x"}, {"SLURM_ARRAY_TASK_ID": "3", "ORCH_RUN_ID": "outer"}]
)
def test_other_runs_keep_their_name(load_here: Load, environ: dict[str, str]) -> None:
    assert load_here(environ=environ, name="sweep").spec.name == "sweep"
