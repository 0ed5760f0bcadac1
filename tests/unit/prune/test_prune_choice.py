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


def test_age_counts_from_the_end_of_a_run_or_from_its_start_if_the_end_is_unknown() -> None:
    long = PrunableRun("/long", "long", "job", "/here", NOW - 10 * DAY, NOW - DAY, False, 1, 1)
    old = PrunableRun("/old", "old", "job", "/here", NOW - 9 * DAY, NOW - 8 * DAY, False, 1, 1)
    unknown = PrunableRun("/unknown", "unknown", "job", "/here", NOW - 9 * DAY, None, False, 1, 1)
    assert chosen([long, old, unknown], older_than_s=7 * DAY) == ["old", "unknown"]


def test_keep_counts_each_name_in_each_directory() -> None:
    runs = [run(n) for n in range(4)]
    runs += [run(n, name="other") for n in range(2)]
    runs += [run(n, directory="/there", name="job") for n in range(10, 12)]
    assert sorted(chosen(runs, keep=2)) == ["job-0", "job-1"]


FIVE = [run(n, size=100) for n in range(5)]
AGED = [run(n, age_s=(20 - n) * DAY) for n in range(4)]
TRIMMED = [run(0, size=500, freed=0), run(1, size=100)]


def test_oldest_runs_go_first_and_kept_and_trimmed_ones_never() -> None:
    rows = (
        (FIVE, {"max_bytes": 250}, [0, 1, 2]),
        (FIVE, {"max_bytes": 500}, []),
        # Runs pruned by age count for the size limit.
        ([run(0, age_s=9 * DAY), *FIVE[1:4]], {"older_than_s": DAY, "max_bytes": 300}, [0]),
        (AGED, {"older_than_s": DAY, "keep": 1}, [0, 1, 2]),
        (AGED, {"max_bytes": 0, "keep": 3}, [0]),
        # Trimmed runs count for the size limit, and are not pruned.
        (TRIMMED, {"keep": 0}, [1]),
        (TRIMMED, {"max_bytes": 550}, [1]),
    )
    for runs, terms, numbers in rows:
        assert chosen(runs, **terms) == [f"job-{number}" for number in numbers], terms


any_run = st.builds(
    run,
    st.integers(0, 50),
    age_s=st.floats(-DAY, 30 * DAY),
    name=st.sampled_from("ab"),
    directory=st.sampled_from(["/x", "/y"]),
    live=st.booleans(),
    size=st.integers(0, 1000),
)
RUNS = st.lists(any_run, unique_by=lambda each: each.root, max_size=25)
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
    assert runs_to_prune(left, terms, NOW) == [], "a second prune finds nothing"
