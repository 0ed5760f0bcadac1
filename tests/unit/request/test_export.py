"""`orch export`: what it renders is valid, and starts the tasks that `orch up` would start."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet
from orch_command import ORCH
from spec_making import MakeSpec

from orchestrator.core.errors import UsageError
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


def exported(directory: Path, *words: str) -> str:
    (directory / "train.py").write_text(_SCRIPT)
    done = run(directory, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(ORCH), "export", "--as-root-anyway", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


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


def objects(directory: Path, *words: str) -> dict[str, Any]:
    """The documents by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(exported(directory, *words))}


@pytest.mark.parametrize(
    "words",
    [
        ("--workers", "3"),
        ("--workers", "2", "--ps", "2", "--evaluator", "--timeout", "1h"),
        (
            "--workers",
            "2",
            "--memory-limit",
            "2GiB",
            "--gpus",
            "per-task 2",
            "-e",
            "API_TOKEN=x",
            "--claim",
            "mine",
        ),
    ],
)
def test_manifests_are_valid(tmp_path: Path, words: tuple[str, ...]) -> None:
    made = objects(tmp_path, "kubernetes", *_IMAGE, *words, "--", "train.py")
    version = kubernetes_validate.latest_version()
    for each in made.values():
        kubernetes_validate.validate(each, version, strict=True)
    set_of_jobs = objects(tmp_path, "jobset", *_IMAGE, *words, "--", "train.py")["JobSet"]
    assert JobsetV1alpha2JobSet.from_dict(set_of_jobs).to_dict() == set_of_jobs
    job = set_of_jobs["spec"]["replicatedJobs"][0]["template"]["spec"]
    kubernetes_validate.validate(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job},
        version,
        strict=True,
    )


def test_pod_starts_its_task(tmp_path: Path) -> None:
    """The files of the ConfigMap, run as a pod runs them."""
    made = objects(
        tmp_path,
        "kubernetes",
        *_IMAGE,
        "-n",
        "3",
        "-e",
        "LEVEL=7",
        "--name",
        "My.job",
        "--",
        "train.py",
        "--lr",
        "1",
    )
    files = tmp_path / "orch"
    files.mkdir()
    for name, text in made["ConfigMap"]["data"].items():
        text = text.replace('"/checkpoints"', json.dumps(str(tmp_path / "checkpoints")))
        text = text.replace("/tmp/orch", str(tmp_path / "scratch"))
        (files / name).write_text(text.replace('"python3"', json.dumps(sys.executable)))
    for name, text in made["ConfigMap"]["binaryData"].items():
        (files / name).write_bytes(base64.b64decode(text))
    done = started(files, 1)
    assert done.returncode == 3, done.stderr
    seen = json.loads(done.stdout)
    assert seen["argv"] == ["--lr", "1"]
    assert (seen["ORCH_TASK"], seen["LEVEL"]) == ("worker:1", "7")
    assert seen["ORCH_CHECKPOINT_DIR"] == str(tmp_path / "checkpoints")
    assert json.loads(seen["TF_CONFIG"]) == {
        "cluster": {"worker": [f"my-job-{index}.my-job:2222" for index in range(3)]},
        "task": {"type": "worker", "index": 1},
    }
    assert seen["bootstrap"]
    job = made["Job"]["spec"]
    assert (job["completions"], job["completionMode"], job["backoffLimit"]) == (3, "Indexed", 0)
    assert made["Service"]["spec"]["publishNotReadyAddresses"] is True


def test_built_in_program_travels(tmp_path: Path) -> None:
    made = objects(tmp_path, "kubernetes", *_IMAGE, "-n", "2")
    files = tmp_path / "orch"
    files.mkdir()
    (files / "start.py").write_text(made["ConfigMap"]["data"]["start.py"])
    (files / "bundle.zip").write_bytes(base64.b64decode(made["ConfigMap"]["binaryData"]["bundle.zip"]))
    job = json.loads(made["ConfigMap"]["data"]["job.json"])
    for task in job["tasks"]:
        task["argv"] = [sys.executable, *task["argv"][1:], "--help"]
        for name in ("ORCH_CHECKPOINT_DIR", "ORCH_SCRATCH_DIR"):
            task["env"][name] = str(tmp_path / name)
        task["bootstrap"] = None
    (files / "job.json").write_text(json.dumps(job))
    done = started(files, 0)
    assert done.returncode == 0, done.stderr
    assert "--epochs" in done.stdout


def test_secrets_are_not_written(tmp_path: Path) -> None:
    text = exported(tmp_path, "kubernetes", *_IMAGE, "-e", "API_TOKEN=hush", "--name", "j", "--", "train.py")
    assert "hush" not in text
    assert "j-env" in text


def test_only_the_tasks_that_count_decide(tmp_path: Path) -> None:
    """Parameter servers never exit: the chief and the evaluator end the job."""
    made = objects(
        tmp_path, "kubernetes", *_IMAGE, "--workers", "2", "--ps", "1", "--evaluator", "--", "train.py"
    )
    tasks = json.loads(made["ConfigMap"]["data"]["job.json"])["tasks"]
    waited = made["Job"]["spec"]["successPolicy"]["rules"][0]["succeededIndexes"]
    assert [tasks[int(index)]["type"] for index in waited.split(",")] == ["chief", "evaluator"]


