"""The plain view: the tasks' lines, merged, as bytes for pipes, files and terminals without cursor movement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.client.view.amounts import size
from orchestrator.client.view.log_line import LineStyle, format_block, truncation_note
from orchestrator.client.view.output import Output
from orchestrator.client.view.tables import Moment
from orchestrator.core.text.clean import safe_lines
from orchestrator.store.logs.lines import Block, Chunk, LineAssembler
from orchestrator.store.logs.merge import LogReader

# After the user has stopped the run, output older than these last bytes is skipped.
_MAX_LAG_AFTER_STOP_BYTES = 16 << 20


class AttemptMarks:
    """Finds the places in a log where a new attempt starts."""

    def __init__(self) -> None:
        self._latest: int | None = None

    def split(self, blocks: Sequence[Block]) -> Iterator[tuple[int | None, Sequence[Block]]]:
        """Split the blocks: each part comes with the attempt that starts with it, or None. There is at least one."""
        attempt, start = None, 0
        for number, block in enumerate(blocks):
            if self._latest is None or block.attempt <= self._latest:
                self._latest = self._latest or block.attempt
                continue
            yield attempt, blocks[start:number]
            self._latest = attempt = block.attempt
            start = number
        yield attempt, blocks[start:]


class PlainView:
    """Shows the tasks' lines on `out` and orch's messages on `err`. Lines are skipped only after `hurry`."""

    def __init__(self, out: Output, err: Output, style: LineStyle) -> None:
        self._out = out
        self._err = err
        self._style = style
        self._assembler = LineAssembler()
        self._in_a_hurry = False
        self._skipped: Counter[str] = Counter()

    @property
    def backlog(self) -> int:
        """Bytes that the reader has not taken; show no more chunks before `drain` returns True."""
        return self._out.backlog

    def show(self, chunks: Iterable[Chunk]) -> None:
        """Write the lines that these chunks complete. Raises OutputClosed when the reader has left."""
        self.show_blocks(block for chunk in chunks for block in self._assembler.feed(chunk))

    def hurry(self) -> None:
        """The user has stopped the run: old output may be skipped from now on."""
        self._in_a_hurry = True

    def catch_up(self, reader: LogReader) -> None:
        """After `hurry`, skip what is far behind."""
        if not self._in_a_hurry:
            return
        for task, skipped in reader.skip_old(_MAX_LAG_AFTER_STOP_BYTES).items():
            self._assembler.forget(task)
            self._skipped[task] += skipped

    def say(self, text: str) -> None:
        """Write a message of orch to stderr."""
        self._err.write_lines(safe_lines(text).encode() + b"\n")

    def focus(self, task: str | None) -> None:
        """Do nothing: a view without keys shows the tasks that it was opened with."""

    def update(self, moment: Moment) -> None:
        """Do nothing: the plain view shows lines only."""

    def frame(self, now: float) -> float | None:
        """Return None: lines are written when they come, without frames. Raises OutputClosed like show()."""
        self._out.require_reader()
        return None

    def pause(self) -> None:
        """Do nothing: there is no footer."""

    def drain(self, timeout: float) -> bool:
        """Give the reader up to `timeout` seconds to take what is left. Return whether it has taken all."""
        return self._err.drain(timeout) and self._out.drain(timeout)

    def finish(self) -> None:
        """After the last chunk: show lines without a newline, and report what was skipped."""
        self.show_blocks(self._assembler.flush())
        if self._skipped:
            skipped = ", ".join(f"{size(amount)} of {task}" for task, amount in self._skipped.items())
            self.say(f"orch: skipped {skipped}; `orch logs` shows all")

    def show_blocks(self, blocks: Iterable[Block]) -> None:
        """Write the lines of blocks that are already assembled."""
        shown = []
        for block in blocks:
            if block.lost:
                self.say(truncation_note(block.task, block.lost))
            else:
                shown.append(format_block(block, self._style))
        self._out.write_lines(shown[0] if len(shown) == 1 else b"".join(shown))
