"""The local engine: the agent is a child of the supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.engines import Connection

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec


class LocalEngine:
    """Runs agents on this machine."""

    leave_s = unanswered_s = 2.0
    is_remote = False

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Connection:
        """Run `words` here; `destination` is not used."""
        return Connection(words, errors)

    def explain(self, host: str, exit_code: int | None, errors: str, messages: str | None = None) -> str:
        return "the agent was lost (killed, or it crashed: see agent.log)"

    def explain_silence(self, host: str, waited_s: float, errors: str) -> str:
        return f"the agent did not answer within {waited_s:g} s"

    def why_gone(self, host: str) -> str | None:
        return None


def for_job(spec: JobSpec) -> LocalEngine:
    return LocalEngine()
