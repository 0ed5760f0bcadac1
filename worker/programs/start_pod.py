"""Starts a task in a pod of Kubernetes: TF_CONFIG from the pod's index, then orch's bootstrap and the program.

A ConfigMap holds it with `job.json`, which `orch export` writes, and `bundle.zip`, the package `worker`. It
replaces itself by the program, which gets the pod's signals and whose exit code is the pod's.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

# Begins a word that names a file of the bundle (worker/wire/messages.py).
_IN_BUNDLE = "orch-bundle:"


def main() -> None:
    here = Path(__file__).resolve().parent
    job = json.loads((here / "job.json").read_text())
    task = job["tasks"][int(os.environ["JOB_COMPLETION_INDEX"])]
    os.environ.update(task["env"])
    where = {"type": task["type"], "index": task["index"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": job["clusters"][task["type"]], "task": where})
    for name in ("ORCH_CHECKPOINT_DIR", "ORCH_SCRATCH_DIR"):
        Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
    bundle = Path(tempfile.mkdtemp(prefix="orch-"))
    with zipfile.ZipFile(here / "bundle.zip") as packed:
        packed.extractall(bundle)
    if task["bootstrap"] is not None:
        _inject(bundle / "worker/bootstrap/inject", task["bootstrap"])
    argv = [
        word.replace(_IN_BUNDLE, f"{bundle}/", 1) if word.startswith(_IN_BUNDLE) else word
        for word in task["argv"]
    ]
    os.execvp(argv[0], argv)


def _inject(inject: Path, options: dict[str, Any]) -> None:
    """Let the interpreter run the bootstrap first, as the agent does (worker/agent/task_start.py)."""
    for key in ("exception_file", "stacks_file"):
        if options.get(key):
            Path(options[key]).parent.mkdir(parents=True, exist_ok=True)
    original = os.environ.get("PYTHONPATH")
    os.environ["ORCH_BOOTSTRAP"] = json.dumps({**options, "pythonpath": original})
    os.environ["PYTHONPATH"] = f"{inject}:{original}" if original else str(inject)


if __name__ == "__main__":
    main()
