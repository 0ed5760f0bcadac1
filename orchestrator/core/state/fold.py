"""The state of a run after an event."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from orchestrator.core.job.tf_config import EVALUATOR
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, PlannedTask
from orchestrator.core.state.result import AttemptEnd, TaskBadLoss
from orchestrator.core.state.state import HostPhase, HostState, RunPhase, RunState, TaskPhase, TaskState


def apply(state: RunState, event: Event) -> RunState:
    """Return the state after `event`. The given state is not changed."""
    match event:
        case events.AttemptPlanned():
            tasks = (_planned(task, state.tasks.get(task.task)) for task in event.tasks)
            # A stop that came before the plan stays in effect.
            phase = RunPhase.STARTING if state.teardown is None else RunPhase.STOPPING
            return replace(
                state.with_tasks(tasks),
                phase=phase,
                attempt=event.attempt,
                restart_due_mono=None,
                restart_asked=False,
                bad_loss=None,
            )
        case events.TaskStarted():
            task = replace(
                state.tasks[event.task],
                # If a teardown began before the start was reported, the task is stopped right away.
                phase=TaskPhase.STARTING if state.teardown is None else TaskPhase.STOPPING,
                started=event,
                since_mono=event.mono,
                restart_due_mono=None,
                before_restart=None,
            )
            return state.with_task(task)
        case events.TaskReady():
            task = state.tasks[event.task]
            if task.phase is not TaskPhase.STARTING:
                return state
            return state.with_task(replace(task, phase=TaskPhase.RUNNING, has_listened=task.plan.serves))
        case events.TaskProgressed():
            task = state.tasks[event.task]
            since = task.since_mono if event.progress.phase == task.progress.phase else event.mono
            course = task.course.after(event.progress)
            if state.bad_loss is None and (loss := event.progress.bad_loss) is not None:
                state = replace(state, bad_loss=TaskBadLoss(task=event.task, **loss.model_dump()))
            return state.with_task(replace(task, progress=event.progress, course=course, since_mono=since))
        case events.TaskExited():
            return state.with_task(_exited(state, event))
        case events.TeardownBegan():
            return _teardown(state, event)
        case events.RestartRequested():
            return replace(state, restart_asked=True)
        case events.RestartPlanned():
            return replace(
                state,
                phase=RunPhase.STARTING,
                teardown=None,
                teardown_mono=None,
                restart_asked=False,
                restart_due_mono=event.mono + event.delay_s,
                history=_with_attempt(state.history, event.ended),
            )
        case events.TaskRestartPlanned():
            return state.with_task(_awaiting_restart(state.tasks[event.task], event.mono + event.delay_s))
        case events.Resumed():
            return _resumed(state, event)
        case events.SignalRequested():
            task = state.tasks[event.task]
            return state.with_task(replace(task, signals=(*task.signals, event)))
        case events.DiskFull():
            return state.with_task(_with_full_disk(state.tasks[event.task], event.reason))
        case events.StacksTaken():
            # Stacks that a time limit asked for explain the end of the run.
            return state if event.why == event.BY_USER else replace(state, stacks=event)
        case events.StorageFailed():
            return replace(state, storage_error=state.storage_error or event.reason)
        case events.StopRequested():
            return replace(state, stop=state.stop or event)
        case events.NoticeGiven():
            return replace(state, notice=state.notice or event)
        case events.AgentLost():
            # The agent's tasks die with it.
            return replace(_lose_unfinished(state, event.mono), agent_lost=state.agent_lost or event.reason)
        case events.HostJoined() | events.HostSilent() | events.HostBack() | events.HostLost():
            return _with_host(state, event)
        case events.JobStarted():
            return replace(state, phase=RunPhase.STARTING, queued=None)
        case events.Preload():
            is_over = event.seconds is not None or event.refused is not None
            return replace(state, preloading=() if is_over else event.modules)
        case events.Noticed():
            if event.verbose:
                return state
            return replace(state, notices=(*state.notices, event.text))
        case events.TensorBoardServes():
            return replace(state, tensorboard=event.url)
        case events.RunEndedEvent():
            ended = _lose_unfinished(state, event.mono)
            phase = RunPhase(event.outcome)
            return replace(ended, phase=phase, exit_code=event.exit_code, ended_mono=event.mono)
        case events.TeardownEnded():
            return replace(_lose_unfinished(state, event.mono), left=event.left) if event.left else state
        case events.VersionsFound():
            return state.with_task(replace(state.tasks[event.task], versions=event.versions))
        case events.DeadlineReached() | events.CheckpointSaved():
            return state
        case _:
            assert_never(event)


def _planned(plan: PlannedTask, before: TaskState | None) -> TaskState:
    """Return a task of a new attempt. `before` is the same task in the last one."""
    if before is None:
        return TaskState(plan=plan)
    # They are reported again only if they differ.
    return TaskState(plan=plan, restarts=before.restarts + 1, versions=before.versions)


def _with_host(
    state: RunState, event: events.HostJoined | events.HostSilent | events.HostBack | events.HostLost
) -> RunState:
    """Return the state after an event about a host. A host that never joined can be lost, too."""
    silent = state.silent_hosts - {event.host}
    if isinstance(event, events.HostJoined):
        hosts = {**state.hosts, event.host: HostState(joined=event)}
        return replace(state, hosts=hosts, silent_hosts=silent)
    absent = events.HostJoined(at=event.at, mono=event.mono, host=event.host, address="", cores=0)
    host = state.hosts.get(event.host, HostState(joined=absent))
    if host.phase is HostPhase.LOST and not isinstance(event, events.HostLost):
        return state
    match event:
        case events.HostSilent():
            heard = event.mono - event.seconds if host.heard_mono is None else host.heard_mono
            host = replace(host, phase=HostPhase.SILENT, heard_mono=heard)
            silent |= {event.host}
        case events.HostBack():
            host = replace(host, phase=HostPhase.JOINED, heard_mono=None)
        case events.HostLost():
            host = replace(
                host,
                phase=HostPhase.LOST,
                lost_mono=event.mono,
                reason=event.reason,
                attempt=state.attempt,
                was_needed=_is_needed(state, event.host),
            )
            state = _lose_unfinished(state, event.mono, event.host)
    return replace(state, hosts={**state.hosts, event.host: host}, silent_hosts=silent)


def _is_needed(state: RunState, host: str) -> bool:
    """Whether a host has tasks that have not ended, or gets some."""
    is_planning = not state.tasks or state.restart_due_mono is not None
    return is_planning or any(t.plan.host == host and not t.phase.is_end for t in state.tasks.values())


def _exited(state: RunState, event: events.TaskExited) -> TaskState:
    task = state.tasks[event.task]
    # A task can exit by itself while the order to stop it is on its way.
    if task.phase is TaskPhase.STOPPING and event.exit.asked:
        phase = TaskPhase.STOPPED
    elif event.exit.exit_code == 0:
        phase = TaskPhase.SUCCEEDED
    else:
        phase = TaskPhase.FAILED
    return replace(task, phase=phase, ended=event)


def _awaiting_restart(task: TaskState, due_mono: float) -> TaskState:
    """Return the failed task as it waits for its restart."""
    return TaskState(
        plan=task.plan,
        restarts=task.restarts + 1,
        restart_due_mono=due_mono,
        before_restart=replace(task, before_restart=None),
    )


def _with_full_disk(task: TaskState, reason: str) -> TaskState:
    """Mark the failed task, or its state before the restart it waits for. A running task is not marked."""
    if task.before_restart is not None:
        return replace(task, before_restart=replace(task.before_restart, full_disk=reason))
    return replace(task, full_disk=reason) if task.phase.is_end else task


def _with_attempt(history: tuple[AttemptEnd, ...], ended: AttemptEnd) -> tuple[AttemptEnd, ...]:
    """Add an attempt that is not recorded yet. A restart is planned twice if the next attempt is given up before it
    begins, such as on a host that is still away."""
    is_known = bool(history) and history[-1].attempt == ended.attempt
    return history if is_known else (*history, ended)


def _resumed(state: RunState, event: events.Resumed) -> RunState:
    if not state.history:
        return state
    *earlier, last = state.history
    resumed = last.model_copy(
        update={
            "resumed_at": event.position,
            "steps_lost": event.steps_lost,
            "exact": event.exact,
            "recovery_s": event.recovery_s,
        }
    )
    return replace(state, history=(*earlier, resumed))


def _lose_unfinished(state: RunState, mono: float, host: str | None = None) -> RunState:
    """Mark tasks (of one host) whose exit was not seen as lost; a task that never started stays pending."""

    def lose(task: TaskState) -> TaskState:
        is_elsewhere = host is not None and task.plan.host != host
        if is_elsewhere or task.phase.is_end or task.phase is TaskPhase.PENDING:
            return task
        return replace(task, phase=TaskPhase.LOST, lost_mono=mono)

    tensorboard = None if host is None else state.tensorboard
    return replace(state.with_tasks(map(lose, state.tasks.values())), tensorboard=tensorboard)


def _teardown(state: RunState, event: events.TeardownBegan) -> RunState:
    def stop(task: TaskState) -> TaskState:
        if task.before_restart is not None and task.plan.role == EVALUATOR:
            return task.before_restart  # after the training, its failure is that of the run
        return task if task.phase.is_end or task.started is None else replace(task, phase=TaskPhase.STOPPING)

    return replace(
        state.with_tasks(map(stop, state.tasks.values())),
        phase=RunPhase.STOPPING,
        tensorboard=None,
        teardown=state.teardown or event.reason,
        teardown_mono=event.mono if state.teardown_mono is None else state.teardown_mono,
    )
