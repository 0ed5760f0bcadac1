"""The questions to the hosts of a job: one round for each host alone, then one for what lies between them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from orchestrator.core.job.spec import CommandKind, JobSpec
from orchestrator.core.plan.placement import place
from orchestrator.host.installed import question_words
from orchestrator.links.client_link import HostReport
from orchestrator.request.command.program import find_program
from worker.wire.checks import Question, SharedFile
from worker.wire.facts import HostFacts


class Plan:
    """The questions to a job's hosts. `environ` is the user's. `may_start`: whether an interpreter of the tasks may be
    asked for its packages."""

    def __init__(
        self,
        spec: JobSpec,
        environ: Mapping[str, str],
        may_start: Callable[[str], bool] = lambda python: True,
    ) -> None:
        self.spec = spec
        self._environ = environ
        self._may_start = may_start
        self._name = f".orch-shared-{secrets.token_hex(8)}"
        # For each host, those that it connects to.
        self.targets: dict[str, list[tuple[str, str, int]]] = {}

    @cached_property
    def interpreters(self) -> tuple[tuple[str, ...], ...]:
        """The interpreters of the tasks that may be asked, with their options."""
        commands = (self._interpreter_of(role) for role in self.spec.roles)
        return tuple(dict.fromkeys(words for words in commands if words and self._may_start(words[0])))

    @cached_property
    def programs(self) -> Mapping[Path, str]:
        """The first file of each command, and its hash here. Files outside the source that orch reads are left out."""
        return dict(_hashed(self._program_paths()))

    @cached_property
    def chief_host(self) -> str:
        """The host of the first task, which writes checkpoints."""
        return place(self.spec)[0]

    def address_of(self, facts: HostFacts) -> str | None:
        """The address that the tasks of a host get."""
        if self.spec.interface is None:
            return facts.reached
        return facts.addresses.get(self.spec.interface)

    def first_question(self, host: str, facts: HostFacts) -> Question:
        """Ask a host for what it has."""
        environ = {**self._environ, **self.spec.env}
        return Question(
            run=tuple(tuple(question_words(words, environ, self.spec.cwd)) for words in self.interpreters),
            hash=tuple(map(str, self.programs)),
            enter=str(self.spec.cwd),
            hold=self.address_of(facts),
            write=self._shared if host == self.chief_host else None,
        )

    def second_questions(self, reports: Mapping[str, HostReport]) -> dict[str, Question]:
        """Ask the hosts for each other: the file of the chief's host, and the ports that they hold."""
        chief = reports[self.chief_host].checked
        has_written = chief is not None and chief.write is not None and chief.write.error is None
        questions = {}
        for host, report in reports.items():
            targets = self.targets[host] = self._targets(host, reports)
            if report.checked is not None and (has_written or targets):
                reach = tuple((address, port) for _, address, port in targets)
                questions[host] = Question(read=self._shared if has_written else None, reach=reach)
        return questions

    def _targets(self, host: str, reports: Mapping[str, HostReport]) -> list[tuple[str, str, int]]:
        """The chief's host and the next one, as (name, address, held port)."""
        names = list(reports)
        following = names[(names.index(host) + 1) % len(names)]
        found = []
        for name in dict.fromkeys((self.chief_host, following)):
            facts, checked = reports[name].facts, reports[name].checked
            address = None if facts is None else self.address_of(facts)
            held = None if checked is None or checked.hold is None else checked.hold.port
            if name != host and address is not None and held is not None:
                found.append((name, address, held))
        return found

    @property
    def _shared(self) -> SharedFile | None:
        place = self.spec.checkpoint_dir
        return None if place is None else SharedFile(str(place), self._name)

    def _interpreter_of(self, role: str) -> tuple[str, ...]:
        command = self.spec.command_of(role)
        return command.interpreter

    def _program_paths(self) -> Iterator[Path]:
        environ = {**self._environ, **self.spec.env}
        for command in self.spec.commands:
            match command.kind:
                case CommandKind.SCRIPT | CommandKind.MODULE:
                    found = find_program(command.argv[1:], self.spec.cwd, environ).start
                    if found is not None:
                        yield found.path
                case CommandKind.EXECUTABLE if "/" in command.argv[0]:
                    yield self.spec.cwd / command.argv[0]


def _hashed(paths: Iterator[Path]) -> Iterator[tuple[Path, str]]:
    for path in paths:
        try:
            with path.open("rb") as file:
                yield path, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            continue
