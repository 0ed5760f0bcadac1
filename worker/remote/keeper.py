"""The parent of an agent on another host: when the agent is gone, it ends what is left and removes the directory.

Arguments: directory, bundle, id of the agent, link timeout in seconds, and two descriptors: of the listening socket and
of the lock.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from worker.agent.processes import DIRECTORY_VARIABLE, STOPPED, read_stat
from worker.agent.task_process import become_subreaper
from worker.remote.clearing import clear_up
from worker.remote.entry import python_words
from worker.remote.relay import PID

# Interval of looks at an agent that is stopped.
_CHECK_S = 0.05


def main() -> None:
    directory, bundle, agent_id, link_timeout_s, listener, lock = sys.argv[1:]
    become_subreaper()
    # The agent ends on these signals, which may be sent to all processes of a user; this process then clears up.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    words = [
        *python_words(bundle, "worker.agent.agent"),
        *("--remote", directory, "--agent-id", agent_id),
        *("--link-timeout", link_timeout_s, "--listener", listener),
    ]
    try:
        agent = subprocess.Popen(
            words,
            env={**os.environ, DIRECTORY_VARIABLE: directory},
            start_new_session=True,
            # The lock too: it is free when both are gone.
            pass_fds=(int(listener), int(lock)),
        )
        os.close(int(listener))
        (Path(directory) / PID).write_text(str(agent.pid))
        _wait(agent.pid, float(link_timeout_s))
    finally:
        clear_up(directory, os.getpid())


def _wait(agent: int, link_timeout_s: float) -> None:
    """Wait for the end of the agent. Kill one that stays stopped by a signal: it cannot end its tasks in time."""
    kill_at: float | None = None  # while it is stopped
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED if kill_at is None else os.WUNTRACED | os.WNOHANG)
        if pid == agent:
            if not os.WIFSTOPPED(status):
                return
            kill_at = time.monotonic() + link_timeout_s
        elif pid == 0 and kill_at is not None:
            kill_at = _still_stopped(agent, kill_at)


def _still_stopped(agent: int, kill_at: float) -> float | None:
    """Wait a moment, or kill the agent if it is time. Return `kill_at`, None if the agent is not stopped any more."""
    stat = read_stat(agent)
    if stat is None or stat.state not in STOPPED:
        return None
    if time.monotonic() < kill_at:
        time.sleep(_CHECK_S)
        return kill_at
    os.kill(agent, signal.SIGKILL)
    return None


if __name__ == "__main__":
    main()
    os._exit(0)
