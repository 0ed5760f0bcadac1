"""Every check of this machine. `orch doctor` reports what they find; `orch up` refuses to start on a problem.

A check is a function from the context to findings. To add one, write it in the module of its subject and name it in
all_checks(). If `orch up` must refuse what it finds, name it in CHECKS_OF_CONFIG (which `orch config` refuses, too) or
in CHECKS_OF_UP; if `orch up` only warns, in WARNINGS_OF_UP. These must be fast. Others are for `orch doctor` only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import JobSpec
from orchestrator.host.checks import devices, directories, machine, network, resources, settings
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, Level

Check = Callable[[Context], Iterator[Finding]]

# `orch config` and `orch up` refuse their problems. The checks that start a child process come last.
CHECKS_OF_CONFIG: tuple[Check, ...] = (
    machine.check_platform,
    machine.check_system_calls,
    devices.check_tpu,
    resources.check_process_limits,
    resources.check_task_limits,
    resources.check_files_with_hosts,
    directories.check_output_directories,
    network.check_private_network,
)
# These checks concern tasks on this machine. The preflight checks the other hosts.
CHECKS_OF_TASKS_HERE: tuple[Check, ...] = (
    devices.check_tpu,
    resources.check_process_limits,
    resources.check_task_limits,
    resources.check_memory_limit,
)
CHECKS_OF_UP = (
    settings.check_depth,
    *CHECKS_OF_CONFIG,
    directories.check_state_owner,
    directories.check_state_writable,
)
# `orch up` shows their warnings before it starts.
WARNINGS_OF_UP: tuple[Check, ...] = (
    settings.check_allocation,
    directories.check_shared_directories,
    resources.check_memory_limit,
)


def all_checks() -> tuple[Check, ...]:
    """All checks, in the order of the report."""
    from orchestrator.host.checks import software  # `orch up` does not need it

    return (
        settings.check_settings,
        settings.check_depth,
        settings.check_allocation,
        settings.check_cluster,
        directories.check_output_directories,
        directories.check_shared_directories,
        software.check_software,
        resources.check_cores,
        resources.check_memory,
        resources.check_memory_limit,
        resources.check_task_limits,
        resources.check_process_limits,
        resources.check_files_with_hosts,
        devices.check_gpus,
        devices.check_tpu,
        network.check_ports,
        network.check_port_server,
        network.check_private_network,
        network.check_exposure,
        network.check_proxies,
        directories.check_state_writable,
        directories.check_state_contents,
        directories.check_state_owner,
        directories.check_disk,
        machine.check_platform,
        machine.check_system_calls,
        machine.check_processor,
        machine.check_shared_memory,
        machine.check_processes,
        machine.check_clock,
    )


def run_checks(context: Context) -> list[Finding]:
    """Return what all checks find, in their order. They run at the same time, since some wait for a program."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as threads:
        found = threads.map(lambda check: list(check(context)), all_checks())
        return [finding for findings in found for finding in findings]


def refuse_problems(context: Context, checks: Sequence[Check] = CHECKS_OF_UP) -> None:
    """UsageError for the first problem; the remaining checks are not run."""
    for check in _of_this_machine(context.spec, checks):
        for finding in check(context):
            if finding.level is Level.PROBLEM:
                raise UsageError(finding.message)


def warnings_of_up(spec: JobSpec) -> list[str]:
    context = Context(spec, os.environ)
    checks = _of_this_machine(spec, WARNINGS_OF_UP)
    return [finding.message for check in checks for finding in check(context)]


def _of_this_machine(spec: JobSpec, checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if not (spec.is_remote and check in CHECKS_OF_TASKS_HERE)]
