"""The table of the cases' figures in docs/keras.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from case_runs import Figures, is_rounding, number

_HEAD = (
    "| case | one process | MirroredStrategy | 3 workers: one process | 3 workers: MirroredStrategy |",
    "|---|---|---|---|---|",
)
# From here on a figure is shown without an exponent.
_READABLE = 1e-3
_DIFFERENT = ("| case | one process | MirroredStrategy | reason |", "|---|---|---|---|")
_SUMMARY = (
    "| topic | cases | comparisons | equal to one process | equal to MirroredStrategy | equal to neither |",
    "|---|---|---|---|---|---|",
)


def table(found: Sequence[Figures]) -> str:
    """Return the summary, the cases that differ from one process, and all cases by topic."""
    cases = list(_grouped(found, "name").values())
    lines = ["", *_SUMMARY, *_summary(found), "", "Different from one process:", "", *_DIFFERENT]
    lines += [_reason(case) for case in cases if not all(figures.equals_one for figures in case)]
    for topic, figures in _grouped(found, "topic").items():
        lines += ["", f"**{topic[0].upper()}{topic[1:]}**", "", *_HEAD]
        lines += [row(case) for case in cases if case[0] in figures]
    return "\n".join([*lines, ""])


def row(case: Sequence[Figures]) -> str:
    """Return the row of a case from its figures by number of workers."""
    cells = {figures.workers: (figures.to_one, figures.to_mirrored) for figures in case}
    shown = [_shown(figure) for count in (2, 3) for figure in cells.get(count, ("", ""))]
    return f"| {' | '.join([case[0].name, *shown])} |"


def _reason(case: Sequence[Figures]) -> str:
    """Return the row of a case that differs, with the larger figures of two and three workers."""
    figures = [max((getattr(one, to) for one in case), key=number) for to in ("to_one", "to_mirrored")]
    return f"| {' | '.join([case[0].name, *map(_shown, figures), case[0].differs])} |"


def _summary(found: Sequence[Figures]) -> list[str]:
    """Count by topic; a case with two and with three workers has two comparisons with each reference."""
    rows = []
    for topic, figures in [*_grouped(found, "topic").items(), ("all", list(found))]:
        to_one = sum(is_rounding(one.to_one) for one in figures)
        to_mirrored = sum(is_rounding(one.to_mirrored) for one in figures)
        neither = sum(not (one.equals_one or is_rounding(one.to_mirrored)) for one in figures)
        cases = len(_grouped(figures, "name"))
        rows.append(f"| {topic} | {cases} | {len(figures)} | {to_one} | {to_mirrored} | {neither} |")
    return rows


def _shown(figure: float | str) -> str:
    """Return a figure, in bold if it is more than rounding. A text is the error of a reference."""
    if isinstance(figure, str):
        return figure and "fails"
    shown = f"{figure:.0e}".replace("e-0", "e-")
    if figure == 0.0 or figure >= _READABLE:
        shown = f"{float(shown):g}" if figure < float("inf") else "other shapes"
    return shown if is_rounding(figure) else f"**{shown}**"


def _grouped(found: Iterable[Figures], field: str) -> dict[str, list[Figures]]:
    groups: dict[str, list[Figures]] = {}
    for figures in found:
        groups.setdefault(getattr(figures, field), []).append(figures)
    return groups
