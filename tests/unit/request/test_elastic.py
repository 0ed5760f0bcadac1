"""A range of workers and a global batch: how they are read, and what contradicts them."""

from __future__ import annotations

from typing import Any

import pytest
from spec_making import Load, MakeSpec

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.plan.places import local_places
from orchestrator.core.plan.plan import build_plan
from orchestrator.request.export.manifests import Cluster, job_set, kubernetes_job
from orchestrator.store.runs.paths import RunPaths

HOSTS = "a:2,b:2"


@pytest.mark.parametrize("words", ["2..4", " 2 .. 4 "])
def test_range_of_workers(load_here: Load, words: str) -> None:
    request = load_here(workers=words, hosts=HOSTS)
    spec = request.spec
    assert (spec.workers, spec.fewest_workers, spec.is_elastic) == (4, 2, True)
    assert spec.policy_of("worker") is FailurePolicy.RESTART
    assert not any("on one machine" in notice for notice in request.notices)


def test_range_from_file_and_variable(load_here: Load) -> None:
    assert load_here("workers = '1..3'").spec.fewest_workers == 1
    assert load_here("[roles.worker]\ncount = '1..3'").spec.workers == 3
    assert load_here("", {"ORCH_WORKERS": "2..2", "ORCH_GLOBAL_BATCH": "6"}).spec.global_batch == 6


def test_one_machine_has_always_all_workers(load_here: Load) -> None:
    request = load_here(workers="1..3")
    assert "--workers: on one machine the run always has 3 workers" in request.notices
    assert not request.spec.is_elastic


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"workers": "4..2"}, '--workers: "4..2" begins with the larger number; write 2..4'),
        ({"workers": "0..2"}, '--workers: "0..2": a run has at least 1 worker; write 1..2'),
        ({"workers": "2.."}, '--workers: "2.." is not a range; write the fewest and the most workers: 2..4'),
        ({"workers": "..4"}, '--workers: "..4" is not a range'),
        ({"workers": "-1..4"}, "is not a range"),
        ({"workers": "2...4"}, "is not a range"),
        ({"workers": "2..9999"}, "--workers: a job has at most 4,000 tasks, not 9,999"),
        ({"workers": "2..5"}, "--hosts: 5 tasks need 5 slots"),
        ({"ps": 1}, "--workers: 2..4: with parameter servers a lost worker restarts alone"),
        (
            {"strategy": "dtensor", "mesh": "batch=4"},
            "--workers: 2..4: the mesh batch=4,model=1 is cut for one number of workers; write that",
        ),
        ({"strategy": "mirrored"}, "--workers: mirrored runs as one process"),
        ({"strategy": "mirrored", "replicas": 2}, "--workers: mirrored runs as one process"),
        (
            {"on_failure": "abort"},
            "--on-failure: abort never starts the run with fewer workers, which --workers 2..4 asks for; leave it out",
        ),
        (
            {"global_batch": 256},
            "--global-batch: 3 workers cannot share 256 examples equally; write 252 or 264",
        ),
        ({"global_batch": 5}, "--global-batch: 2 workers cannot share 5 examples equally; write 12"),
        ({"global_batch": 0}, "--global-batch: must be between 1 and 2,147,483,647, not 0"),
        ({"global_batch": 12, "chief": "separate"}, "--global-batch: 5 workers cannot share 12 examples"),
    ],
)
def test_what_contradicts_a_range(load_here: Load, flags: dict[str, Any], message: str) -> None:
    hosts = "a:9,b:9" if {"ps", "chief"} & flags.keys() else HOSTS
    with pytest.raises(UsageError) as refused:
        load_here(**{"workers": "2..4", "hosts": hosts, **flags})
    assert message in str(refused.value)


def test_global_batch_without_a_range(load_here: Load) -> None:
    assert load_here(workers=3, global_batch=48).spec.global_batch == 48
    with pytest.raises(UsageError, match="3 workers cannot share 50 examples equally; write 48 or 51"):
        load_here(workers=3, global_batch=50)
    # A single process and parameter servers do not split the batch.
    assert load_here(strategy="mirrored", replicas=2, global_batch=50).spec.global_batch == 50
    assert load_here(workers=3, ps=1, global_batch=50).spec.global_batch == 50


def test_manifests_have_one_number_of_workers(load_here: Load) -> None:
    spec = load_here(workers="1..3").spec
    for render in (kubernetes_job, job_set):
        with pytest.raises(UsageError, match=r"--workers 1\.\.3: the manifests have one number of pods"):
            render(spec, Cluster(image="train:1"))


def test_global_batch_is_a_variable_of_the_tasks(make_spec: MakeSpec, tmp_path: Any) -> None:
    def variable(environ: dict[str, str], **changes: Any) -> str | None:
        places = local_places(["127.0.0.1:1", "127.0.0.1:2"])
        plan = build_plan(make_spec(**changes), places, RunPaths(tmp_path), 1, environ)
        return plan.tasks[1].env.get("ORCH_GLOBAL_BATCH")

    assert variable({}, global_batch=48) == "48"
    assert variable({}) is None
    # That of the run around this one does not count.
    assert variable({"ORCH_RUN_ID": "outer", "ORCH_GLOBAL_BATCH": "7"}) == ""
