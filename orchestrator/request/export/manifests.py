"""Manifests for Kubernetes: a Job with an index for each task, or a JobSet, which can restart all tasks."""

from __future__ import annotations

import base64
import io
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.gpus import GpuInventory, GpuWay
from orchestrator.core.job.spec import CommandKind, JobSpec
from orchestrator.core.job.tf_config import EVALUATOR, PS, TFConfigTooLong
from orchestrator.core.plan.places import TaskPlace
from orchestrator.core.plan.plan import argv_elsewhere, build_plan
from orchestrator.core.text.counted import counted
from orchestrator.core.text.secrets import is_secret_name
from orchestrator.links.bundle import bundle
from orchestrator.store.runs.paths import RunPaths

_PORT = 2222
_FILES = "/orch"
_CHECKPOINTS = "/checkpoints"
_SCRATCH = "/tmp/orch"
# The name of a pod is a DNS label of at most 63 characters: NAME-task-0-INDEX-xxxxx in a JobSet.
_LONGEST_NAME = 40
# Bytes that Kubernetes allows for all files of a ConfigMap together.
_MOST_BYTES = 1 << 20
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_QUANTITY = re.compile(r"\d{1,15}(\.\d{1,3})?([kMGTPE]|[KMGTPE]i|e\d{1,2})?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", re.ASCII)
# A task needs these parts of what orch sends to hosts.
_PARTS = ("worker/__init__.py", "worker/bootstrap/")
_EXAMPLES = "worker/examples/"
_UNSET = ("TF_GRPC_REUSE_PORT", "ORCH_RUN_DIR")


@dataclass(frozen=True)
class Cluster:
    """The cluster's part: the container's `image`, and a volume claim that exists, or the size of a new one."""

    image: str
    namespace: str | None = None
    claim: str | None = None
    storage: str = "10Gi"

    def check(self) -> None:
        """Raise UsageError for a value that Kubernetes does not accept."""
        for option, value, form, example in (
            ("--image", self.image, _IMAGE, "an image such as registry.example/train:1"),
            ("--namespace", self.namespace, _LABEL, "a name of a-z, 0-9 and -"),
            ("--claim", self.claim, _SUBDOMAIN, "a name of a-z, 0-9, - and ."),
            ("--storage", self.storage, _QUANTITY, "a size such as 10Gi"),
        ):
            if value is not None and form.fullmatch(value) is None:
                raise UsageError(f"{option}: Kubernetes does not accept {value!r}; write {example}")


def kubernetes_job(spec: JobSpec, cluster: Cluster) -> list[dict[str, Any]]:
    """Return the objects of an Indexed Job. UsageError if Kubernetes cannot do what the job asks for."""
    _require_possible(spec, cluster)
    if spec.on_failure is not FailurePolicy.ABORT:
        raise UsageError(
            f"--on-failure {spec.on_failure}: a Job of Kubernetes restarts tasks one by one, which TensorFlow does not"
            " survive; `orch export jobset` restarts them all"
        )
    name = object_name(spec)
    hosts = [f"{name}-{index}.{name}" for index in range(len(spec.tasks))]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(name, cluster),
        "spec": _job(spec, name, cluster),
    }
    return [_service(name, cluster), *_common(spec, name, hosts, cluster), job]


def job_set(spec: JobSpec, cluster: Cluster) -> list[dict[str, Any]]:
    """Return the objects of a JobSet, which restarts all tasks up to --max-restarts times."""
    _require_possible(spec, cluster)
    name = object_name(spec)
    hosts = [f"{name}-task-0-{index}.{name}" for index in range(len(spec.tasks))]
    restarts = spec.max_restarts if spec.on_failure is FailurePolicy.RESTART else 0
    job = _job(spec, name, cluster)
    del job["template"]["spec"]["subdomain"]
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _meta(name, cluster),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
            "failurePolicy": {"maxRestarts": restarts},
            "replicatedJobs": [{"name": "task", "replicas": 1, "template": {"spec": job}}],
        },
    }
    return [*_common(spec, name, hosts, cluster), job_set]


