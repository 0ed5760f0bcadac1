"""The batch script of `orch up --detach`: starts the run in a directory on the first node of its job.

Its arguments are the directory and, if root uses the state of another user, that user.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.cli import words
from orchestrator.cli.parameters import Screen
from orchestrator.cli.up_run import run_once
from orchestrator.client.submit import submitted_request
from orchestrator.core.errors import OrchError
from orchestrator.store.ownership import accept_owner


def main(root: str, *owner: str) -> int:
    for user in owner:
        accept_owner(int(user))
    try:
        return run_once(submitted_request(Path(root)), Screen(), None).code
    except OrchError as error:
        words.say(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
