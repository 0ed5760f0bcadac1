"""The tasks of a run: from the numbers of roles, a strategy or a range; and what each role runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from spec_making import Load, make_spec, refusal

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.plan.places import local_places
from orchestrator.core.plan.plan import RunPlan, build_plan
from orchestrator.request.export.manifests import Cluster, job_set, kubernetes_job
from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
from orchestrator.store.runs.paths import RunPaths

ABORT, RESTART, RESTART_TASK, CONTINUE = FailurePolicy


def planned(spec: JobSpec) -> RunPlan:
    return placeholder_plan(spec, RunPaths(Path("/runs/x")), {"PATH": os.defpath})


# -- numbers of tasks


def test_options_give_the_roles(load_here: Load) -> None:
    chief_and_two = {"chief": 1, "worker": 2, "ps": 1}
    table: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({}, {"worker": 1}),
        ({"workers": "2", "ps": "1"}, chief_and_two),
        ({"ps": 2, "chief": "worker0"}, {"worker": 1, "ps": 2}),
        ({"workers": 3, "chief": "separate"}, {"chief": 1, "worker": 3}),
        ({"workers": 2, "evaluator": True}, {"worker": 2, "evaluator": 1}),
        ({"workers": 0, "chief": "separate", "evaluator": True}, {"chief": 1, "evaluator": 1}),
        ({"workers": 2, "ps": 0}, {"worker": 2}),
        # A strategy has its own numbers.
        ({"strategy": "multi-worker-mirrored", "workers": "3"}, {"worker": 3}),
        ({"strategy": "mirrored"}, {"worker": 1}),
        ({"strategy": "one-device", "workers": "1"}, {"worker": 1}),
        ({"strategy": "Central-Storage"}, {"worker": 1}),
        ({"strategy": "one_device"}, {"worker": 1}),
        ({"strategy": "parameter-server"}, chief_and_two),
        ({"strategy": "parameter-server", "workers": "3", "ps": "2"}, {"chief": 1, "worker": 3, "ps": 2}),
        ({"strategy": "mirrored", "evaluator": True}, {"worker": 1, "evaluator": 1}),
        ({"mesh": "batch=2,model=2", "workers": "4"}, {"worker": 4}),
    ]
    for flags, roles in table:
        assert dict(load_here(**flags).spec.roles) == roles, flags


def test_tables_of_a_file_give_the_roles(load_here: Load) -> None:
    table = {
        "[roles.ps]": {"chief": 1, "worker": 1, "ps": 1},
        "[roles.worker]\ncount = 3\n[roles.ps]\ncount = 2": {"chief": 1, "worker": 3, "ps": 2},
        "[roles.ps]\n[roles.chief]\ncount = 0": {"worker": 1, "ps": 1},
        "[roles.chief]\nenv = { A = '1' }": {"chief": 1, "worker": 1},
        "[roles.evaluator]\non_failure = 'abort'": {"worker": 1, "evaluator": 1},
        "[roles.evaluator]\ncount = 0": {"worker": 1},
        "ps = 2\nevaluator = true": {"chief": 1, "worker": 1, "ps": 2, "evaluator": 1},
    }
    assert {toml: dict(load_here(toml).spec.roles) for toml in table} == table
    spec = load_here("[roles.worker]\ncount = 1\n", strategy="parameter-server").spec
    assert dict(spec.roles) == {"chief": 1, "worker": 1, "ps": 1}


def test_flag_over_variable_over_file_for_roles(load_here: Load) -> None:
    toml = "[roles.worker]\ncount = 5\n[roles.ps]\ncount = 5\n[roles.evaluator]"
    environ = {"ORCH_WORKERS": "4", "ORCH_PS": "4", "ORCH_EVALUATOR": "0"}
    assert dict(load_here(toml, environ, ps=1).spec.roles) == {"chief": 1, "worker": 4, "ps": 1}


def test_python_gives_the_table_of_roles(load_here: Load) -> None:
    spec = load_here(workers=2, roles={"ps": {"count": 2, "on-failure": "continue", "env": {"A": "1"}}}).spec
    assert (dict(spec.roles), spec.policy_of("ps")) == ({"chief": 1, "worker": 2, "ps": 2}, CONTINUE)
    assert spec.env_of("ps") == {"A": "1"} and not spec.env_of("worker")


def test_range_of_workers(load_here: Load) -> None:
    for words in ("2..4", " 2 .. 4 "):
        request = load_here(workers=words, hosts="a:2,b:2")
        spec = request.spec
        assert (spec.workers, spec.fewest_workers, spec.is_elastic) == (4, 2, True)
        assert spec.policy_of("worker") is RESTART
        assert not any("on one machine" in notice for notice in request.notices)
    assert load_here("workers = '1..3'").spec.fewest_workers == 1
    assert load_here("[roles.worker]\ncount = '1..3'").spec.workers == 3
    assert load_here("", {"ORCH_WORKERS": "2..2"}).spec.fewest_workers == 2
    alone = load_here("", workers="1..3")
    assert "--workers: on one machine the run always has 3 workers" in alone.notices
    assert not alone.spec.is_elastic
    for render in (kubernetes_job, job_set):
        said = refusal(render, alone.spec, Cluster(image="train:1"))
        assert said.startswith("--workers 1..3: the manifests have one number of pods")


def test_global_batch(load_here: Load, tmp_path: Path) -> None:
    assert load_here(workers=3, global_batch=48).spec.global_batch == 48
    # A single process and parameter servers do not split the batch.
    assert load_here(strategy="mirrored", replicas=2, global_batch=50).spec.global_batch == 50
    assert load_here(workers=3, ps=1, global_batch=50).spec.global_batch == 50

    def variable(environ: dict[str, str], **changes: Any) -> str | None:
        places = local_places(["127.0.0.1:1", "127.0.0.1:2"])
        plan = build_plan(make_spec(**changes), places, RunPaths(tmp_path), 1, environ)
        return plan.tasks[1].order.env.get("ORCH_GLOBAL_BATCH")

    assert variable({}, global_batch=48) == "48"
    assert variable({}) is None
    # That of the run around this one does not count.
    assert variable({"ORCH_RUN_ID": "outer", "ORCH_GLOBAL_BATCH": "7"}) == ""


# -- what each role runs


def test_role_can_have_its_own_command_and_environment(load_here: Load, tmp_path: Path) -> None:
    for name in ("train.py", "look.py"):
        (tmp_path / name).write_text("import tensorflow\n")
    toml = (
        "command = 'train.py --fast'\nworkers = 2\nevaluator = true\nenv = { A = 'all', B = 'all' }\n"
        "[roles.evaluator]\ncommand = ['look.py', 'x']\nenv = { B = 'own' }\n"
        "[roles.worker]\ncommand = '--size 3'\n"
    )
    tasks = {task.order.task: task.order for task in planned(load_here(toml).spec).tasks}
    assert tasks["worker:1"].argv[1:] == ("train.py", "--fast", "--size", "3")
    assert tasks["evaluator:0"].argv[1:] == ("look.py", "x")
    assert (tasks["worker:1"].env["A"], tasks["worker:1"].env["B"]) == ("all", "all")
    assert (tasks["evaluator:0"].env["A"], tasks["evaluator:0"].env["B"]) == ("all", "own")
    assert (tasks["worker:1"].serves, tasks["evaluator:0"].serves) == (True, False)


def test_no_common_command_if_every_role_has_one(load_here: Load) -> None:
    toml = "[roles.worker]\ncommand = '/bin/true'\n[roles.evaluator]\ncommand = '/bin/false'\n"
    spec = load_here(toml, command=[]).spec
    assert [str(command) for command in spec.commands] == ["/bin/true", "/bin/false"]


def test_only_roles_with_the_same_imports_are_forked(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow as tf\n")
    (tmp_path / "same.py").write_text("import tensorflow as tf\nprint(1)\n")
    (tmp_path / "other.py").write_text("import tensorflow as tf\nfrom tensorflow import keras\n")
    # The roles whose tasks are not forked, by the tables after the common command.
    table: dict[str, list[str]] = {
        "": [],
        "[roles.ps]\ncommand = 'same.py'\n[roles.evaluator]\nenv = { CUDA_VISIBLE_DEVICES = '-1' }\n": [],
        "[roles.ps]\nenv = { OMP_NUM_THREADS = '1' }\n": ["ps"],
        "[roles.evaluator]\ncommand = '/bin/true'\n": ["evaluator"],
        "[roles.ps]\ncommand = 'other.py'\n": ["ps"],
    }
    train = "command = 'train.py'\nps = 1\nevaluator = true\n"
    for tables, spawned in table.items():
        plan = planned(load_here(train + tables).spec)
        assert [task.task.type for task in plan.tasks if not task.order.fork] == spawned, tables
    start = load_here(train + "[roles.ps]\nenv = { LANG = 'C' }\n").spec.command_of("ps").start
    assert start.reason == "its role has an environment of its own (LANG)"


def test_failure_policy_of_each_role(load_here: Load) -> None:
    with_ps = {"chief": ABORT, "worker": RESTART_TASK, "ps": ABORT}
    table: list[tuple[str, dict[str, Any], dict[str, FailurePolicy]]] = [
        ("", {"workers": 2}, {"worker": ABORT}),
        ("", {"workers": 2, "evaluator": True}, {"worker": ABORT, "evaluator": RESTART_TASK}),
        ("", {"ps": 1}, with_ps),
        ("", {"ps": 1, "on_failure": "continue"}, dict.fromkeys(with_ps, CONTINUE)),
        (
            "[roles.ps]\non-failure = 'restart'",
            {"on_failure": "abort"},
            with_ps | {"worker": ABORT, "ps": RESTART},
        ),
        ("", {"workers": 2, "max_restarts": 5}, {"worker": RESTART}),
        ("", {"max_restarts": "0"}, {"worker": ABORT}),
        ("", {"max_restarts": "5", "on_failure": "restart-task"}, {"worker": RESTART_TASK}),
        ("", {"max_restarts": "5", "on_failure": "abort"}, {"worker": ABORT}),
        ("", {"ps": 1, "max_restarts": 5}, with_ps),
    ]
    for toml, flags, policies in table:
        spec = load_here(toml, **flags).spec
        assert {role: spec.policy_of(role) for role in spec.roles} == policies, (toml, flags)
    assert not load_here("", ps=1, max_restarts=5).notices
    assert load_here("", workers=2, max_restarts=5, on_failure="abort").notices


# -- output


def test_plan_shows_roles_without_secrets(load_here: Load) -> None:
    toml = "evaluator = true\n[roles.evaluator]\nenv = { API_TOKEN = 'hush' }\ncommand = '/bin/echo --password hush'\n"
    spec = load_here(toml, workers=2, ps=2).spec
    lines = config_lines(spec, planned(spec))
    assert lines[0].endswith("1 chief, 2 workers, 2 ps, 1 evaluator")
    own = next(line for line in lines if line.startswith("role         evaluator"))
    assert "command /bin/echo --password '***'" in own and "on failure restart-task" in own
    assert "hush" not in "\n".join(lines) and "hush" not in str(config_document(spec, planned(spec)))


# -- notices about a script that does not join the cluster


def test_script_that_never_checks_for_its_role_gives_a_notice(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "roles_of_mine.py").write_text("ParameterServerStrategy")
    table: list[tuple[str, dict[str, Any], str]] = [
        ("import tensorflow", {"evaluator": True}, "the evaluator role"),
        ("if role == 'evaluator': follow()", {"evaluator": True}, ""),
        ("import tensorflow", {"ps": 1}, "the parameter server role"),
        ("tf.distribute.Server(spec).join()", {"ps": 1}, ""),
        ("import roles_of_mine", {"ps": 1}, ""),
        ("import tensorflow", {}, ""),
    ]
    for text, flags, role in table:
        (tmp_path / "train.py").write_text(text)
        notices = load_here(command=["train.py"], workers=2, **flags).notices
        found = [one.partition(" (")[0] for one in notices if "never checks for" in one]
        assert len(found) == bool(role), (text, flags)
        assert not role or found[0].startswith(f"train.py never checks for {role}"), (text, flags)


def test_source_that_joins_no_cluster_gives_a_notice(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)"
    )
    # The source of a script that ends with fit, and why its workers are independent.
    table = {
        "import tensorflow as tf": "creates no strategy for several workers",
        "s = tf.distribute.MirroredStrategy()": "uses MirroredStrategy, which does not span workers",
        "s = tf.distribute.MultiWorkerMirroredStrategy()": "",
        "from mine import strategy": "",
        "import official.common": "",
        "import horovod.tensorflow as hvd": "",
        "shard = os.environ['ORCH_TASK']": "",
    }
    advice = "create a MultiWorkerMirroredStrategy, or use --workers 1"

    def independent(text: str) -> list[str]:
        (tmp_path / "train.py").write_text(text)
        return [n for n in load_here(command=["train.py"], workers=2).notices if "independent" in n]

    assert not independent("import tensorflow as tf\nprint(tf.constant(1))")
    assert not independent("import sklearn\nmodel.fit(x)")
    for text, why in table.items():
        notices = independent(f"import tensorflow as tf\n{text}\nmodel.fit(x)")
        wanted = f"train.py {why}: 2 workers would train 2 independent copies; {advice}"
        assert notices == ([wanted] if why else []), text
