"""Roles: their options, the tables [roles.*], and what each role's tasks are started with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from spec_making import Load

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.plan.plan import RunPlan
from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
from orchestrator.store.runs.paths import RunPaths

ABORT, RESTART, RESTART_TASK, CONTINUE = FailurePolicy


def planned(spec: JobSpec) -> RunPlan:
    return placeholder_plan(spec, RunPaths(Path("/runs/x")), {"PATH": os.defpath})


def tf_configs(spec: JobSpec) -> dict[str, dict[str, Any]]:
    plan = planned(spec)
    return {str(task.task): plan.tf_config_of(task.task).as_dict() for task in plan.tasks}


# -- numbers of tasks


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ({}, {"worker": 1}),
        ({"workers": "2", "ps": "1"}, {"chief": 1, "worker": 2, "ps": 1}),
        ({"ps": 2, "chief": "worker0"}, {"worker": 1, "ps": 2}),
        ({"workers": 3, "chief": "separate"}, {"chief": 1, "worker": 3}),
        ({"workers": 2, "evaluator": True}, {"worker": 2, "evaluator": 1}),
        ({"workers": 0, "chief": "separate", "evaluator": True}, {"chief": 1, "evaluator": 1}),
        ({"workers": 2, "ps": 0}, {"worker": 2}),
    ],
)
def test_options_give_the_roles(load_here: Load, flags: dict[str, object], roles: dict[str, int]) -> None:
    assert dict(load_here(**flags).spec.roles) == roles


@pytest.mark.parametrize(
    ("toml", "roles"),
    [
        ("[roles.ps]", {"chief": 1, "worker": 1, "ps": 1}),
        ("[roles.worker]\ncount = 3\n[roles.ps]\ncount = 2", {"chief": 1, "worker": 3, "ps": 2}),
        ("[roles.ps]\n[roles.chief]\ncount = 0", {"worker": 1, "ps": 1}),
        ("[roles.chief]\nenv = { A = '1' }", {"chief": 1, "worker": 1}),
        ("[roles.evaluator]\non_failure = 'abort'", {"worker": 1, "evaluator": 1}),
        ("[roles.evaluator]\ncount = 0", {"worker": 1}),
        ("ps = 2\nevaluator = true", {"chief": 1, "worker": 1, "ps": 2, "evaluator": 1}),
    ],
)
def test_file_gives_the_roles(load_here: Load, toml: str, roles: dict[str, int]) -> None:
    assert dict(load_here(toml).spec.roles) == roles


def test_flag_over_variable_over_file_for_roles(load_here: Load) -> None:
    toml = "[roles.worker]\ncount = 5\n[roles.ps]\ncount = 5\n[roles.evaluator]"
    environ = {"ORCH_WORKERS": "4", "ORCH_PS": "4", "ORCH_EVALUATOR": "0"}
    assert dict(load_here(toml, environ, ps=1).spec.roles) == {"chief": 1, "worker": 4, "ps": 1}


def test_python_gives_the_table_of_roles(load_here: Load) -> None:
    spec = load_here(workers=2, roles={"ps": {"count": 2, "on-failure": "continue", "env": {"A": "1"}}}).spec
    assert (dict(spec.roles), spec.policy_of("ps")) == ({"chief": 1, "worker": 2, "ps": 2}, CONTINUE)
    assert spec.env_of("ps") == {"A": "1"} and not spec.env_of("worker")


@pytest.mark.parametrize(
    ("toml", "flags", "message"),
    [
        (
            "\n[roles.pss]\ncount = 2",
            {},
            'orch.toml, line 2: [roles]: unknown role "pss"; did you mean "ps"?',
        ),
        (
            "[roles.ps]\ncuont = 2",
            {},
            'orch.toml, line 1: [roles]: ps has an unknown key "cuont"; did you mean "count"?',
        ),
        (
            "workers = 2\n[roles.worker]\ncount = 2",
            {},
            "orch.toml, line 3: count of worker: given already (orch.toml, line 1: workers)",
        ),
        (
            "[roles.ps]\n\ncount = 'two'",
            {},
            'orch.toml, line 3: count of ps: "two" is not a whole number',
        ),
        (
            "[roles.evaluator]\non-failure = 'retry'",
            {},
            'orch.toml, line 2: on-failure of evaluator: "retry" is not known',
        ),
        (
            "[roles.ps]\nenv = { ORCH_TASK = 'x' }",
            {},
            "orch.toml, line 2: env of ps: ORCH_TASK is set by orch",
        ),
        (
            "[roles.ps]\nenv = { TF_GRPC_REUSE_PORT = '0' }",
            {},
            "orch.toml, line 2: env of ps: TF_GRPC_REUSE_PORT is the same for all tasks",
        ),
        ("roles = 3", {}, "orch.toml, line 1: [roles]: 3 is not a table; write [roles.ps]"),
        ("[roles]\nps = 2", {}, "orch.toml, line 1: [roles]: ps is 2, not a table; write [roles.ps]"),
        ("[roles.evaluator]\ncount = 2", {}, "orch.toml, line 2: count of evaluator: a job has at most one"),
        (
            "[roles.evaluator]\ncommand = 'no_such.py'",
            {},
            "orch.toml, line 2: command of evaluator: script not found: no_such.py",
        ),
        ("", {"ps": "-1"}, "--ps: must be at least 0, not -1"),
        ("", {"workers": 4001}, "--workers: a job has at most 4,000 tasks, not 4,001"),
        ("", {"workers": 1300, "ps": 2700}, "--ps: a job has at most 4,000 tasks, not 4,001"),
        (
            "[roles.ps]\ncount = 2000000",
            {},
            "orch.toml, line 2: count of ps: a job has at most 4,000 tasks, not 2,000,000",
        ),
        (
            "",
            {"ps": 1, "workers": 0},
            "--workers: must be at least 1, not 0: parameter servers need a worker",
        ),
        (
            "",
            {"workers": 0},
            "--workers: must be at least 1, not 0: without --chief separate, a worker is the chief",
        ),
        ("", {"chief": "first"}, '--chief: "first" is not known; write separate or worker0'),
        ("", {"roles": {"boss": {}}}, 'roles: unknown role "boss"; known: chief, worker, ps, evaluator'),
    ],
)
def test_mistake_names_its_source(load_here: Load, toml: str, flags: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        load_here(toml, **flags)
    assert str(raised.value).startswith(message)


# -- TF_CONFIG


def test_evaluator_is_only_in_its_own_tf_config(load_here: Load) -> None:
    found = tf_configs(load_here(workers=2, ps=1, evaluator=True).spec)
    cluster = {
        "chief": ["127.0.0.1:10001"],
        "worker": ["127.0.0.1:10002", "127.0.0.1:10003"],
        "ps": ["127.0.0.1:10004"],
    }
    places = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    assert found == {
        **{f"{role}:{i}": {"cluster": cluster, "task": {"type": role, "index": i}} for role, i in places},
        "evaluator:0": {
            "cluster": cluster | {"evaluator": ["127.0.0.1:10005"]},
            "task": {"type": "evaluator", "index": 0},
        },
    }


def test_single_worker_has_a_tf_config(load_here: Load) -> None:
    expected = {"cluster": {"worker": ["127.0.0.1:10001"]}, "task": {"type": "worker", "index": 0}}
    assert tf_configs(load_here(workers=1).spec) == {"worker:0": expected}


# -- what each role runs


def test_role_can_have_its_own_command_and_environment(load_here: Load, tmp_path: Path) -> None:
    for name in ("train.py", "look.py"):
        (tmp_path / name).write_text("import tensorflow\n")
    toml = (
        "command = 'train.py --fast'\nworkers = 2\nevaluator = true\nenv = { A = 'all', B = 'all' }\n"
        "[roles.evaluator]\ncommand = ['look.py', 'x']\nenv = { B = 'own' }\n"
        "[roles.worker]\ncommand = '--size 3'\n"
    )
    tasks = {str(task.task): task for task in planned(load_here(toml).spec).tasks}
    assert tasks["worker:1"].argv[1:] == ("train.py", "--fast", "--size", "3")
    assert tasks["evaluator:0"].argv[1:] == ("look.py", "x")
    assert (tasks["worker:1"].env["A"], tasks["worker:1"].env["B"]) == ("all", "all")
    assert (tasks["evaluator:0"].env["A"], tasks["evaluator:0"].env["B"]) == ("all", "own")
    assert (tasks["worker:1"].serves, tasks["evaluator:0"].serves) == (True, False)


def test_no_common_command_if_every_role_has_one(load_here: Load) -> None:
    toml = "[roles.worker]\ncommand = '/bin/true'\n[roles.evaluator]\ncommand = '/bin/false'\n"
    spec = load_here(toml, command=[]).spec
    assert [str(command) for command in spec.commands] == ["/bin/true", "/bin/false"]


def forked(load_here: Load, toml: str) -> dict[str, bool]:
    spec = load_here(toml).spec
    return {str(task.task): task.fork for task in planned(spec).tasks}


def test_only_roles_with_the_same_imports_are_forked(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow as tf\n")
    (tmp_path / "same.py").write_text("import tensorflow as tf\nprint(1)\n")
    (tmp_path / "other.py").write_text(
        "import tensorflow as tf\nimport numpy as np\nfrom tensorflow import keras\n"
    )
    train = "command = 'train.py'\nps = 1\nevaluator = true\n"
    assert set(forked(load_here, train).values()) == {True}
    others = "[roles.ps]\ncommand = 'same.py'\n[roles.evaluator]\nenv = { CUDA_VISIBLE_DEVICES = '-1' }\n"
    assert set(forked(load_here, train + others).values()) == {True}
    found = forked(load_here, train + "[roles.ps]\nenv = { OMP_NUM_THREADS = '1' }\n")
    assert found == {"chief:0": True, "worker:0": True, "ps:0": False, "evaluator:0": True}
    spec = load_here(train + "[roles.evaluator]\ncommand = '/bin/true'\n").spec
    assert not spec.command_of("evaluator").start.fork
    reason = load_here(train + "[roles.ps]\nenv = { LANG = 'C' }\n").spec.command_of("ps").start.reason
    assert reason == "its role has an environment of its own (LANG)"
    if not load_here(train + "[roles.ps]\ncommand = 'other.py'\n").spec.command_of("ps").start.fork:
        return
    raise AssertionError("another script's imports are not those of the others")


# -- failure policies


@pytest.mark.parametrize(
    ("toml", "flags", "policies"),
    [
        ("", {"workers": 2}, {"worker": ABORT}),
        ("", {"workers": 2, "evaluator": True}, {"worker": ABORT, "evaluator": RESTART_TASK}),
        ("", {"ps": 1}, {"chief": ABORT, "worker": RESTART_TASK, "ps": ABORT}),
        ("", {"ps": 1, "on_failure": "continue"}, {"chief": CONTINUE, "worker": CONTINUE, "ps": CONTINUE}),
        (
            "[roles.ps]\non-failure = 'restart'",
            {"on_failure": "abort"},
            {"chief": ABORT, "worker": ABORT, "ps": RESTART},
        ),
        ("", {"workers": 2, "max_restarts": 5}, {"worker": RESTART}),
        ("", {"ps": 1, "max_restarts": 5}, {"chief": ABORT, "worker": RESTART_TASK, "ps": ABORT}),
    ],
)
def test_failure_policy_of_each_role(
    load_here: Load, toml: str, flags: dict[str, object], policies: dict[str, FailurePolicy]
) -> None:
    spec = load_here(toml, **flags).spec
    assert {role: spec.policy_of(role) for role in spec.roles} == policies


def test_max_restarts_without_effect_gives_a_notice(load_here: Load) -> None:
    assert not load_here(ps=1, max_restarts=5).notices
    assert load_here(workers=2, max_restarts=5, on_failure="abort").notices


@pytest.mark.parametrize(("given", "seconds"), [(None, 600.0), ("off", None), ("5s", 5.0)])
def test_evaluator_timeout_is_read(load_here: Load, given: str | None, seconds: float | None) -> None:
    assert load_here(evaluator=True, evaluator_timeout=given).spec.evaluator_timeout_s == seconds


# -- output


def test_plan_shows_roles_without_secrets(load_here: Load) -> None:
    toml = "evaluator = true\n[roles.evaluator]\nenv = { API_TOKEN = 'hush' }\ncommand = '/bin/echo --password hush'\n"
    spec = load_here(toml, workers=2, ps=2).spec
    lines = config_lines(spec, planned(spec))
    assert lines[0].endswith("1 chief, 2 workers, 2 ps, 1 evaluator")
    own = next(line for line in lines if line.startswith("role         evaluator"))
    assert "command /bin/echo --password '***'" in own and "on failure restart-task" in own
    assert "hush" not in "\n".join(lines) and "hush" not in str(config_document(spec, planned(spec)))


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (
            "import tensorflow",
            {"workers": 2, "evaluator": True},
            "train.py never checks for the evaluator role",
        ),
        ("if role == 'evaluator': follow()", {"workers": 2, "evaluator": True}, None),
        ("import tensorflow", {"workers": 2, "ps": 1}, "train.py never checks for the parameter server role"),
        ("tf.distribute.Server(spec).join()", {"workers": 2, "ps": 1}, None),
        ("import roles_of_mine", {"workers": 2, "ps": 1}, None),
        ("import tensorflow", {"workers": 2}, None),
    ],
)
def test_script_that_never_checks_for_its_role_gives_a_notice(
    load_here: Load, tmp_path: Path, text: str, flags: dict[str, Any], message: str | None
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "roles_of_mine.py").write_text("ParameterServerStrategy")
    notices = [one for one in load_here(command=["train.py"], **flags).notices if "never checks for" in one]
    assert len(notices) == (message is not None)
    assert message is None or notices[0].startswith(message)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import tensorflow as tf\nmodel.fit(x)", "creates no strategy for several workers"),
        (
            "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\nmodel.fit(x)",
            "uses MirroredStrategy, which does not span workers",
        ),
        ("import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\nmodel.fit(x)", None),
        ("import tensorflow as tf\nfrom mine import strategy\nmodel.fit(x)", None),
        ("import tensorflow as tf\nimport official.common\nmodel.fit(x)", None),
        ("import tensorflow as tf\nimport horovod.tensorflow as hvd\nmodel.fit(x)", None),
        ("import tensorflow as tf\nshard = os.environ['ORCH_TASK']\nmodel.fit(x)", None),
        ("import tensorflow as tf\nprint(tf.constant(1))", None),
        ("import sklearn\nmodel.fit(x)", None),
    ],
)
def test_source_that_joins_no_cluster_gives_a_notice(
    load_here: Load, tmp_path: Path, text: str, why: str | None
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "mine.py").write_text(
        "strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)"
    )
    notices = [one for one in load_here(command=["train.py"], workers=2).notices if "independent" in one]
    advice = "create a MultiWorkerMirroredStrategy, or use --workers 1"
    wanted = f"train.py {why}: 2 workers would train 2 independent copies; {advice}"
    assert notices == ([] if why is None else [wanted])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"workers": 1}, "this run has no cluster of several tasks; use --workers 2 or more"),
        ({"workers": 1, "evaluator": True}, "this run has no cluster of several tasks"),
        ({"workers": 2, "command": ["true"]}, "true is not a Python program"),
    ],
)
def test_expect_cluster_is_refused_where_it_cannot_hold(
    load_here: Load, tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    (tmp_path / "train.py").write_text("import tensorflow")
    with pytest.raises(UsageError, match=f"^--expect-cluster: {said}"):
        load_here(**{"command": ["train.py"], "expect_cluster": True, **flags})
