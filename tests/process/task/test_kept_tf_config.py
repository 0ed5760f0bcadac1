"""The bootstrap keeps TF_CONFIG as orch has set it, whatever the script does to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tasks import finished

ORCHS = json.dumps({"cluster": {"worker": ["127.0.0.1:4001"]}, "task": {"type": "worker", "index": 0}})
# Each change is line 3 of a script, in a forked child of the task.
SCRIPT = """
import json, os, subprocess, sys

def look():
    seen = [os.environ["TF_CONFIG"], os.getenv("TF_CONFIG"), dict(os.environ)["TF_CONFIG"]]
    seen += [os.environb[b"TF_CONFIG"].decode()]
    seen += [subprocess.check_output(["printenv", "TF_CONFIG"], text=True).strip()]
    seen += [os.popen("printenv TF_CONFIG").read().strip()]
    print("seen", set(seen) == {ORCHS}, flush=True)

for code in CODES:
    print("begin", flush=True)
    if not os.fork():
        exec(compile(f"import json, os\\n\\n{code}", "train.py", "exec"), {})
        look()
        os._exit(0)
    os.wait()
"""
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
    # Only the first change is reported.
    "several": "os.putenv('TF_CONFIG', '{}'); os.unsetenv(b'TF_CONFIG')\ndel os.environ['TF_CONFIG']",
}
OTHER_USES = [
    "os.environ.setdefault('TF_CONFIG', '{}')",
    "os.environ['TF_CONFIG'] = os.environ['TF_CONFIG']",
    "os.environ['A'] = '1'; os.putenv('B', '2'); assert os.environ.pop('A') == '1'; os.environ.pop('C', None)",
    "env = dict(os.environ); env['TF_CONFIG'] = '{}'; env.clear()",
    "kept = dict(os.environ)\nwhile len(os.environ) > 1: os.environ.popitem()\nos.environ.update(kept)",
]


def outputs(directory: Path, *codes: str, keep: bool = True) -> Iterator[list[str]]:
    """Run each code as a script. Yield the lines that each has written."""
    directory.mkdir(exist_ok=True)
    script = SCRIPT.replace("ORCHS", repr(ORCHS)).replace("CODES", repr(codes))
    (directory / "train.py").write_text(script)
    task = finished(directory, ["train.py"], env={"TF_CONFIG": ORCHS}, hooks=False, keep_tf_config=keep)
    assert task.wait() == 0, task.output
    nothing, *found = task.output.split("begin\n")
    assert (nothing, len(found)) == ("", len(codes)), task.output
    return (text.splitlines() for text in found)


def test_a_change_alone_is_reported_with_its_line_and_has_no_effect(tmp_path: Path) -> None:
    wrong = []
    for change, lines in zip(CHANGES, outputs(tmp_path, *CHANGES.values()), strict=True):
        verb = "removes" if any(word in change for word in ("deletion", "removal", "unsetenv")) else "sets"
        said = f"orch: train.py line 3 {verb} TF_CONFIG; the task keeps the one that orch made"
        if len(lines) != 2 or not lines[0].startswith(said) or lines[1] != "seen True":
            wrong.append((change, lines))
    found = zip(OTHER_USES, outputs(tmp_path, *OTHER_USES), strict=True)
    wrong += [(use, lines) for use, lines in found if lines != ["seen True"]]
    assert not wrong


def test_the_scripts_own_tf_config_has_effect_if_requested(tmp_path: Path) -> None:
    assert list(outputs(tmp_path, CHANGES["an assignment"], keep=False)) == [["seen False"]]