def _require_possible(spec: JobSpec, cluster: Cluster) -> None:
    cluster.check()
    if spec.fewest_workers is not None:
        raise UsageError(
            f"--workers {spec.fewest_workers}..{spec.workers}: the manifests have one number of pods; write one number"
        )


def yaml_text(objects: list[dict[str, Any]]) -> str:
    """Return YAML documents. Texts are quoted as in JSON, which YAML understands."""
    return "".join("---\n" + "\n".join(_yaml_lines(each)) + "\n" for each in objects)


def secret_names(spec: JobSpec) -> list[str]:
    """The variables whose values are taken from a Secret, because their names look like secrets."""
    names = {name for role in spec.roles for name in spec.env_of(role) if is_secret_name(name)}
    return sorted(names)


def _yaml_lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        lines = []
        for key, item in value.items():
            below = _yaml_lines(item)
            if isinstance(item, str) and _is_block(item):
                lines += [f"{_scalar(key)}: |", *(f"  {line}" for line in item.splitlines())]
            elif isinstance(item, dict | list) and item:
                lines += [f"{_scalar(key)}:", *(f"  {line}" for line in below)]
            else:
                lines.append(f"{_scalar(key)}: {below[0]}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            first, *rest = _yaml_lines(item)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _is_block(text: str) -> bool:
    """Whether a text can be written as lines without quotes."""
    lines = text.split("\n")
    return len(lines) > 2 and not lines[-1] and all(line.isprintable() for line in lines) and text[0] > " "


def _scalar(value: Any) -> str:
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", value) is not None
    reserved = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    return str(value) if is_plain and str(value).lower() not in reserved else json.dumps(value)


def object_name(spec: JobSpec) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-")
    return (name if name[:1].isalpha() else f"orch-{name}")[:_LONGEST_NAME].strip("-")


def _meta(name: str, cluster: Cluster) -> dict[str, Any]:
    namespace = {} if cluster.namespace is None else {"namespace": cluster.namespace}
    return {"name": name, **namespace, "labels": _labels(name)}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "orch"}