def test_restarts_need_a_job_set(tmp_path: Path) -> None:
    words = ("--max-restarts", "2", *_IMAGE, "--", "train.py")
    (tmp_path / "train.py").write_text(_SCRIPT)
    refused = run(tmp_path, "kubernetes", *words)
    assert refused.returncode == 2
    assert "orch export jobset" in refused.stderr
    made = objects(tmp_path, "jobset", *words)
    assert made["JobSet"]["spec"]["failurePolicy"]["maxRestarts"] == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("kubernetes",), "--image: name the container"),
        (("slurm",), "how many nodes? write --nodes 3"),
        (("slurm", "--nodes", "1", "-e", "API_TOKEN=x"), "a secret does not belong in a file"),
        (("nomad",), "nomad"),
        (("slurm", "--nodes", "1", "-o", "/no/such/file"), "cannot be written"),
        (
            ("slurm", "--nodes", "1", "--slurm", "'--comment=a\nb'"),
            "--comment: a batch script cannot pass the line break",
        ),
    ],
)
def test_bad_request_is_refused(tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    refused = run(tmp_path, *words, "--", "train.py")
    assert refused.returncode == 2
    assert text in refused.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--workers", "4", "--nodes", "2", "--gpus", "per-task 2"), ["--gpus-per-node=4"]),
        (("--workers", "4", "--tasks-per-host", "1", "--gpus", "per-task 2"), ["--gpus-per-node=2"]),
        (("--workers", "2", "--nodes", "2", "--gpus", "0,1"), ["--gpus-per-node=2"]),
        (("--workers", "2", "--nodes", "2", "--gpus", "none"), []),
        (("--workers", "2", "--nodes", "2"), []),
        (("--workers", "2", "--nodes", "2", "--gpus", "0", "--slurm", "--gres=gpu:8"), ["--gres=gpu:8"]),
        (("--workers", "1..2", "--nodes", "2"), ["--no-kill"]),
    ],
)
def test_allocation_has_the_gpus_and_survives_a_node(
    tmp_path: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    lines = exported(tmp_path, "slurm", *words, "--", "train.py").splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert [each for each in options if each.startswith(("--g", "--no-kill"))] == expected


def test_script_quotes_what_sbatch_would_split(tmp_path: Path) -> None:
    """sbatch reads its lines as a shell does: with quotes, and with comments."""
    place = tmp_path / "a b#c'd"
    place.mkdir()
    text = exported(place, "slurm", "--nodes", "1", "--slurm", "'--comment=x  y'", "--", "train.py", "p q")
    lines = [shlex.split(line, comments=True) for line in text.replace("#SBATCH", "sbatch").splitlines()]
    assert ["sbatch", f"--chdir={place}"] in lines
    assert ["sbatch", "--comment=x  y"] in lines
    assert lines[-1][-2:] == ["train.py", "p q"]


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (Cluster("a:1", namespace="My NS"), "--namespace: Kubernetes does not accept 'My NS'"),
        (Cluster("a:1", claim="a..b"), "--claim: Kubernetes does not accept 'a..b'"),
        (
            Cluster("a:1", storage="10GB"),
            "--storage: Kubernetes does not accept '10GB'; write a size such as 10Gi",
        ),
        (Cluster(""), "--image: Kubernetes does not accept ''"),
        (Cluster("a b"), "--image: Kubernetes does not accept 'a b'"),
    ],
)
def test_name_that_kubernetes_does_not_accept_is_refused(
    make_spec: MakeSpec, cluster: Cluster, text: str
) -> None:
    for made in (kubernetes_job, job_set):
        with pytest.raises(UsageError, match=re.escape(text)):
            made(make_spec(), cluster)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"gpus": GpuChoice(GpuWay.NAMED, ("0", "1"))},
            '--gpus 0,1: Kubernetes chooses the GPUs of a pod; write their number: --gpus "per-task 1"',
        ),
        (
            {
                "roles": {"worker": 1, "ps": 1},
                "role_settings": {"worker": RoleSettings(gpus=GpuChoice(GpuWay.PER_TASK, each=2))},
            },
            "--gpus: all pods of a job have the same number of GPUs, not worker 2, ps 0",
        ),
        ({"roles": {"worker": 4000}, "name": "n" * 40}, "TF_CONFIG of 4,000 tasks has "),
        ({"roles": {"worker": 1000}, "env": {"TEXT": "x" * 1000}}, "the files of 1,000 tasks have "),
    ],
)
def test_job_that_kubernetes_cannot_hold_is_refused(
    make_spec: MakeSpec, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        kubernetes_job(make_spec(**options), Cluster("a:1"))


def test_options_are_fields_of_the_job(make_spec: MakeSpec) -> None:
    options = {"grace_s": 45.0, "timeout_s": 3600.0, "memory_limit_bytes": 1 << 30}
    two_each = {"worker": RoleSettings(gpus=GpuChoice(GpuWay.PER_TASK, each=2))}
    spec = make_spec(roles={"worker": 3}, role_settings=two_each, **options)
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


def test_nodes_have_the_gpus_of_the_role_that_needs_most(make_spec: MakeSpec) -> None:
    two_each = {"worker": RoleSettings(gpus=GpuChoice(GpuWay.PER_TASK, each=2))}
    spec = make_spec(roles={"worker": 2, "ps": 1}, role_settings=two_each, nodes=3)
    assert "--gpus-per-node=2" in allocation_words(spec)


def test_longest_name_leaves_room_for_the_names_of_pods(make_spec: MakeSpec) -> None:
    """JobSet refuses a pod whose name, NAME-task-0-INDEX-xxxxx, is longer than a DNS label."""
    name = job_set(make_spec(name="9" * 63), Cluster("a:1"))[-1]["metadata"]["name"]
    assert name[0].isalpha()
    assert len(f"{name}-task-0-1999-abcde") <= 63
