"""`orch export`: what it renders is valid, and starts the tasks that `orch up` would start."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from orch_within import run_within
from spec_making import make_spec, refusal

from orchestrator.core.job.gpus import GpuChoice, GpuWay
from orchestrator.core.job.spec import RoleSettings
from orchestrator.request.export.batch_script import allocation_words
from orchestrator.request.export.manifests import Cluster, job_set, kubernetes_job

_SCRIPT = """
import json, os, sys
names = ("TF_CONFIG", "ORCH_TASK", "ORCH_CHECKPOINT_DIR", "LEVEL")
bootstrap = any(name.endswith("bootstrap.install") for name in sys.modules)
print(json.dumps({"argv": sys.argv[1:], "bootstrap": bootstrap, **{name: os.environ.get(name) for name in names}}))
sys.exit(3)
"""
_IMAGE = ("--image", "registry.example/train:1")
_TWO_EACH = {"worker": RoleSettings(gpus=GpuChoice(GpuWay.PER_TASK, each=2))}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of a script."""
    directory = tmp_path / "a b#c'd"
    directory.mkdir()
    (directory / "train.py").write_text(_SCRIPT)
    return directory


def export(directory: Path, *words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr."""
    traces = directory.parent / "export"
    code = run_within(("export", "--as-root-anyway", *words), directory, dict(os.environ), traces)
    return code, *(traces.with_suffix(end).read_text() for end in (".out", ".err"))


def exported(directory: Path, *words: str) -> str:
    code, out, err = export(directory, *words)
    assert code == 0, err
    return out


def objects(directory: Path, *words: str) -> dict[str, Any]:
    """The documents by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(exported(directory, *words))}


def write_files(directory: Path, config_map: dict[str, Any]) -> Path:
    """Write the files of a ConfigMap, with places and a Python of this machine."""
    files = directory / "orch"
    files.mkdir()
    for name, text in config_map["data"].items():
        text = text.replace('"/checkpoints"', json.dumps(str(directory / "checkpoints")))
        text = text.replace("/tmp/orch", str(directory / "scratch"))
        (files / name).write_text(text.replace('"python3"', json.dumps(sys.executable)))
    for name, text in config_map["binaryData"].items():
        (files / name).write_bytes(base64.b64decode(text))
    return files


