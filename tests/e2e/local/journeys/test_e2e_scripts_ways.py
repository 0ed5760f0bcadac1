"""Plain TensorFlow scripts, forked or spawned: results, exits, reasons for a spawn, another Python."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from orch_command import Orch

_START_S = 180.0
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

FALLS = """
import os
import tensorflow as tf
tf.keras.config.disable_traceback_filtering()  # which drops causes

class Fall(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and os.environ["ORCH_TASK"] == "worker:1":
            try:
                {}["rate"]
            except KeyError as error:
                raise ValueError("no learning rate") from error

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.ones([640, 4]), tf.ones([640, 1]), batch_size=4, verbose=0, callbacks=[Fall()])
"""

EXITS = """
import os, sys
import tensorflow as tf

class Exit(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and os.environ["ORCH_TASK"] == "worker:1":
            print("now", flush=True)
            {end}

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    model.fit(tf.ones([640, 4]), tf.ones([640, 1]), batch_size=4, verbose=0, callbacks=[Exit()])
finally:
    print("finally", flush=True)
"""

LEVEL = """
import os
print("before", os.environ.get("TF_CPP_MIN_LOG_LEVEL"))
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "{}"
import tensorflow as tf
print("after", os.environ["TF_CPP_MIN_LOG_LEVEL"], int(tf.constant(1) + 1))
"""
# An INFO line that TensorFlow prints when it is imported.
BANNER = "This TensorFlow binary is optimized"

FOREIGN = """
import os, sys
import orchestrator, thing, worker
print("found", worker.WHOSE, orchestrator.WHOSE, thing.WHOSE, os.environ["PYTHONPATH"], sys.executable)
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.ones([64, 4]), tf.ones([64, 1]), batch_size=32, verbose=0)
print("fitted")
"""

# Code before the import of TensorFlow, files beside the script, and the reason that is reported.
REASONS = [
    (
        "import helper\nhelper.quiet()\n",
        {
            "helper.py": "import os\ndef quiet():\n    os.environ['CUDA_VISIBLE_DEVICES'] = os.environ.get('G', '')\n"
        },
        "train.py line 2 uses helper.quiet, which orch does not follow, before it imports tensorflow",
    ),
    ("", {"gast.py": "print('mine')\n"}, "gast.py takes the place of a module that TensorFlow imports"),
    (
        "import tracker\n",
        {"lib/tracker.py": "import os\nos.environ['TF_DETERMINISTIC_OPS'] = '1'\n"},
        "tracker.py line 2 sets TF_DETERMINISTIC_OPS before it imports tensorflow",
    ),
    (
        "import unheard_of\n",
        {},
        "train.py line 1 imports unheard_of, which may do anything when it is imported, before it imports tensorflow",
    ),
]


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_script_that_fails_in_training(orch: Orch, start: str) -> None:
    script = orch.script("train.py", FALLS)
    done = orch.start("up", "-n", "2", "--start", start, "--", script).finish(_START_S)
    assert done.code == 1, done.out + done.err
    assert orch.methods() == {"fork" if start == "auto" else "spawn"}
    first = orch.result()["first_failure"]
    assert (first["task"], first["exception"]) == ("worker:1", "ValueError: no learning rate")
    whole = Path(first["exception_file"])
    assert whole.is_relative_to(orch.run_dir() / "exceptions")
    assert "KeyError: 'rate'" in whole.read_text()
    assert f"  full traceback {whole}" in done.err.splitlines()
    assert "orch: worker:1 failed: ValueError: no learning rate (" in done.err
    (peer,) = (line for line in done.err.splitlines() if line.startswith("  other tasks "))
    # The worker that waits in a collective may be stopped before it reports its own error.
    assert peer in (
        "  other tasks    worker:0: failed because of it",
        "  other tasks    worker:0: stopped by orch",
    )
    assert orch.result()["cause"]["task"] == "worker:1"


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("sys.exit('rate too high')", 1, "rate too high"),
        ("sys.exit(3)", 3, "finally"),
        ("os._exit(4)", 4, "now"),
    ],
)
def test_script_that_exits_in_training(orch: Orch, end: str, code: int, last: str) -> None:
    script = orch.script("train.py", EXITS.format(end=end))
    done = orch.start("up", "-n", "2", "--", script).finish(_START_S)
    assert done.code == code, done.out + done.err
    first = orch.result()["first_failure"]
    assert (first["task"], first["exit_code"], first["exception"]) == ("worker:1", code, None)
    assert (orch.run_dir() / "logs" / "worker-1.log").read_text().splitlines()[-1] == last
    assert f"orch: worker:1 failed: exit {code}" in done.err.splitlines()


@pytest.mark.parametrize(("before", "beside", "reason"), REASONS)
def test_reason_for_a_spawn_is_reported(orch: Orch, before: str, beside: dict[str, str], reason: str) -> None:
    for name, text in beside.items():
        path = orch.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    script = orch.script("train.py", f"{before}import tensorflow as tf\nprint('sum', int(tf.add(1, 1)))\n")
    changes = {"PYTHONPATH": str(orch.directory / "lib")}
    done = orch.start("-v", "up", "--", script, env={**changes}).finish(_START_S)
    assert "orch: not preloaded: " in done.err
    assert reason in done.err
    assert orch.methods() == {"spawn"}


@pytest.mark.parametrize(("level", "says"), [("0", True), ("3", False)])
def test_log_level_of_the_script_applies_to_the_preloaded_import(orch: Orch, level: str, says: bool) -> None:
    script = orch.script("train.py", LEVEL.format(level))
    unset: dict[str, str | None] = {"TF_CPP_MIN_LOG_LEVEL": None}
    done = orch.start("-v", "up", "--", script, env=unset).finish(_START_S)
    assert done.code == 0, done.out + done.err
    assert orch.methods() == {"fork"}
    assert "worker:0 | before None" in done.lines
    assert f"worker:0 | after {level} 2" in done.lines
    preloader = (orch.run_dir() / "preloader.log").read_text()
    assert (BANNER in preloader + done.out) == says


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_python_without_orch(orch: Orch, start: str) -> None:
    """It has modules with the names of orch's packages, a sitecustomize, and PYTHONPATH is set."""
    python = _python_without_orch(orch.directory.parent / "venv")
    lib = orch.directory.parent / "lib"
    lib.mkdir()
    for name in ("worker.py", "orchestrator.py"):
        orch.script(name, f"WHOSE = 'my {name}'")
    (lib / "thing.py").write_text("WHOSE = 'my thing'")
    (lib / "sitecustomize.py").write_text("print('customised', flush=True)")
    script = orch.script("train.py", FOREIGN)
    words = ("-v", "up", "-n", "2", "--start", start, "--", str(python), script)
    done = orch.start(*words, env={"PYTHONPATH": str(lib)}).finish(_START_S)
    assert done.code == 0, done.out + done.err
    assert orch.methods() == {"fork" if start == "auto" else "spawn"}
    for index in (0, 1):
        log = (orch.run_dir() / "logs" / f"worker-{index}.log").read_text()
        assert log.startswith(
            f"customised\nfound my worker.py my orchestrator.py my thing {lib} {python}\n"
        ), log
        assert "fitted" in log


def _python_without_orch(venv: Path) -> Path:
    """A virtual environment with the packages that are installed here, without orch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=_START_S)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "more.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = venv / "bin" / "python"
    missing = subprocess.run(
        [python, "-c", "import orchestrator"], capture_output=True, cwd=venv, check=False
    )
    if missing.returncode == 0:
        pytest.skip("orch is installed as files here, so the other environment sees it too")
    return python
