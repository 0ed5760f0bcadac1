"""What `orch --help` says can be read to its end."""

from __future__ import annotations

import os
import subprocess
import sys


def test_no_verb_is_told_with_half_a_sentence() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "orchestrator", "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    verbs = told.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(verbs) >= 13
    assert [line for line in verbs if not line.endswith(".")] == []
    assert [line for line in verbs if line.endswith("...")] == []
