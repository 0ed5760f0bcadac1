"""--strategy and its options: the tasks that follow from it, their variables, and refused combinations."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_making import Load

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.gpus import Gpu, GpuInventory
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import Mesh, parse_device
from orchestrator.request.settings.config_document import config_document, config_lines, placeholder_plan
from orchestrator.store.runs.paths import RunPaths

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = RunPaths(Path("/state/job-1"))


def env_of(spec: JobSpec, task: str, **environ: str) -> dict[str, str]:
    plan = placeholder_plan(spec, LAYOUT, environ)
    return next(dict(each.env) for each in plan.tasks if str(each.task) == task)


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ({"strategy": "multi-worker-mirrored", "workers": "3"}, {"worker": 3}),
        ({"strategy": "mirrored"}, {"worker": 1}),
        ({"strategy": "one-device", "workers": "1"}, {"worker": 1}),
        ({"strategy": "Central-Storage"}, {"worker": 1}),
        ({"strategy": "one_device"}, {"worker": 1}),
        ({"strategy": "parameter-server"}, {"chief": 1, "worker": 2, "ps": 1}),
        ({"strategy": "parameter-server", "workers": "3", "ps": "2"}, {"chief": 1, "worker": 3, "ps": 2}),
        ({"strategy": "mirrored", "evaluator": True}, {"worker": 1, "evaluator": 1}),
        ({"mesh": "batch=2,model=2", "workers": "4"}, {"worker": 4}),
    ],
)
def test_strategy_decides_the_roles(load_here: Load, flags: dict[str, object], roles: dict[str, int]) -> None:
    assert dict(load_here(**flags).spec.roles) == roles


def test_counts_of_the_file_replace_those_of_the_strategy(load_here: Load) -> None:
    spec = load_here("[roles.worker]\ncount = 1\n", strategy="parameter-server").spec
    assert dict(spec.roles) == {"chief": 1, "worker": 1, "ps": 1}


@pytest.mark.parametrize("strategy", ["mirrored", "one-device", "central-storage", "tpu"])
def test_strategy_of_one_process_refuses_more(load_here: Load, strategy: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^--workers: {strategy} runs as one process, since .*; .*--strategy multi"
    ):
        load_here(strategy=strategy, workers="2")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"replicas": "2"},
            r"^--replicas: .* a script without --strategy does not use; add --strategy mirrored or",
        ),
        ({"replicas": "2", "strategy": "one-device"}, "which one-device does not use"),
        ({"replicas": "65", "strategy": "mirrored"}, "between 1 and 64, not 65"),
        ({"replicas": "0", "strategy": "mirrored"}, "between 1 and 64, not 0"),
        ({"device": "GPU:0", "strategy": "mirrored"}, "^--device: .*add --strategy one-device"),
        ({"device": "CPU:1", "strategy": "one-device"}, "one CPU device, CPU:0"),
        ({"device": "GPU:0", "strategy": "one-device"}, "^--device: there is no GPU:0"),
        ({"tpu": "mine", "strategy": "mirrored"}, "^--tpu: .*add --strategy tpu"),
        ({"mesh": "batch=2", "strategy": "mirrored"}, "^--mesh: .*add --strategy dtensor"),
        ({"communication": "ring", "strategy": "dtensor"}, "^--communication: .*add --strategy multi-worker"),
        (
            {"communication": "nccl", "strategy": "multi-worker-mirrored"},
            "^--communication: NCCL sums on GPUs",
        ),
        ({"strategy": "dtensor"}, "^--strategy: dtensor needs a mesh"),
        ({"mesh": "batch=3", "workers": "2"}, "^--workers: .*3 devices.* use --workers 1 or 3"),
        ({"mesh": "batch=2,depth=2"}, "^--mesh: .*is not a mesh; write batch=2,model=2"),
        ({"mesh": "batch=0"}, "batch must be a whole number from 1 to 1024"),
        ({"strategy": "horovod"}, "^--strategy: .*is not known; write multi-worker-mirrored, "),
        ({"strategy": "mirrored", "ps": "1"}, "^--ps: mirrored has no parameter servers"),
        (
            {"strategy": "parameter-server", "chief": "worker0"},
            "^--chief: parameter-server has a chief of its own",
        ),
        ({"gpus": "0"}, "^--gpus: there is no GPU 0: this machine has no NVIDIA GPU"),
        ({"gpus": 1}, 'write "1" or "per-task 1"'),
        ({"gpu_memory": "much"}, "^--gpu-memory: .*is not a size"),
        ({"gpu_memory": "4"}, "^--gpu-memory: .*too little to train in"),
    ],
)
def test_contradicting_options_are_refused(load_here: Load, flags: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_here(**flags)


def test_contradiction_names_its_source(load_here: Load) -> None:
    with pytest.raises(UsageError, match=r"^ORCH_REPLICAS: "):
        load_here(environ={"ORCH_REPLICAS": "2"})
    with pytest.raises(UsageError, match=r"^orch.toml, line 2: workers: mirrored runs as one process"):
        load_here('strategy = "mirrored"\nworkers = 2\n')
    with pytest.raises(UsageError, match=r"^orch.toml, line 2: gpus of worker: there is no GPU 7"):
        load_here('[roles.worker]\ngpus = "7"\n')


def test_strategy_options_are_read_from_the_file(load_here: Load) -> None:
    spec = load_here(
        'workers = 2\nmesh = { batch = 2, model = 2 }\ngpus = "none"\ngpu-memory = "grow"\n'
    ).spec
    assert (spec.strategy.strategy, spec.strategy.mesh) == (Strategy.DTENSOR, Mesh(2, 2))
    assert (str(spec.gpus), spec.gpu_memory) == ("none", "grow")
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_tasks_get_the_given_options_only(load_here: Load) -> None:
    env = env_of(load_here(strategy="mirrored", replicas="2").spec, "worker:0")
    assert (env["ORCH_STRATEGY"], env["ORCH_REPLICAS"], env["CUDA_VISIBLE_DEVICES"]) == (
        "mirrored",
        "2",
        "-1",
    )
    said_nothing = env_of(load_here().spec, "worker:0")
    assert not {
        name for name in said_nothing if name.startswith(("ORCH_STRATEGY", "ORCH_RE", "CUDA", "DTENSOR"))
    }


def test_mesh_sets_the_variables_of_dtensor(load_here: Load) -> None:
    env = env_of(load_here(mesh="batch=2,model=2", workers="2").spec, "worker:1")
    assert {
        name: env[name] for name in env if name.startswith(("DTENSOR", "ORCH_MESH", "ORCH_STRATEGY"))
    } == {
        "ORCH_STRATEGY": "dtensor",
        "ORCH_MESH": "batch=2,model=2",
        "DTENSOR_CLIENT_ID": "1",
        "DTENSOR_NUM_CLIENTS": "2",
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": "127.0.0.1:10001,127.0.0.1:10002",
    }


def test_tpu_name_is_set(load_here: Load) -> None:
    env = env_of(load_here(strategy="tpu", tpu="mine").spec, "worker:0", TPU_NAME="another")
    assert (env["ORCH_TPU"], env["TPU_NAME"]) == ("mine", "mine")
    assert "TPU_NAME" not in env_of(load_here(strategy="tpu", tpu="local").spec, "worker:0")


def test_variables_of_an_outer_run_are_emptied(load_here: Load) -> None:
    outer = {
        "ORCH_RUN_ID": "outer",
        "ORCH_STRATEGY": "dtensor",
        "ORCH_MESH": "batch=4",
        "DTENSOR_JOBS": "a:1",
        "ORCH_TENSORBOARD_DIR": "/outer/tensorboard",
    }
    spec = load_here(environ=outer).spec
    assert spec.strategy.strategy is None
    env = env_of(spec, "worker:0", **outer)
    assert (env["ORCH_STRATEGY"], env["ORCH_MESH"], env["ORCH_TENSORBOARD_DIR"]) == ("", "", "")
    assert (env["DTENSOR_JOBS"], env["DTENSOR_CLIENT_ID"]) == ("", "0")


def test_variable_of_the_user_is_kept(load_here: Load) -> None:
    spec = load_here(gpus="none", env=["CUDA_VISIBLE_DEVICES=5"]).spec
    assert env_of(spec, "worker:0")["CUDA_VISIBLE_DEVICES"] == "5"


def test_strategy_of_one_process_starts_no_server(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow\n")
    assert load_here(command=["train.py"]).spec.serves("worker")
    assert not load_here(command=["train.py"], strategy="mirrored").spec.serves("worker")


def test_plan_shows_strategy_and_devices(load_here: Load) -> None:
    spec = load_here(mesh="batch=2,model=2", workers="2").spec
    plan = placeholder_plan(spec, LAYOUT, {})
    document = json.loads(json.dumps(config_document(spec, plan)))
    assert document["strategy"]["name"] == "dtensor"
    assert document["strategy"]["mesh"] == {"batch": 2, "model": 2}
    assert document["tasks"][1]["devices"] == {"gpus": None, "gpu_memory": None, "logical_cpus": 2}
    lines = config_lines(spec, plan)
    assert "strategy     dtensor: batch=2,model=2" in lines
    assert lines.count("  uses  2 logical CPU devices") == 2
    hidden = load_here(gpus="none").spec
    assert "  uses  no GPU" in config_lines(hidden, placeholder_plan(hidden, LAYOUT, {}))


def test_gpus_are_split_among_the_tasks(load_here: Load) -> None:
    two = GpuInventory((Gpu("0"), Gpu("1")))
    spec = load_here(workers="2", gpu_memory="2GiB").spec.model_copy(update={"gpu_inventory": two})
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    env = env_of(spec, "worker:1")
    assert (env["CUDA_VISIBLE_DEVICES"], env["ORCH_GPU_MEMORY"]) == ("1", str(2 << 30))
    plan = placeholder_plan(spec, LAYOUT, {})
    assert "  uses  GPU 1" in config_lines(spec, plan)
    document = json.loads(json.dumps(config_document(spec, plan)))
    assert [task["devices"]["gpus"] for task in document["tasks"]] == [["0"], ["1"]]
    # orch does not replace a variable of the user, of any role.
    own = spec.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "0,1"}})
    assert env_of(own, "worker:1")["CUDA_VISIBLE_DEVICES"] == "0,1"


@given(st.integers(1, 32), st.integers(1, 32))
def test_shown_mesh_can_be_read_back(batch: int, model: int) -> None:
    assert Mesh.parse(str(Mesh(batch, model))) == Mesh(batch, model)


@pytest.mark.parametrize(
    ("text", "device"),
    [("cpu:0", "CPU:0"), ("/gpu:1", "GPU:1"), ("/device:GPU:12", "GPU:12"), ("GPU:01", "GPU:1")],
)
def test_device_is_read(text: str, device: str) -> None:
    assert parse_device(text) == device


def test_strategies_have_one_spelling_in_messages_and_documentation() -> None:
    """Users see the words of `--strategy`, or the name of TensorFlow's class."""
    variants = "|".join(_other_spellings(name) for name in Strategy if "-" in name)
    # Files of examples, modules and functions of Python keep their underscores.
    other = re.compile(rf"(?<![\w./])(?:{variants})(?!Strategy|[\w(|\\]|\.py|/)")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "mkdocs.yml"]
    found = [f"{path}: {word}" for path in pages for word in other.findall(path.read_text())]
    for path in (*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("worker/**/*.py")):
        texts = (
            node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
        )
        found += [
            f"{path}: {word}" for text in texts if isinstance(text, str) for word in other.findall(text)
        ]
    assert found == []


def _other_spellings(name: str) -> str:
    """`one_device|OneDevice`"""
    return f"{name.replace('-', '_')}|{''.join(part.title() for part in name.split('-'))}"
