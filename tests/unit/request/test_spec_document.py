"""JobSpec, and the document and the lines that `orch config` makes of it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from spec_making import Load, make_spec, refusal

from orchestrator.core.job.choices import NetworkOption, Strategy
from orchestrator.core.job.cpu_budget import INTER_OP, INTRA_OP, Cores
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.job.gpus import Gpu, GpuInventory
from orchestrator.core.job.run_name import default_name
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import Mesh
from orchestrator.core.plan.places import local_places
from orchestrator.core.plan.plan import build_plan
from orchestrator.core.text.secrets import mask_secrets
from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
from orchestrator.store.runs.paths import RunPaths

LAYOUT = RunPaths(Path("/state/job-placeholder"))


def document(spec: JobSpec, **environ: str) -> dict[str, Any]:
    plan = placeholder_plan(spec, LAYOUT, environ)
    found: dict[str, Any] = json.loads(json.dumps(config_document(spec, plan)))
    return found


def lines(spec: JobSpec, **environ: str) -> list[str]:
    return config_lines(spec, placeholder_plan(spec, LAYOUT, environ))


# -- the spec


def test_order_of_tasks_is_fixed() -> None:
    spec = make_spec(roles={"ps": 1, "worker": 2, "chief": 1})
    assert [str(task) for task in spec.tasks] == ["chief:0", "worker:0", "worker:1", "ps:0"]


def test_invalid_field_is_refused() -> None:
    """Those of options are in refusals.py."""
    table: list[tuple[dict[str, Any], str]] = [
        ({"roles": {"boss": 1}}, "'boss' is not a task type"),
        ({"roles": {"ps": 1}}, "parameter servers need a worker"),
        ({"roles": {}}, "at least 1 item"),
        ({"roles": {"worker": 3600, "ps": 401}}, "a job has at most 4,000 tasks, not 4,001"),
        ({"name": ""}, "is not a name; use 1 to 63"),
        ({"name": ".hidden"}, '".hidden" is not a name'),
        ({"name": "a" * 64}, "1 to 63"),
        ({"name": "a\n"}, "is not a name"),
        ({"env": {"ORCH_RUN_ID": "x"}}, "ORCH_RUN_ID is set by orch for each task"),
        ({"env": {"": "x"}}, "not the name of an environment variable"),
        ({"env": {"A=B": "x"}}, "not the name of an environment variable"),
        ({"env": {"A": "x\0y"}}, "NUL"),
        ({"cwd": Path("here")}, "here is not an absolute path"),
        ({"grace_s": -1.0}, "not a length of time"),
        ({"wrokers": 3}, "Extra inputs"),
    ]
    for changes, says in table:
        assert says in refusal(make_spec, **changes), changes


def test_spec_keeps_its_environment() -> None:
    given_env = {"A": "1"}
    spec = make_spec(env=given_env)
    given_env["A"] = "2"
    assert spec.env == {"A": "1"}


def test_masked_spec_has_no_secrets() -> None:
    spec = make_spec(env={"HF_TOKEN": "abc", "PLAIN": "seen", "URL": "http://me:pw@host/x"})
    assert dict(spec.masked().env) == {"HF_TOKEN": "***", "PLAIN": "seen", "URL": "http://***@host/x"}
    assert spec.env["HF_TOKEN"] == "abc"
    for text in (spec.masked().model_dump_json(), json.dumps(document(spec)), "\n".join(lines(spec))):
        assert not re.search("abc|pw", text) and "***" in text and "seen" in text
    secrets = ["A_TOKEN", "client_secret", "PASSWORD", "DB_PASSWD", "API_KEY", "AWS_CREDENTIALS"]
    secrets += ["AUTHORIZATION", "MYSQL_PWD"]
    assert mask_secrets(dict.fromkeys(secrets, "x")) == dict.fromkeys(secrets, "***")


def test_default_name_from_directory() -> None:
    table = {
        "/home/me/mnist": "mnist",
        "/": "run",
        "/a/Mein Ordner!": "Mein-Ordner",
        "/a/.hidden": "hidden",
        "/a/日本": "run",
        "/a/" + "x" * 99: "x" * 63,
    }
    assert {directory: default_name(Path(directory)) for directory in table} == table


@given(st.text(min_size=1, max_size=80).filter(lambda part: "\0" not in part))
def test_default_name_is_always_valid(part: str) -> None:
    make_spec(name=default_name(Path("/") / part.replace("/", "_")))


# -- the document and the lines


def test_documented_fields_are_present() -> None:
    config = document(make_spec(roles={"worker": 2}, network=NetworkOption.PRIVATE))
    assert (config["schema_version"], config["placeholder_ports"]) == (1, True)
    assert config["spec"]["network"] == "private"
    assert [(task["task"], task["role"], task["index"], task["address"]) for task in config["tasks"]] == [
        ("worker:0", "worker", 0, "127.0.0.1:10001"),
        ("worker:1", "worker", 1, "127.0.0.1:10002"),
    ]
    for task in config["tasks"]:
        assert task["argv"] == ["/usr/bin/python3", "t.py"] and task["placeholder_port"] is True
        assert json.loads(task["env"]["TF_CONFIG"]) == task["tf_config"]


def test_plan_differs_from_up_only_in_ports() -> None:
    spec, environ = make_spec(env={"A": "1"}), {"no_proxy": "x"}
    real = build_plan(spec, local_places(["127.0.0.1:10001", "127.0.0.1:10002"]), LAYOUT, 1, environ)
    assert placeholder_plan(spec, LAYOUT, environ) == real


def test_shown_value_is_printable_and_quoted_for_a_shell() -> None:
    for value in ("it's", "a\nb\tc", "\x1b[31mred\\ 'x'\x07", "ü\x9b2J\u2028"):
        line = next(line for line in lines(make_spec(env={"ODD": value})) if "ODD=" in line)
        assert line.isprintable()
        program = f'{line.removeprefix("  env   ")}; printf %s "$ODD"'
        shown = subprocess.run(["bash", "-c", program], capture_output=True, check=True)
        assert shown.stdout.decode() == value


def test_text_output() -> None:
    shown = lines(make_spec(timeout_s=5400.0, env={"ODD": "a b"}))
    assert shown[:8] == [
        "run          job: 2 workers",
        "command      t.py",
        "cwd          /somewhere",
        "time limits  whole run 1h30m, start 2m, stall none",
        "grace        10s, after a failure 500ms",
        "start        spawn: it is not a Python script",
        "threads      1 core for 2 tasks: TensorFlow's own pools, of 1 thread each",
        "ports        placeholders: `orch up` replaces them by free ones",
    ]
    assert "worker:1  127.0.0.1:10002 (placeholder port)" in shown
    assert "  argv  /usr/bin/python3 t.py" in shown
    assert "  env   ODD='a b'" in shown
    tf_config = next(line for line in shown if "TF_CONFIG=" in line)
    (word,) = shlex.split(tf_config.removeprefix("  env   "))
    assert json.loads(word.removeprefix("TF_CONFIG="))["task"]["index"] == 0


def test_changed_defaults_are_shown() -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({"on_failure": "restart"}, "on failure   restart, 3 times at most"),
        (
            {"on_failure": "restart-task", "max_restarts": 9},
            "on failure   restart-task, each task 9 times at most",
        ),
        ({"on_failure": "continue"}, "on failure   continue"),
        ({"memory_limit_bytes": 2 * 10**9}, "memory       2 GB a task at most"),
        ({"network": NetworkOption.PRIVATE}, "network      private: only tasks of this run reach each other"),
    ]
    default = lines(make_spec())
    for options, expected in table:
        assert [line for line in lines(make_spec(**options)) if line not in default] == [expected], options


def test_threads_are_shown() -> None:
    spec, environ = make_spec(threads=3, cores=Cores(2, 2)), {"OMP_NUM_THREADS": "1"}
    assert document(spec, **environ)["cpu_budget"] == {
        "cores": 2.0,
        "tasks": 2,
        "share": 1,
        "threads": 3,
        "env": {INTRA_OP: "3", INTER_OP: "3"},
        "set_already": ["OMP_NUM_THREADS"],
    }
    assert [line for line in lines(spec, **environ) if line.startswith("threads")] == [
        "threads      2 cores for 2 tasks: TF_NUM_INTRAOP_THREADS=3, TF_NUM_INTEROP_THREADS=3;"
        " set already: OMP_NUM_THREADS"
    ]


def test_each_fault_is_shown_with_its_task() -> None:
    spec = make_spec(chaos=parse_chaos("kill any#7 at step 20; stop worker:0 at 30s for 25s"))
    hit = spec.chaos[0].target(["worker:0", "worker:1"])
    assert document(spec)["chaos"] == [
        {"fault": "kill any#7 at step 20", "task": hit},
        {"fault": "stop worker:0 at 30s for 25s", "task": "worker:0"},
    ]
    assert [line for line in lines(spec) if line.startswith("chaos")] == [
        f"chaos        kill any#7 at step 20 ({hit})",
        "chaos        stop worker:0 at 30s for 25s",
    ]


def test_hosts_are_in_the_plan(load_here: Load) -> None:
    spec = load_here(hosts="a:2,[fd00::1]:1", workers=3).spec
    config = document(spec)
    assert [(task["host"], task["address"]) for task in config["tasks"]] == [
        ("a", "a:10001"),
        ("a", "a:10002"),
        ("fd00::1", "[fd00::1]:10003"),
    ]
    assert config["cpu_budget"] is None
    shown = lines(spec)
    assert "host         a:2: 2 tasks" in shown and "host         [fd00::1]:1: 1 task" in shown
    assert "worker:0  a:10001 (placeholder port and address)" in shown


def test_strategy_and_devices_are_shown(load_here: Load) -> None:
    toml = 'workers = 2\nmesh = { batch = 2, model = 2 }\ngpus = "none"\ngpu-memory = "grow"\n'
    spec = load_here(toml).spec
    assert (spec.strategy.strategy, spec.strategy.mesh) == (Strategy.DTENSOR, Mesh(2, 2))
    assert (str(spec.gpus), spec.gpu_memory) == ("none", "grow")
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    spec = load_here("", mesh="batch=2,model=2", workers="2").spec
    config = document(spec)
    assert config["strategy"]["name"] == "dtensor"
    assert config["strategy"]["mesh"] == {"batch": 2, "model": 2}
    assert config["tasks"][1]["devices"] == {"gpus": None, "gpu_memory": None, "logical_cpus": 2}
    shown = lines(spec)
    assert "strategy     dtensor: batch=2,model=2" in shown
    assert shown.count("  uses  2 logical CPU devices") == 2
    assert "  uses  no GPU" in lines(load_here("", gpus="none").spec)


def test_gpus_of_each_task_are_shown(load_here: Load) -> None:
    two = GpuInventory((Gpu("0"), Gpu("1")))
    spec = load_here(workers="2", gpu_memory="2GiB").spec.model_copy(update={"gpu_inventory": two})
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    tasks = document(spec)["tasks"]
    assert [task["devices"]["gpus"] for task in tasks] == [["0"], ["1"]]
    env = tasks[1]["env"]
    assert (env["CUDA_VISIBLE_DEVICES"], env["ORCH_GPU_MEMORY"]) == ("1", str(2 << 30))
    assert "  uses  GPU 1" in lines(spec)
    # orch does not replace a variable of the user, of any role.
    own = spec.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "0,1"}})
    assert document(own)["tasks"][1]["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"
