"""Which worker reads which examples. TensorFlow's sharding runs for each worker in turn, in one process."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from worker.training.data.datasets import Dataset, DatasetError, check_shards, from_arrays, load_dataset
from worker.training.options.fields import Options
from worker.training.process.environment import Place, UsageError

if TYPE_CHECKING:
    from worker.training.job import Job

EXAMPLES, BATCH = 53, 8
WHERES = ["memory", "files"]
SLOW = pytest.mark.slow
pytestmark = pytest.mark.timeout(300)
Numbers = list[list[int]]


def arrays() -> Dataset:
    images = np.arange(EXAMPLES * 16, dtype=np.float32).reshape(EXAMPLES, 4, 4)
    labels = np.arange(EXAMPLES) % 3
    parts = {"x_train": images, "y_train": labels, "x_test": images[:4], "y_test": labels[:4]}
    return from_arrays("arrays", parts)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    from worker.records import write_records

    directory = tmp_path_factory.mktemp("shards")
    write_records(arrays(), directory, 5)
    return {"memory": arrays(), "files": load_dataset(str(directory), 0)}


def job_of(dataset: Dataset, worker: int, workers: int = 2, replicas: int = 2, **options: Any) -> Job:
    from worker.training.job import Job

    place = Place(task=f"worker:{worker}", rank=worker, addresses=tuple(f"h:{n}" for n in range(workers)))
    return Job(Options(**{"global_batch": BATCH, **options}), place, dataset, replicas)


def share_of(job: Job, first_step: int = 0, passes: int | None = None, make: Any = None) -> Any:
    """Return what the job's worker reads, sharded as by MultiWorkerMirroredStrategy; by default the numbers."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import distribute
    from tensorflow.python.distribute import input_ops

    from worker.training.data.pipeline import take_numbers
    from worker.training.replicas import distribution

    make = make or take_numbers
    rank, workers, replicas = job.place.rank, job.place.workers, job.replicas
    distribution._check_batch(job)
    if distribution._uses_function(job):
        context = tf.distribute.InputContext(workers, rank, replicas)
        return distribution._pipeline_batches(job, context, first_step, make, passes)
    batches = distribution._global_batches(job, first_step, make, passes)
    sizes = distribute.batch_sizes_for_worker(BATCH, workers, replicas // workers, rank)
    return input_ops.auto_shard_dataset(batches.rebatch(sizes), workers, rank, replicas)


def read(dataset: Any, elements: int | None = None) -> Numbers:
    taken = dataset if elements is None else dataset.take(elements)
    return [element.numpy().tolist() for element in taken]


def flat(numbers: Numbers) -> list[int]:
    return [number for element in numbers for number in element]


def one_pass(dataset: Dataset, workers: int, replicas: int, **options: str) -> Numbers:
    """Return what each worker reads in a pass."""
    return [
        flat(read(share_of(job_of(dataset, worker, workers, replicas, **options), passes=1)))
        for worker in range(workers)
    ]


WAYS = [
    ("memory", {}),
    ("memory", {"auto_shard": "auto"}),
    ("memory", {"input": "function"}),
    ("memory", {"last_batch": "short"}),
    ("files", {}),
    ("files", {"auto_shard": "file"}),
    ("files", {"auto_shard": "auto"}),
    ("files", {"input": "function"}),
    ("files", {"input": "function", "auto_shard": "file"}),
    ("files", {"input": "function", "auto_shard": "auto"}),
    ("files", {"last_batch": "short"}),
]


@pytest.mark.parametrize(("where", "options"), WAYS)
@pytest.mark.parametrize(
    ("workers", "replicas"), [(2, 2), pytest.param(2, 4, marks=SLOW), pytest.param(1, 2, marks=SLOW)]
)
def test_each_example_of_a_pass_goes_to_one_worker(
    where: str, options: dict[str, str], workers: int, replicas: int, data: dict[str, Dataset]
) -> None:
    seen = one_pass(data[where], workers, replicas, **options)
    assert all(seen) and Counter(flat(seen)) == Counter(range(EXAMPLES))
    if options.get("auto_shard") in ("file", "auto") and where == "files" and workers == 2:
        # Every second of files with 11, 11, 11, 10, 10 examples.
        assert [len(one) for one in seen] == [32, 21]
    else:
        assert abs(len(seen[0]) - len(seen[-1])) <= BATCH


def test_auto_shards_by_example_with_too_few_files(data: dict[str, Dataset]) -> None:
    seen = one_pass(data["files"], 6, 6, auto_shard="auto")
    assert Counter(flat(seen)) == Counter(range(EXAMPLES))


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("source", ["dataset", "function"])
def test_without_sharding_each_worker_reads_all_examples(
    where: str, source: str, data: dict[str, Dataset]
) -> None:
    seen = one_pass(data[where], 2, 2, auto_shard="off", input=source)
    assert all(sorted(one) == list(range(EXAMPLES)) for one in seen)
    assert seen[0] != seen[1]


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=SLOW)])
@pytest.mark.parametrize("where", WHERES)
def test_input_function_gives_the_same_batches_as_the_data_set(
    where: str, replicas: int, data: dict[str, Dataset]
) -> None:
    for worker in range(2):
        cut = read(share_of(job_of(data[where], worker, 2, replicas)), 40)
        made = read(share_of(job_of(data[where], worker, 2, replicas, input="function")), 40)
        assert cut == made
        assert {len(one) for one in cut} == {BATCH // replicas}


RESUMED = [*WAYS, ("memory", {"auto_shard": "off"}), ("files", {"auto_shard": "off"})]
IN_GATE = (0, 2, 3, 4, 5, 10)


@pytest.mark.parametrize(
    ("where", "options"),
    [pytest.param(*way, marks=() if at in IN_GATE else SLOW) for at, way in enumerate(RESUMED)],
)
def test_resumed_worker_continues_with_the_next_batch(
    where: str, options: dict[str, str], data: dict[str, Dataset]
) -> None:
    """The first pass ends within a step."""
    for worker in range(2):
        job = job_of(data[where], worker, **options)
        whole = read(share_of(job), 30)
        assert read(share_of(job, first_step=11), 19) == whole[11:]
        assert flat(whole[:6]) != flat(whole[7:13])


@pytest.mark.parametrize("where", WHERES)
def test_short_last_batch_is_shared_by_all_replicas(where: str, data: dict[str, Dataset]) -> None:
    jobs = [job_of(data[where], worker, last_batch="short") for worker in range(2)]
    shares = [read(share_of(job), 14) for job in jobs]
    assert jobs[0].steps == 7
    for epoch in (slice(0, 7), slice(7, 14)):
        assert [len(one) for one in shares[0][epoch]] == [4] * 6 + [3]
        assert [len(one) for one in shares[1][epoch]] == [4] * 6 + [2]
        assert Counter(flat(shares[0][epoch]) + flat(shares[1][epoch])) == Counter(range(EXAMPLES))
    assert shares[0][:7] != shares[0][7:]


def test_with_file_sharding_workers_read_their_own_files_in_equal_steps(data: dict[str, Dataset]) -> None:
    jobs = [job_of(data["files"], worker, auto_shard="file") for worker in range(2)]
    shares = [read(share_of(job), 40) for job in jobs]
    assert [len(share) for share in shares] == [40, 40]
    owned = [set(flat(share)) for share in shares]
    assert not owned[0] & owned[1] and [len(numbers) for numbers in owned] == [32, 21]
    assert jobs[0].steps == jobs[1].steps == EXAMPLES // BATCH


@pytest.mark.parametrize("source", ["dataset", "function"])
def test_examples_from_files_equal_those_in_memory(source: str, data: dict[str, Dataset]) -> None:
    from worker.training.replicas import distribution

    memory = data["memory"]
    examples = zip(memory.train_images, memory.train_labels, strict=True)
    expected = {image.tobytes(): label for image, label in examples}
    job = job_of(data["files"], 0, input=source)
    for images, labels in share_of(job, make=distribution.example_maker(job.dataset)).take(20):
        assert images.shape == (4, 4, 4, 1)
        for image, label in zip(images.numpy(), labels.numpy(), strict=True):
            assert expected[image.tobytes()] == label


@pytest.mark.parametrize("where", WHERES)
def test_stream_has_infinite_cardinality(where: str, data: dict[str, Dataset]) -> None:
    """Otherwise the workers check in each step that all have a batch."""
    import tensorflow as tf

    from worker.training.replicas import distribution

    for options in ({}, {"input": "function"}, {"auto_shard": "auto"}, {"last_batch": "short"}):
        job = job_of(data[where], 0, **options)
        is_function = distribution._uses_function(job)
        batches = share_of(job) if is_function else distribution.batches_for_fit(job, SimpleNamespace(), 0)
        assert int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY, options


def test_sharding_that_is_not_possible_is_an_error(data: dict[str, Dataset]) -> None:
    from worker.training.replicas import distribution

    with pytest.raises(DatasetError, match="there are 5 for 6 workers"):
        check_shards(data["files"], "file", 6)
    check_shards(data["files"], "file", 5)
    check_shards(data["files"], "auto", 6)
    with pytest.raises(UsageError, match="the last batch of 5 has no example for some of 6 replicas"):
        share_of(job_of(data["memory"], 0, 6, 6, last_batch="short"))
    with pytest.raises(UsageError, match="cannot be shared evenly by 3 replicas"):
        share_of(job_of(data["memory"], 0, 3, 3, input="function"))
    # Two workers of two devices each.
    with pytest.raises(UsageError, match="cannot be shared evenly by 4 replicas"):
        share_of(job_of(data["memory"], 0, 2, 4, input="function", global_batch=6))
    with pytest.raises(UsageError, match="take a multiple of 3, or --loop custom"):
        distribution.batches_for_fit(job_of(data["memory"], 0, 1, 3), SimpleNamespace(), 0)


@pytest.mark.parametrize(
    ("times", "off", "says"),
    [
        ([1, 1, 1], False, "3 distinct examples of 3: each exactly once"),
        (
            [2, 2, 2],
            True,
            "3 distinct examples of 3: each 2 times, once by each worker, as expected of --auto-shard off",
        ),
        ([2, 2, 2], False, "3 distinct examples of 3: NOT each once, 3 more than once"),
        ([1, 0, 3], False, "2 distinct examples of 3: NOT each once, 1 never and 1 more than once"),
        ([2, 0, 2], True, "2 distinct examples of 3: NOT each once, 1 never and 2 more than once"),
    ],
)
def test_coverage_is_described(times: list[int], off: bool, says: str) -> None:
    from worker.training.replicas.distribution import describe_coverage

    assert describe_coverage(np.array(times), 2, off=off).endswith(says)