def started(files: Path, index: int) -> subprocess.CompletedProcess[str]:
    """Run the program of the ConfigMap as the pod with this index."""
    return subprocess.run(
        [sys.executable, str(files / "start.py")],
        cwd=files.parent,
        env={"JOB_COMPLETION_INDEX": str(index), "PATH": "/usr/bin:/bin", "TMPDIR": str(files.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


# -- Kubernetes


def test_manifests_are_valid(here: Path) -> None:
    # Imported here: at the top, each test process would import these schemas, which takes longer than 1 s.
    import kubernetes_validate
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    version = kubernetes_validate.latest_version()
    full = "--workers 2 --memory-limit 2GiB --gpus per-task=2 -e API_TOKEN=x --claim mine"
    for words in ("--workers 3", "--workers 2 --ps 2 --evaluator --timeout 1h", full):
        rest = (*_IMAGE, *words.split(), "--", "train.py")
        for each in objects(here, "kubernetes", *rest).values():
            kubernetes_validate.validate(each, version, strict=True)
        set_of_jobs = objects(here, "jobset", *rest)["JobSet"]
        assert JobsetV1alpha2JobSet.from_dict(set_of_jobs).to_dict() == set_of_jobs
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "x"},
            "spec": _job_of(set_of_jobs),
        }
        kubernetes_validate.validate(job, version, strict=True)


def test_pod_starts_its_task(here: Path) -> None:
    """The files of the ConfigMap, run as a pod runs them."""
    words = "-n 3 -e LEVEL=7 --name My.job -- train.py --lr 1"
    made = objects(here, "kubernetes", *_IMAGE, *words.split())
    done = started(write_files(here, made["ConfigMap"]), 1)
    assert done.returncode == 3, done.stderr
    seen = json.loads(done.stdout)
    assert seen["argv"] == ["--lr", "1"]
    assert (seen["ORCH_TASK"], seen["LEVEL"]) == ("worker:1", "7")
    assert seen["ORCH_CHECKPOINT_DIR"] == str(here / "checkpoints")
    assert json.loads(seen["TF_CONFIG"]) == {
        "cluster": {"worker": [f"my-job-{index}.my-job:2222" for index in range(3)]},
        "task": {"type": "worker", "index": 1},
    }
    assert seen["bootstrap"]
    job = made["Job"]["spec"]
    assert (job["completions"], job["completionMode"], job["backoffLimit"]) == (3, "Indexed", 0)
    assert made["Service"]["spec"]["publishNotReadyAddresses"] is True


def test_example_travels(here: Path) -> None:
    made = objects(here, "kubernetes", *_IMAGE, "-n", "2", "--", "--help")["ConfigMap"]
    done = started(write_files(here, made), 0)
    assert done.returncode == 0, done.stderr
    assert "--epochs" in done.stdout


def test_secrets_are_not_written(here: Path) -> None:
    text = exported(here, "kubernetes", *_IMAGE, "-e", "API_TOKEN=hush", "--name", "j", "--", "train.py")
    assert "hush" not in text
    assert "j-env" in text


def test_only_the_tasks_that_count_decide(here: Path) -> None:
    """Parameter servers never exit: the chief and the evaluator end the job."""
    words = ("--workers", "2", "--ps", "1", "--evaluator", "--", "train.py")
    made = objects(here, "kubernetes", *_IMAGE, *words)
    tasks = json.loads(made["ConfigMap"]["data"]["job.json"])["tasks"]
    waited = made["Job"]["spec"]["successPolicy"]["rules"][0]["succeededIndexes"]
    assert [tasks[int(index)]["type"] for index in waited.split(",")] == ["chief", "evaluator"]


def test_restarts_need_a_job_set(here: Path) -> None:
    words = ("--max-restarts", "2", *_IMAGE, "--", "train.py")
    code, _, err = export(here, "kubernetes", *words)
    assert code == 2 and "orch export jobset" in err
    made = objects(here, "jobset", *words)
    assert made["JobSet"]["spec"]["failurePolicy"]["maxRestarts"] == 2


def test_options_are_fields_of_the_job() -> None:
    options = {"grace_s": 45.0, "timeout_s": 3600.0, "memory_limit_bytes": 1 << 30}
    spec = make_spec(roles={"worker": 3}, role_settings=_TWO_EACH, **options)
    claim, _, job_set_object = job_set(spec, Cluster("a:1", storage="7Gi"))
    for job in (kubernetes_job(spec, Cluster("a:1"))[-1]["spec"], _job_of(job_set_object)):
        pod = job["template"]["spec"]
        assert (job["completions"], job["activeDeadlineSeconds"]) == (3, 3600)
        assert pod["terminationGracePeriodSeconds"] == 45
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2, "memory": str(1 << 30)}
        assert {"persistentVolumeClaim": {"claimName": "job"}, "name": "checkpoints"} in pod["volumes"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "7Gi"


def _job_of(job_set_object: dict[str, Any]) -> dict[str, Any]:
    (jobs,) = job_set_object["spec"]["replicatedJobs"]
    job = jobs["template"]["spec"]
    assert isinstance(job, dict)
    return job


def test_longest_name_leaves_room_for_the_names_of_pods() -> None:
    """JobSet refuses a pod whose name, NAME-task-0-INDEX-xxxxx, is longer than a DNS label."""
    name = job_set(make_spec(name="9" * 63), Cluster("a:1"))[-1]["metadata"]["name"]
    assert name[0].isalpha()
    assert len(f"{name}-task-0-1999-abcde") <= 63


# -- refusals


def test_bad_request_is_refused(here: Path) -> None:
    comment = "--comment: a batch script cannot pass the line break"
    table: dict[tuple[str, ...], str] = {
        ("kubernetes",): "--image: name the container",
        ("slurm",): "how many nodes? write --nodes 3",
        ("slurm", "--nodes", "1", "-e", "API_TOKEN=x"): "a secret does not belong in a file",
        ("nomad",): "nomad",
        ("slurm", "--nodes", "1", "-o", "/no/such/file"): "cannot be written",
        ("slurm", "--nodes", "1", "--slurm", "'--comment=a\nb'"): comment,
    }
    for words, text in table.items():
        code, _, err = export(here, *words, "--", "train.py")
        assert code == 2 and text in err, words


def test_name_that_kubernetes_does_not_accept_is_refused() -> None:
    table = {
        Cluster("a:1", namespace="My NS"): "--namespace: Kubernetes does not accept 'My NS'",
        Cluster("a:1", claim="a..b"): "--claim: Kubernetes does not accept 'a..b'",
        Cluster(
            "a:1", storage="10GB"
        ): "--storage: Kubernetes does not accept '10GB'; write a size such as 10Gi",
        Cluster(""): "--image: Kubernetes does not accept ''",
        Cluster("a b"): "--image: Kubernetes does not accept 'a b'",
    }
    for cluster, text in table.items():
        for render in (kubernetes_job, job_set):
            assert text in refusal(render, make_spec(), cluster), cluster


def test_job_that_kubernetes_cannot_hold_is_refused() -> None:
    table: list[tuple[dict[str, Any], str]] = [
        (
            {"gpus": GpuChoice(GpuWay.NAMED, ("0", "1"))},
            "--gpus 0,1: Kubernetes chooses the GPUs of a pod; write",
        ),
        (
            {"roles": {"worker": 1, "ps": 1}, "role_settings": _TWO_EACH},
            "have the same number of GPUs, not worker 2, ps",
        ),
        ({"roles": {"worker": 4000}, "name": "n" * 40}, "TF_CONFIG of 4,000 tasks has "),
        ({"roles": {"worker": 1000}, "env": {"TEXT": "x" * 1000}}, "the files of 1,000 tasks have "),
    ]
    for options, text in table:
        assert text in refusal(kubernetes_job, make_spec(**options), Cluster("a:1")), text


# -- Slurm


def test_allocation_has_the_gpus_and_survives_a_node(here: Path) -> None:
    table = {
        "--workers 4 --nodes 2 --gpus per-task=2": ["--gpus-per-node=4"],
        "--workers 4 --tasks-per-host 1 --gpus per-task=2": ["--gpus-per-node=2"],
        "--workers 2 --nodes 2 --gpus 0,1": ["--gpus-per-node=2"],
        "--workers 2 --nodes 2 --gpus none": [],
        "--workers 2 --nodes 2": [],
        "--workers 2 --nodes 2 --gpus 0 --slurm --gres=gpu:8": ["--gres=gpu:8"],
        "--workers 1..2 --nodes 2": ["--no-kill"],
    }
    for words, options in table.items():
        lines = exported(here, "slurm", *words.split(), "--", "train.py").splitlines()
        found = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
        assert [each for each in found if each.startswith(("--g", "--no-kill"))] == options, words


def test_nodes_have_the_gpus_of_the_role_that_needs_most() -> None:
    spec = make_spec(roles={"worker": 2, "ps": 1}, role_settings=_TWO_EACH, nodes=3)
    assert "--gpus-per-node=2" in allocation_words(spec)


def test_script_quotes_what_sbatch_would_split(here: Path) -> None:
    """sbatch reads its lines as a shell does: with quotes, and with comments."""
    text = exported(here, "slurm", "--nodes", "1", "--slurm", "'--comment=x  y'", "--", "train.py", "p q")
    lines = [shlex.split(line, comments=True) for line in text.replace("#SBATCH", "sbatch").splitlines()]
    assert ["sbatch", f"--chdir={here}"] in lines
    assert ["sbatch", "--comment=x  y"] in lines
    assert lines[-1][-2:] == ["train.py", "p q"]
