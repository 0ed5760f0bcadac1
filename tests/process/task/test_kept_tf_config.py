"""The bootstrap keeps TF_CONFIG as orch has set it, whatever the script does to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tasks import Task, finished

ORCHS = json.dumps({"cluster": {"worker": ["127.0.0.1:4001"]}, "task": {"type": "worker", "index": 0}})
LOOK = """
import os, subprocess, sys
child = [sys.executable, "-c", "import os; print(os.environ['TF_CONFIG'])"]
seen = [os.environ["TF_CONFIG"], os.getenv("TF_CONFIG"), dict(os.environ)["TF_CONFIG"]]
seen += [os.environb[b"TF_CONFIG"].decode()]
seen += [subprocess.check_output(child, text=True).strip(), os.popen("printenv TF_CONFIG").read().strip()]
print("seen", set(seen) == {ORCHS}, flush=True)
""".replace("ORCHS", repr(ORCHS))

CHANGES = {
    "an assignment": "os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['localhost:12345']}})",
    "an assignment of bytes": "os.environb[b'TF_CONFIG'] = b'{}'",
    "an update": "os.environ.update({'TF_CONFIG': '{}', 'A': '1'})",
    "an update by a keyword": "os.environ.update(TF_CONFIG='{}')",
    "a merge": "os.environ |= {'TF_CONFIG': '{}'}",
    "a deletion": "del os.environ['TF_CONFIG']",
    "a removal": "assert os.environ.pop('TF_CONFIG', None) == os.environ['TF_CONFIG']",
    "a removal of everything": "path = os.environ['PATH']; os.environ.clear(); os.environ['PATH'] = path",
    "putenv": "os.putenv('TF_CONFIG', '{}')",
    "unsetenv": "os.unsetenv(b'TF_CONFIG')",
}


def run(directory: Path, code: str, *, keep: bool = True) -> Task:
    directory.mkdir(exist_ok=True)
    (directory / "train.py").write_text(f"import json, os\n\n{code}\n{LOOK}")
    task = finished(directory, ["train.py"], env={"TF_CONFIG": ORCHS}, hooks=False, keep_tf_config=keep)
    assert task.wait() == 0, task.output
    return task


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_no_effect_and_is_reported_with_its_line(tmp_path: Path, change: str) -> None:
    first, *others = run(tmp_path, CHANGES[change]).output.splitlines()
    assert others == ["seen True"]
    verb = "removes" if any(word in change for word in ("deletion", "removal", "unsetenv")) else "sets"
    assert first.startswith(f"orch: train.py line 3 {verb} TF_CONFIG; the task keeps the one that orch made")


def test_only_the_first_change_is_reported(tmp_path: Path) -> None:
    task = run(tmp_path, "\n".join(CHANGES.values()))
    assert task.output.count("orch: ") == 1 and "seen True" in task.output


@pytest.mark.parametrize(
    "code",
    [
        "os.environ.setdefault('TF_CONFIG', '{}')",
        "os.environ['TF_CONFIG'] = os.environ['TF_CONFIG']",
        "os.environ['A'] = '1'; os.putenv('B', '2'); assert os.environ.pop('A') == '1'; os.environ.pop('C', None)",
        "env = dict(os.environ); env['TF_CONFIG'] = '{}'; env.clear()",
    ],
)
def test_other_uses_are_not_reported(tmp_path: Path, code: str) -> None:
    assert run(tmp_path, code).output == "seen True\n"


def test_a_change_in_a_forked_child_has_no_effect(tmp_path: Path) -> None:
    code = "if not os.fork():\n    os.environ['TF_CONFIG'] = '{}'\nelse:\n    os.wait()"
    lines = run(tmp_path, code).output.splitlines()
    assert sorted(lines)[1:] == ["seen True", "seen True"]
    assert "train.py line 4 sets TF_CONFIG" in sorted(lines)[0]


def test_the_environment_can_be_emptied_otherwise(tmp_path: Path) -> None:
    code = "kept = dict(os.environ)\nwhile len(os.environ) > 1: os.environ.popitem()\nos.environ.update(kept)"
    assert run(tmp_path, code).output == "seen True\n"


def test_the_scripts_own_wins_where_it_is_asked_for(tmp_path: Path) -> None:
    task = run(tmp_path, CHANGES["an assignment"], keep=False)
    assert task.output == "seen False\n"
