"""The runs that a prune chooses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.runs.prune_choice import PrunableRun, PruneTerms, runs_to_prune

NOW = 1_000_000.0
DAY = 86_400.0


def run(
    number: int,
    *,
    age_s: float | None = None,
    name: str = "job",
    directory: str = "/here",
    live: bool = False,
    size: int = 100,
    freed: int | None = None,
) -> PrunableRun:
    """Create run `number`. A higher number is newer, unless `age_s` is given."""
    ended = NOW - (100 - number if age_s is None else age_s)
    return PrunableRun(
        root=f"{directory}/{name}-{number}",
        id=f"{name}-{number}",
        name=name,
        directory=directory,
        started_at=ended - 1,
        ended_at=None if live else ended,
        is_live=live,
        size_bytes=size,
        freed_bytes=size if freed is None else freed,
    )


def chosen(runs: list[PrunableRun], **terms: float) -> list[str]:
    oldest_first = sorted(runs, key=lambda each: each.started_at)
    return [each.id for each in runs_to_prune(oldest_first, PruneTerms(**terms), NOW)]  # type: ignore[arg-type]


def test_age_counts_from_the_end_of_a_run() -> None:
    long = PrunableRun("/long", "long", "job", "/here", NOW - 10 * DAY, NOW - DAY, False, 1, 1)
    old = PrunableRun("/old", "old", "job", "/here", NOW - 9 * DAY, NOW - 8 * DAY, False, 1, 1)
    assert chosen([long, old], older_than_s=7 * DAY) == ["old"]


def test_age_counts_from_the_start_if_the_end_is_unknown() -> None:
    unknown = PrunableRun("/unknown", "unknown", "job", "/here", NOW - 9 * DAY, None, False, 1, 1)
    assert chosen([unknown], older_than_s=7 * DAY) == ["unknown"]


def test_keep_counts_each_name_in_each_directory() -> None:
    runs = [run(n) for n in range(4)]
    runs += [run(n, name="other") for n in range(2)]
    runs += [run(n, directory="/there", name="job") for n in range(10, 12)]
    assert sorted(chosen(runs, keep=2)) == ["job-0", "job-1"]


def test_size_limit_prunes_the_oldest_first() -> None:
    runs = [run(n, size=100) for n in range(5)]
    assert chosen(runs, max_bytes=250) == ["job-0", "job-1", "job-2"]
    assert chosen(runs, max_bytes=500) == []


def test_runs_pruned_by_age_count_for_the_size_limit() -> None:
    runs = [run(0, age_s=9 * DAY), *(run(n) for n in range(1, 4))]
    assert chosen(runs, older_than_s=DAY, max_bytes=300) == ["job-0"]


def test_kept_runs_stay_despite_age_and_size() -> None:
    runs = [run(n, age_s=(20 - n) * DAY) for n in range(4)]
    assert chosen(runs, older_than_s=DAY, keep=1) == ["job-0", "job-1", "job-2"]
    assert chosen(runs, max_bytes=0, keep=3) == ["job-0"]


def test_trimmed_runs_count_for_the_size_limit_and_are_not_pruned() -> None:
    trimmed, whole = run(0, size=500, freed=0), run(1, size=100)
    assert chosen([trimmed, whole], keep=0) == ["job-1"]
    assert chosen([trimmed, whole], max_bytes=550) == ["job-1"]


RUNS = st.lists(
    st.builds(
        run,
        st.integers(0, 50),
        age_s=st.floats(-DAY, 30 * DAY),
        name=st.sampled_from("ab"),
        directory=st.sampled_from(["/x", "/y"]),
        live=st.booleans(),
        size=st.integers(0, 1000),
    ),
    unique_by=lambda each: each.root,
    max_size=25,
)
TERMS = st.builds(
    PruneTerms,
    older_than_s=st.none() | st.floats(0, 30 * DAY),
    keep=st.none() | st.integers(0, 5),
    max_bytes=st.none() | st.integers(0, 5000),
)


@given(RUNS, TERMS)
def test_choice_respects_all_terms_for_any_runs(runs: list[PrunableRun], terms: PruneTerms) -> None:
    taken = runs_to_prune(runs, terms, NOW)
    roots = {each.root for each in taken}
    assert len(roots) == len(taken)
    assert not any(each.is_live or each.freed_bytes == 0 for each in taken)
    left = [each for each in runs if each.root not in roots]
    if not terms.has_condition:
        assert not taken
    for group in {(each.name, each.directory) for each in runs}:
        of_it = [each for each in runs if (each.name, each.directory) == group]
        spared = of_it[len(of_it) - min(terms.keep or 0, len(of_it)) :]
        assert not roots & {each.root for each in spared}
    if terms.max_bytes is not None:
        fits = sum(each.size_bytes for each in left) <= terms.max_bytes
        untouchable = [each for each in left if not each.is_live and each.freed_bytes]
        # Either the rest fits now, or all remaining runs are kept.
        assert fits or terms.keep or not untouchable
    if terms.older_than_s is not None and not terms.keep:
        old = (each for each in left if each.ended_at is not None and not each.is_live and each.freed_bytes)
        assert not any(NOW - (each.ended_at or 0) > terms.older_than_s for each in old)


@given(RUNS, TERMS)
def test_second_prune_finds_nothing(runs: list[PrunableRun], terms: PruneTerms) -> None:
    roots = {each.root for each in runs_to_prune(runs, terms, NOW)}
    assert runs_to_prune([each for each in runs if each.root not in roots], terms, NOW) == []
