"""Compares the answers of the hosts: findings for the job (pure)."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.text.clean import one_line
from orchestrator.core.text.counted import counted
from orchestrator.host.checks.finding import Finding, is_healthy, note, ok, problem, warning
from orchestrator.host.installed import Interpreter, interpreter_of, version_pair
from orchestrator.links.client_link import HostReport
from orchestrator.preflight.questions import Plan
from worker.wire.checks import Checked, Outcome
from worker.wire.facts import HostFacts

_MIB = 1 << 20
# For logs, which stay on a host until they are sent, and for orch's own files.
_LITTLE_SPACE, _TOO_LITTLE_SPACE = 200 * _MIB, 10 * _MIB
# The answers of a port that no program listens on. `connected`: another program has taken it since.
REACHED = ("refused", "connected")
# The facts and the answers of a host that has answered all questions.
Answered = tuple[HostFacts, Checked]


def compare(plan: Plan, reports: Mapping[str, HostReport]) -> list[Finding]:
    """Return the findings about all hosts; those about hosts that did not answer come first."""
    found = []
    answered: dict[str, Answered] = {}
    for host, report in reports.items():
        if report.error is not None:
            reason, _, fix = report.error.partition("; ")
            found.append(problem("host", f"{host}: {reason}", fix=fix or "correct it, and start again"))
        elif report.facts is not None and report.checked is not None:
            answered[host] = report.facts, report.checked
    for check in (_same_machine, _addresses, _interpreters, _programs, _places, _reach, _checkpoints):
        found += check(plan, answered)
    if is_healthy(found):
        found.append(ok("hosts", f"{counted(len(reports), 'host')} can run the tasks"))
    return found


def interpreters_of(plan: Plan, checked: Checked) -> dict[tuple[str, ...], Interpreter]:
    """Return what each interpreter of the tasks answered on a host."""
    return {
        words: Interpreter(words[0], error=one_line(ran.error or ""))
        if ran.code is None
        else interpreter_of(words[0], ran.code, ran.out, ran.error or "")
        for words, ran in zip(plan.interpreters, checked.run, strict=False)
    }


def _same_machine(plan: Plan, hosts: Mapping[str, Answered]) -> Iterator[Finding]:
    by_machine: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host, (facts, _) in hosts.items():
        by_machine[facts.machine].append(host)
    for names in by_machine.values():
        if len(names) > 1:
            yield problem(
                "host",
                f"{_joined(names)} are names of one machine",
                fix=f"name it once, with its number of tasks: {names[0]}:{len(names)}",
            )


def _addresses(plan: Plan, hosts: Mapping[str, Answered]) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    machines: set[tuple[str, ...]] = set()
    for name, (facts, checked) in hosts.items():
        address = plan.address_of(facts)
        if facts.machine in machines:
            continue  # another name of a machine is one problem: see _same_machine
        machines.add(facts.machine)
        if address is None:
            yield _no_address(plan, name, facts)
        elif len(hosts) > 1 and ipaddress.ip_address(address).is_loopback:
            yield problem(
                "network",
                f"{name} was reached at {address}, where no other host can reach it",
                fix="use its name in the network, or choose an interface of the hosts with --interface",
            )
        elif address in owners:
            yield problem(
                "network",
                f"{name} and {owners[address]} have the same address {address}",
                fix="choose another interface with --interface",
            )
        elif checked.hold is not None and checked.hold.error is not None:
            yield problem(
                "network",
                f"{name} cannot open a port at its address {address} ({one_line(checked.hold.error)})",
                fix="choose an interface of the host itself with --interface",
            )
        else:
            owners[address] = name


def _no_address(plan: Plan, name: str, facts: HostFacts) -> Finding:
    wanted = plan.spec.interface
    has = ", ".join(f"{one_line(each)} ({one_line(address)})" for each, address in facts.addresses.items())
    if wanted is None:
        return problem(
            "network",
            f"{name} does not say at which address it was reached",
            fix=f"choose one of its interfaces with --interface: {has}",
        )
    return problem(
        "network",
        f"{name} has no interface {wanted} with an IPv4 address; it has {has or 'none'}",
        fix="choose an interface that all hosts have with --interface",
    )


def _interpreters(plan: Plan, hosts: Mapping[str, Answered]) -> Iterator[Finding]:
    asked = {host: interpreters_of(plan, checked) for host, (_, checked) in hosts.items()}
    for host, interpreters in asked.items():
        for words, found in interpreters.items():
            if found.error is not None:
                yield problem(
                    "python",
                    f"{host}: {words[0]} does not answer ({one_line(found.error)})",
                    fix="install the same environment at the same path there, or name another with --remote-python",
                )
    for words in plan.interpreters:
        answers = {
            host: found[words] for host, found in asked.items() if words in found and not found[words].error
        }
        yield from _versions(words[0], answers)


def _versions(python: str, answers: dict[str, Interpreter]) -> Iterator[Finding]:
    parts: tuple[tuple[str, str, Callable[[Interpreter], str | None]], ...] = (
        ("python", "Python", lambda one: ".".join(map(str, version_pair(one.version)))),
        ("tensorflow", "TensorFlow", lambda one: one.tensorflow),
        ("keras", "Keras", lambda one: one.keras),
    )
    for topic, name, version_of in parts:
        hosts: dict[str, list[str]] = defaultdict(list)
        for host, interpreter in answers.items():
            version = version_of(interpreter)
            hosts[one_line(version) if version else "none"].append(host)
        if len(hosts) > 1:
            which = "; ".join(f"{version} on {_joined(names)}" for version, names in hosts.items())
            yield problem(
                topic,
                f"{name} differs: {which} ({python})",
                fix="install the same versions on all hosts (pip freeze shows them)",
            )
        elif hosts and name == "TensorFlow":
            (version,) = hosts
            if version == "none":
                yield note(topic, f"TensorFlow is not installed for {python} on the hosts")


def _programs(plan: Plan, hosts: Mapping[str, Answered]) -> Iterator[Finding]:
    for number, (path, expected) in enumerate(plan.programs.items()):
        missing = {}
        others = []
        for host, (_, checked) in hosts.items():
            found = checked.hash[number] if number < len(checked.hash) else Outcome("no answer")
            if found.value is None:
                missing[host] = one_line(found.error or "")
            elif found.value != expected:
                others.append(host)
        fix = "copy it there, use a shared directory, or add --sync"
        if plan.spec.sync:
            fix = f"copy it there; --sync copies only files in {plan.spec.cwd} that git does not ignore"
        for name, reason in missing.items():
            yield problem("script", f"{name} does not have {path} ({reason})", fix=fix)
        if others:
            yield problem("script", f"{path} is another text on {_joined(others)} than here", fix=fix)


def _places(plan: Plan, hosts: Mapping[str, Answered]) -> Iterator[Finding]:
    for name, (_, checked) in hosts.items():
        if checked.enter is not None and checked.enter.error is not None:
            yield problem(
                "directory",
                f"{name} has no directory {plan.spec.cwd} for the tasks ({one_line(checked.enter.error)})",
                fix="make it there, use a shared one, or add --sync",
            )
        if checked.free_bytes < _LITTLE_SPACE:
            level = problem if checked.free_bytes < _TOO_LITTLE_SPACE else warning
            where = f"{checked.free_bytes / _MIB:.0f} MiB free in {one_line(checked.temporary)}"
            yield level(
                "disk",
                f"{name} has {where}, where logs wait to be sent",
                fix="delete files there, or let TMPDIR name another directory",
            )


def _reach(plan: Plan, hosts: Mapping[str, Answered]) -> Iterator[Finding]:
    for name, (_, checked) in hosts.items():
        for (target, address, _), outcome in zip(plan.targets.get(name, []), checked.reach, strict=False):
            if outcome in REACHED:
                continue
            silent = outcome == "silent"
            yield problem(
                "network",
                f"{name} cannot reach {target} at {address}"
                + (": no answer" if silent else f" ({one_line(outcome)})"),
                fix="open the ports between the hosts in the firewall of both, or choose another --interface"
                if silent
                else "correct the routes between them, or choose another --interface",
            )


def _checkpoints(plan: Plan, hosts: Mapping[str, Answered]) -> Iterator[Finding]:
    if len(plan.spec.hosts) < 2:
        return
    restarts = plan.spec.max_restarts > 0 and any(
        plan.spec.policy_of(role) is FailurePolicy.RESTART for role in plan.spec.roles
    )
    reason = _why_not_shared(plan, hosts)
    if reason is None:
        if len(hosts) == len(plan.spec.hosts):
            yield ok("checkpoints", f"{plan.spec.checkpoint_dir} is shared by all hosts")
        return
    if restarts:
        yield problem(
            "checkpoints",
            f"{reason}, so that a restart would continue from different states",
            fix="name a directory that all hosts share with --checkpoint-dir, or leave out the restarts",
        )
    else:
        yield warning(
            "checkpoints", reason, fix="name a directory that all hosts share with --checkpoint-dir"
        )


def _why_not_shared(plan: Plan, hosts: Mapping[str, Answered]) -> str | None:
    place = plan.spec.checkpoint_dir
    if place is None:
        return "each host has its own checkpoint directory, which the end of the run removes"
    for name, (_, checked) in hosts.items():
        if checked.write is not None and checked.write.error is not None:
            return f"{name} cannot write to {place} ({one_line(checked.write.error)})"
    seen = {name: checked.read for name, (_, checked) in hosts.items() if checked.read is not None}
    for name, outcome in seen.items():
        if outcome.error is not None:
            return f"{name} cannot read {place} ({one_line(outcome.error)})"
    others = [name for name, outcome in seen.items() if outcome.value is None]
    if others:
        return f"{place} on {_joined(others)} is not the directory of {plan.chief_host}"
    return None


def _joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and 5 more`"""
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
