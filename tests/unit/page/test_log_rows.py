"""The lines of a run as rows: bounded, in order, with times that a wall clock cannot break."""

from __future__ import annotations

from pages import STARTED_AT, WrittenRun

from orchestrator.client.page.clock import RunClock
from orchestrator.client.page.log_rows import Room, log_rows, report_logs
from orchestrator.store.logs.lines import Block

CLOCK = RunClock(STARTED_AT, 0.0)


def block(data: bytes, at: float | None = STARTED_AT + 1, **values: object) -> Block:
    return Block("worker:0", 1, at, data)._replace(**values)  # type: ignore[arg-type]


def test_rows_are_columns_of_merged_lines() -> None:
    other = block(b"c\n", STARTED_AT + 2.5, task="worker:1")
    assert log_rows([block(b"a\nb\n"), other, block(b"rest", None, partial=True)], CLOCK) == {
        "names": ["worker:0", "worker:1"],
        "time": [1000, 1000, 2500, -1],
        "task": [0, 0, 1, 0],
        "attempt": 1,
        "text": ["a", "b", "c", "rest"],
    }
    # Attempts are a column if they differ.
    assert log_rows([block(b"a\n"), block(b"b\n", attempt=2)], CLOCK)["attempt"] == [1, 2]


def test_texts_are_what_the_terminal_shows_and_bounded() -> None:
    shown = {
        b"1/9\r2/9\r9/9 done\n": "9/9 done",
        b"\x1b[31mred\x1b[0m\x1b]0;title\x07\n": "red",
        b"</script><script>alert(1)</script>\n": "</script><script>alert(1)</script>",
        "evil \u202etxt.exe\u2028\n".encode(): "evil \ufffdtxt.exe\ufffd",
        b"\xff\xfe\n": "\ufffd\ufffd",
        b"x" * 10_000_000 + b"\n": "x" * 4096 + " … (10,000,000 characters)",
        b"\n": "",
    }
    for data, text in shown.items():
        assert log_rows([block(data)], CLOCK)["text"] == [text]
    assert log_rows([block(b"", lost=5)], CLOCK)["text"] == ["worker:0 truncated its own log: 5 bytes lost"]


def test_clock_that_was_set_back_and_forth() -> None:
    clock = RunClock(STARTED_AT, 0.0)
    for seconds, jump in ((1, 0), (10, 0), (11, -3600), (20, -3600), (21, 7200), (30, 7200)):
        clock.add(STARTED_AT + seconds + jump, float(seconds))
    moments = [(5, 0), (15, -3600), (25, 7200)]
    times = log_rows([block(b"x\n", STARTED_AT + at + jump) for at, jump in moments], clock)["time"]
    assert times == [5000, 15000, 25000]


def numbered(run: WrittenRun, lines: int, task: str = "worker:0") -> list[str]:
    texts = [f"{task} line {number}" for number in range(lines)]
    for begin in range(0, lines, 7):
        data = "".join(f"{text}\n" for text in texts[begin : begin + 7]).encode()
        run.log(STARTED_AT + begin / 100, task, data)
    return texts


def test_report_holds_all_lines_if_they_fit() -> None:
    with WrittenRun(2) as run:
        empty = run.page()
        assert report_logs(empty.view, empty.clock)["text"] == []
        texts = [numbered(run, 100, task) for task in run.tasks]
        page = run.page()
        rows = report_logs(page.view, page.clock)
    assert rows["text"] == [*texts[0], *texts[1]]


def test_report_has_the_first_and_the_last_lines_and_says_how_many_are_left_out() -> None:
    with WrittenRun(1) as run:
        texts = numbered(run, 1000)
        page = run.page()
        for room in (Room(lines=100), Room(characters=100 * len("worker:0 line 999"))):
            rows = report_logs(page.view, page.clock, room)
            (note,) = [number for number, task in enumerate(rows["task"]) if task == -1]
            shown = rows["text"]
            left_out = 1000 - (len(shown) - 1)
            assert shown[:note] == texts[:note] and 15 <= note <= 30
            assert shown[note + 1 :] == texts[note + left_out :] and 70 <= len(shown) <= 110
            advice = f"`orch logs {page.view.record.id}` prints them"
            assert shown[note] == f"{left_out} lines left out here; {advice}"


def test_report_of_little_more_than_its_room_repeats_nothing() -> None:
    with WrittenRun(2) as run:
        texts = {*numbered(run, 30, "worker:0"), *numbered(run, 31, "worker:1")}
        page = run.page()
        rows = report_logs(page.view, page.clock, Room(lines=60))
    shown = [text for text, task in zip(rows["text"], rows["task"], strict=True) if task >= 0]
    assert len(set(shown)) == len(shown) and set(shown) <= texts and len(shown) >= 45