def _service(name: str, cluster: Cluster) -> dict[str, Any]:
    """Each pod gets a name in DNS, from its start on: TensorFlow's tasks look for each other before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(name, cluster),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(name),
            "ports": [{"name": "tensorflow", "port": _PORT}],
        },
    }


def _common(spec: JobSpec, name: str, hosts: list[str], cluster: Cluster) -> list[dict[str, Any]]:
    """The files of the tasks, and the volume for checkpoints."""
    texts = {
        "job.json": json.dumps(_job_file(spec, hosts), indent=1) + "\n",
        "start.py": _start_program(),
    }
    packed = _bundle(spec)
    if (size := sum(map(len, texts.values())) + len(packed)) > _MOST_BYTES:
        raise UsageError(
            f"the files of {counted(len(hosts), 'task')} have {size:,} bytes, and a ConfigMap of Kubernetes takes"
            f" {_MOST_BYTES:,}; start fewer tasks, or shorten their commands and --env"
        )
    files: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(name, cluster),
        "data": texts,
        "binaryData": {"bundle.zip": base64.b64encode(packed).decode()},
    }
    if cluster.claim is not None:
        return [files]
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(name, cluster),
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": cluster.storage}},
        },
    }
    return [claim, files]


def _job_file(spec: JobSpec, hosts: list[str]) -> dict[str, Any]:
    """Return the file that worker/programs/start_pod.py reads: the cluster by role, and each task."""
    layout = RunPaths(Path(_SCRATCH))
    here = spec.model_copy(
        update={
            "checkpoint_dir": Path(_CHECKPOINTS),
            "gpu_inventory": GpuInventory(),
            "gpus": None,
            "role_settings": {
                role: its.model_copy(update={"gpus": None}) for role, its in spec.role_settings.items()
            },
        }
    )
    try:
        plan = build_plan(here, [TaskPlace(None, f"{host}:{_PORT}") for host in hosts], layout, 1, {})
    except TFConfigTooLong as error:
        raise UsageError(str(error)) from error
    secret = set(secret_names(spec))
    return {
        "clusters": {role: plan.cluster.seen_by(role).addresses for role in spec.roles},
        "tasks": [
            {
                "type": task.task.type,
                "index": task.task.index,
                "argv": list(argv_elsewhere(spec.command_of(task.task.type))),
                "env": {
                    key: value
                    for key, value in task.order.env.items()
                    if key not in _UNSET and key not in secret
                },
                "bootstrap": None
                if task.order.bootstrap is None
                else {**task.order.bootstrap, "tracer": None},
            }
            for task in plan.tasks
        ],
    }


def _job(spec: JobSpec, name: str, cluster: Cluster) -> dict[str, Any]:
    count = len(spec.tasks)
    secrets = [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": f"{name}-env", "key": key}}}
        for key in secret_names(spec)
    ]
    limits: dict[str, Any] = {}
    if gpus := _gpus_of_pod(spec):
        limits["nvidia.com/gpu"] = gpus
    if spec.memory_limit_bytes is not None:
        limits["memory"] = str(spec.memory_limit_bytes)
    container: dict[str, Any] = {
        "name": "task",
        "image": cluster.image,
        "command": ["python3", f"{_FILES}/start.py"],
        "ports": [{"containerPort": _PORT, "protocol": "TCP"}],
        "volumeMounts": [
            {"name": "files", "mountPath": _FILES, "readOnly": True},
            {"name": "checkpoints", "mountPath": _CHECKPOINTS},
        ],
    }
    if secrets:
        container["env"] = secrets
    if limits:
        container["resources"] = {"limits": limits}
    job: dict[str, Any] = {
        "completions": count,
        "parallelism": count,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": _labels(name)},
            "spec": {
                "subdomain": name,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": max(1, round(spec.grace_s)),
                "containers": [container],
                "volumes": [
                    {"name": "files", "configMap": {"name": name}},
                    {"name": "checkpoints", "persistentVolumeClaim": {"claimName": cluster.claim or name}},
                ],
            },
        },
    }
    if spec.timeout_s is not None:
        job["activeDeadlineSeconds"] = max(1, round(spec.timeout_s))
    if PS in spec.roles:
        # Parameter servers never exit by themselves: the tasks that the chief waits for decide.
        waited = [
            str(index)
            for index, task in enumerate(spec.tasks)
            if task.type == EVALUATOR or (index == 0 and task.type != PS)
        ]
        job["successPolicy"] = {"rules": [{"succeededIndexes": ",".join(waited)}]}
    return job


def _gpus_of_pod(spec: JobSpec) -> int:
    """The number of GPUs of each pod. UsageError if --gpus names GPUs, or if pods would have different numbers."""
    choices = {role: spec.gpus_of(role) for role in spec.roles}
    for choice in choices.values():
        if choice is not None and choice.way is GpuWay.NAMED:
            raise UsageError(
                f'--gpus {choice}: Kubernetes chooses the GPUs of a pod; write their number: --gpus "per-task 1"'
            )
    numbers = {role: 0 if choice is None else choice.each for role, choice in choices.items()}
    if len({*numbers.values()}) > 1:
        found = ", ".join(f"{role} {number}" for role, number in numbers.items())
        raise UsageError(
            f"--gpus: all pods of a job have the same number of GPUs, not {found}; leave out `gpus` of the roles"
        )
    return max(numbers.values())


def _bundle(spec: JobSpec) -> bytes:
    """The part of orch that runs in a task. A ConfigMap has room for 1 MiB."""
    runs_example = any(command.kind is CommandKind.EXAMPLE for command in spec.commands)
    parts = (*_PARTS, *[_EXAMPLES] * runs_example)
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(bundle().data)) as whole,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as some,
    ):
        for entry in whole.infolist():
            if entry.filename.startswith(parts):
                some.writestr(entry, whole.read(entry), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _start_program() -> str:
    with zipfile.ZipFile(io.BytesIO(bundle().data)) as whole:
        return whole.read("worker/programs/start_pod.py").decode()
