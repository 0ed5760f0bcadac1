"""Which Keras a script gets: names that only Keras 2 has are found, and nothing else counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import KerasOption
from orchestrator.host.installed import Installed, installed_for
from orchestrator.request.command.keras_choice import KerasChoice, choose_keras
from orchestrator.request.command.program import find_program

BOTH = Installed("2.21.0", tf_keras=True)
KERAS_3_ALONE = Installed("2.21.0", tf_keras=False)
TUTORIALS = Path(__file__).resolve().parents[2] / "e2e/local/tutorials"


def choose(
    cwd: Path,
    script: str = "t.py",
    *,
    has: Installed | None = BOTH,
    asked: KerasOption = KerasOption.AUTO,
    environ: Mapping[str, str] | None = None,
    words: tuple[str, ...] = (),
) -> KerasChoice:
    program = find_program((script, *words), cwd, environ or {})
    return choose_keras(program, "python", environ or {}, asked, lambda: has, (script, *words))


def write(directory: Path, text: str, name: str = "t.py") -> None:
    (directory / name).write_text(text)


TF = "import tensorflow as tf\n"
METRIC = TF + "m = tf.keras.metrics.Mean()\nm.reset_states()\n"
MODEL = TF + "model = tf.keras.Sequential([])\n"
NEEDS_KERAS_2 = {
    "reset_states of a metric": (
        TF + "m = tf.keras.metrics.Mean()\nm.reset_states()\n",
        "t.py line 3 uses reset_states of a metric",
    ),
    "reset_states of a metric in an attribute": (
        (
            "from tensorflow.keras import metrics\nclass T:\n  def __init__(self):\n"
            "    self.m = metrics.Mean()\n  def go(self):\n    self.m.reset_states()\nT().go()\n"
        ),
        "line 6 uses reset_states of a metric",
    ),
    "a metric class imported by another name": (
        "from tensorflow.keras.metrics import Sum as M\nm = M()\nm.reset_states()\n",
        "line 3 uses r",
    ),
    "reset_states of a model": (MODEL + "model.reset_states()\n", "line 3 uses reset_states of a model"),
    "fit_generator of a model": (
        TF
        + (
            "def build():\n  m = tf.keras.Sequential()\n  return m\nmodel = build()\nmodel.fit_generator(x)\n"
        ),
        "line 6 uses fit_generator of a model",
    ),
    "predict_generator of a model class of the script": (
        TF + "class M(tf.keras.Model):\n  pass\nmodel = M()\nmodel.predict_generator(x)\n",
        "line 5 uses predict_generator of a model",
    ),
    "legacy optimizers": (
        TF + "o = tf.keras.optimizers.legacy.Adam()\n",
        "line 2 uses tf.keras.optimizers.legacy",
    ),
    "legacy optimizers imported by name": (
        "from tensorflow.keras.optimizers.legacy import SGD\no = SGD()\n",
        "tf.keras.opt",
    ),
    "lr given": (
        TF + "o = tf.keras.optimizers.Adam(lr=1)\n",
        "line 2 gives lr to Adam, which Keras 3 does not take",
    ),
    "lr read": (TF + "o = tf.keras.optimizers.Adam()\nprint(o.lr)\n", "line 3 uses lr of an optimizer"),
    "lr of the optimizer of a model": (
        MODEL + "print(model.optimizer.lr)\n",
        "line 3 uses lr of an optimizer",
    ),
    "minimize": (
        TF + "o = tf.keras.optimizers.SGD()\no.minimize(f, v)\n",
        "line 3 uses minimize of an optimizer",
    ),
    "variables called as a function": (
        TF + "o = tf.keras.optimizers.SGD()\no.variables()\n",
        "line 3 calls variables",
    ),
    "a dataset creator": (
        TF + "d = tf.keras.utils.experimental.DatasetCreator(f)\n",
        "tf.keras.utils.experimental",
    ),
    "experimental": (TF + "m = tf.keras.experimental.LinearModel()\n", "line 2 uses tf.keras.experimental"),
    "preprocessing": (
        "from tensorflow.keras import layers as L\nx = L.experimental.x\n",
        "layers.experimental",
    ),
    "a backend function": (
        "from tensorflow.keras import backend as K\nK.learning_phase()\n",
        "backend.learning_phase",
    ),
    "a SavedModel": (MODEL + "model.save('dir')\n", "line 3 saves a model under a name"),
    "a SavedModel by variable": (
        MODEL + "path = 'dir/x'\nmodel.save(path)\n",
        "line 4 saves a model under a name",
    ),
    "a model saved under an unknown name, and no file of Keras 3": (
        MODEL + "model.save(write_filepath(args.model_dir))\n",
        "line 3 saves a model, and the source names no .keras or .h5 file",
    ),
    "a model that a function of the script returns": (
        TF + "def net():\n  m = tf.keras.Sequential()\n  return m\nfitted = net()\nfitted.save('dir')\n",
        "line 6 saves a model under a name",
    ),
    "a number as shape": (TF + "x = tf.keras.Input(shape=(14))\n", "line 2 gives a number as shape to Input"),
    "save_format=tf": (MODEL + "model.save(p, save_format='tf')\n", 'line 3 saves with save_format="tf"'),
    "weights saved under a name of Keras 2": (
        MODEL + "model.save_weights('w.ckpt')\n",
        "line 3 saves weights under a name",
    ),
    "checkpoints in a path by variable": (
        TF
        + "path = folder + '/weights-{epoch:04d}'\n"
        + "c = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True)\n",
        "line 3 keeps checkpoints under a name that does not end in .weights.h5",
    ),
    "weights in a joined path": (
        MODEL + "model.save_weights(os.path.join(d, 'w.h5'))\n",
        "line 3 saves weights",
    ),
    "checkpoints under a name of Keras 2": (
        TF + "c = tf.keras.callbacks.ModelCheckpoint('ckpt/{epoch}')\n",
        "line 2 keeps checkpoints",
    ),
    "a checkpoint of weights": (
        TF + "c = tf.keras.callbacks.ModelCheckpoint('c.h5', save_weights_only=True)\n",
        "does not end in .weights.h5",
    ),
    "a checkpoint's period": (
        TF + "c = tf.keras.callbacks.ModelCheckpoint(p, period=2)\n",
        "gives period to",
    ),
    "workers": (MODEL + "model.fit(x, workers=2)\n", "line 3 gives workers to fit"),
    "a layer's argument": (
        TF + "d = tf.keras.layers.Dense(2, batch_input_shape=(2, 3))\n",
        "gives batch_input_shape",
    ),
    "parameter servers": (
        TF
        + (
            "s = tf.distribute.experimental.ParameterServerStrategy(r)\nwith s.scope():\n"
            "  model = tf.keras.Sequential()\nmodel.fit(x)\n"
        ),
        "line 2 uses ParameterServerStrategy with fit, which Keras 3 cannot do",
    ),
    "a layer's argument, of all layers but it": (
        TF + "d = tf.keras.layers.Embedding(2, 3, weights=w, batch_input_shape=s)\n",
        "gives batch_input_shape to Embedding",
    ),
    "in main": (
        TF + ("def main():\n  a = tf.keras.optimizers.legacy.Adam()\nif __name__ == '__main__':\n  main()\n"),
        "line 3 uses tf.keras.optimizers.legacy",
    ),
    "in main, until Ctrl-C": (
        TF
        + (
            "def main():\n  a = tf.keras.optimizers.legacy.Adam()\ntry:\n  main()\n"
            "except KeyboardInterrupt:\n  pass\n"
        ),
        "line 3 uses tf.keras.optimizers.legacy",
    ),
    "in a function that a strategy runs": (
        TF
        + (
            "@tf.function\ndef step():\n  a = tf.keras.optimizers.legacy.Adam()\n"
            "strategy.run(step, args=(1,))\n"
        ),
        "line 4 uses tf.keras.optimizers.legacy",
    ),
    "in a function that absl runs": (
        TF + ("from absl import app\ndef main(_):\n  a = tf.keras.optimizers.legacy.Adam()\napp.run(main)\n"),
        "line 4 uses tf.keras.optimizers.legacy",
    ),
    "in loops": (
        TF
        + (
            "m = tf.keras.metrics.Mean()\nfor e in range(3):\n  while go():\n    if x():\n"
            "      break\n  with y():\n    m.reset_states()\n"
        ),
        "line 8 uses reset_states of a metric",
    ),
    "parameter servers, by their roles": (
        TF
        + (
            "def main():\n  if resolver.task_type in ('worker', 'ps'):\n    server.join()\n"
            "    return\n  elif resolver.task_type == 'evaluator':\n    pass\n  else:\n"
            "    s = tf.distribute.ParameterServerStrategy(resolver)\n"
            "  model = tf.keras.Sequential()\n  model.fit(x)\nmain()\n"
        ),
        "line 9 uses ParameterServerStrategy with fit",
    ),
    "after what ends in an error": (
        TF + "if not x:\n  raise ValueError\na = tf.keras.optimizers.legacy.Adam()\n",
        "line 4 uses",
    ),
    "a metric as an argument": (
        TF + "m = tf.keras.metrics.Mean()\ndef f(m):\n  m.reset_states()\n",
        "t.py line 4 uses reset_states of a metric",
    ),
    "under an unknown condition": (
        TF + "a = tf.keras.optimizers.Adam() if K3 else tf.keras.optimizers.legacy.Adam()\n",
        "t.py line 2 uses tf.keras.optimizers.legacy",
    ),
    "after a return under a condition": (
        TF + ("def f():\n  if K3:\n    return 1\n  return tf.keras.optimizers.legacy.Adam()\na = f()\n"),
        "t.py line 5 uses tf.keras.optimizers.legacy",
    ),
    "after an exit under a condition": (
        TF + "import sys\nif K3:\n  go()\n  sys.exit()\na = tf.keras.optimizers.legacy.Adam()\n",
        "t.py line 6 uses tf.keras.optimizers.legacy",
    ),
    "after a return in a loop": (
        TF + ("def f():\n  for x in y:\n    if x:\n      return\n  tf.keras.optimizers.legacy.Adam()\nf()\n"),
        "t.py line 6 uses tf.keras.optimizers.legacy",
    ),
    "after a continue": (
        TF + "for x in y:\n  if x:\n    continue\n  tf.keras.optimizers.legacy.Adam()\n",
        "t.py line 5 uses tf.keras.optimizers.legacy",
    ),
    "a metric of another class": (
        TF
        + (
            "class A:\n  def __init__(self):\n    self.m = tf.keras.metrics.Mean()\nclass B:\n"
            "  def __init__(self):\n    self.m.reset_states()\nA()\nB()\n"
        ),
        "t.py line 7 uses reset_states of a metric",
    ),
    "one of two formats": (
        MODEL + "if x:\n  model.save('dir')\nelse:\n  model.save('x.keras')\n",
        "t.py line 4 saves a model under a name that does not end in .keras or .h5",
    ),
    "in a function that is not called": (
        TF + "def f():\n  tf.keras.optimizers.legacy.Adam()\n",
        "t.py line 3 uses tf.keras.optimizers.legacy",
    ),
    "in a method that is not called": (
        TF + "class T:\n  def f(self):\n    tf.keras.optimizers.legacy.Adam()\nT()\n",
        "t.py line 4 uses tf.keras.optimizers.legacy",
    ),
    "in a function that may be called": (
        TF + "def f():\n  tf.keras.optimizers.legacy.Adam()\nif x:\n  f()\n",
        "t.py line 3 uses tf.keras.optimizers.legacy",
    ),
    "in a function in a dict": (
        TF
        + (
            "def f():\n  return tf.keras.optimizers.legacy.Adam()\nways = {'old': f, 'lambda': lambda: f()}\n"
        ),
        "t.py line 3 uses tf.keras.optimizers.legacy",
    ),
    "for one role only": (
        TF + "if task_type == 'chief' and x:\n  tf.keras.optimizers.legacy.Adam()\n",
        "t.py line 3 uses tf.keras.optimizers.legacy",
    ),
    "in the else of a loop": (
        TF + "for x in y:\n  pass\nelse:\n  tf.keras.optimizers.legacy.Adam()\n",
        "t.py line 5 uses tf.keras.optimizers.legacy",
    ),
    "in a case": (
        TF + "match x:\n  case 1:\n    tf.keras.optimizers.legacy.Adam()\n",
        "t.py line 4 uses tf.keras.optimizers.legacy",
    ),
    "reset_states of a loop variable": (
        TF + "for metric in model.metrics:\n  metric.reset_states()\n",
        "line 3 uses reset_states of a metric",
    ),
    "a tf.Module in Sequential": (
        TF + ("class Dense(tf.Module):\n  pass\nlayer = Dense()\nmodel = tf.keras.Sequential([layer])\n"),
        "line 5 puts a tf.Module into Sequential, which Keras 3 refuses",
    ),
}


@pytest.mark.parametrize(("text", "says"), NEEDS_KERAS_2.values(), ids=NEEDS_KERAS_2)
def test_a_name_of_keras_2_chooses_tf_keras(tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path, text)
    choice = choose(tmp_path)
    assert choice.legacy
    assert choice.note is not None
    assert says in choice.note
    assert choice.note.endswith(": tf_keras is used (--keras 3 to refuse)")


RUNS_ON_KERAS_3 = {
    "a model in an attribute, made by a method": TF
    + (
        "class T:\n  def __init__(self):\n    self.net = self.make()\n"
        "    self.net.reset_states()\n  def make(self):\n    return tf.keras.Sequential()\n"
        "t = T()\n"
    ),
    "names of Keras 3": TF + "m = tf.keras.metrics.Mean()\nm.reset_state()\n",
    "reset_states of an unknown object": TF + "m = make()\nm.reset_states()\n",
    "reset_states of a class of the script": TF
    + "class Agent:\n  def reset_states(self): pass\na = Agent()\na.reset_states()\n",
    "reset_states of a recurrent layer": TF + "l = tf.keras.layers.LSTM(3)\nl.reset_states()\n",
    "a variable with two kinds of values": TF
    + "m = tf.keras.metrics.Mean()\nm = other()\nm.reset_states()\n",
    "a model class that defines reset_states": TF
    + ("class M(tf.keras.Model):\n  def reset_states(self): pass\nmodel = M()\nmodel.reset_states()\n"),
    "a check with hasattr": TF
    + ("o = tf.keras.optimizers\nif hasattr(o, 'legacy'):\n  a = tf.keras.optimizers.legacy.Adam()\n"),
    "a check of the version": TF + "if tf.__version__ < '2.16':\n  a = tf.keras.optimizers.legacy.Adam()\n",
    "a try with ImportError": TF
    + "try:\n  a = tf.keras.optimizers.legacy.Adam()\nexcept ImportError:\n  a = None\n",
    "names of another module": TF + "import mine\na = mine.optimizers.legacy.Adam()\n",
    "a text and a comment": TF + "print('tf.keras.optimizers.legacy')  # model.fit_generator\n",
    "lr stored, not read": TF + "o = tf.keras.optimizers.Adam()\no.lr = 1\n",
    "lr of another library": TF + "o = torch.optim.Adam(lr=1)\n",
    "decay, which Keras 3 takes": TF + "o = tf.keras.optimizers.SGD(learning_rate=1, decay=0.1)\n",
    "models saved in formats of Keras 3": MODEL
    + "model.save('m.keras')\nmodel.save(f'{d}/m.h5')\nmodel.save(path)\n",
    "the ending of a file of Keras 3": MODEL + "model.save(path.with_suffix('.keras'))\n",
    "a name of Keras 3 beside an unknown path": MODEL + "tf.keras.ops.abs(x)\nmodel.save(path)\n",
    "a shape in a tuple": TF + "x = tf.keras.Input(shape=(14,))\ny = tf.keras.layers.Input((3,))\n",
    "something else saved under an unknown name": MODEL + "image.save(path)\n",
    "weights saved under a name of Keras 3": MODEL
    + "model.save_weights('a.weights.h5')\nmodel.save_weights(p + '.h5')\n",
    "checkpoints under names of Keras 3": TF
    + "tf.keras.callbacks.ModelCheckpoint('a.keras')\ntf.keras.callbacks.ModelCheckpoint(p)\n",
    "a checkpoint of TensorFlow": MODEL + "tf.train.Checkpoint(model=model).save('dir')\n",
    "parameter servers with a coordinator": TF
    + ("s = tf.distribute.ParameterServerStrategy(r)\nc = tf.distribute.coordinator.ClusterCoordinator(s)\n"),
    "parameter servers and fit of another object": TF
    + "s = tf.distribute.ParameterServerStrategy(r)\nscaler.fit(x)\n",
    "workers given to another object": TF + "pool.fit(x, workers=2)\n",
    "keras imported by its own name": TF + "import keras\nm = tf.keras.metrics.Mean()\nm.reset_states()\n",
    "tf_keras imported by its own name": TF
    + "import tf_keras\nm = tf.keras.metrics.Mean()\nm.reset_states()\n",
    "the script sets TF_USE_LEGACY_KERAS": (
        "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport tensorflow as tf\n"
        "tf.keras.experimental.x\n"
    ),
    "source that is not Python": TF + "tf.keras.experimental. = 3\n",
    "a check of the platform": TF
    + ("import platform\nif platform.system() == 'Darwin':\n  a = tf.keras.optimizers.legacy.Adam()\n"),
    "a check of the version in a variable": TF
    + ("K3 = tf.__version__ >= '2.16'\nif K3:\n  a = 1\nelse:\n  a = tf.keras.optimizers.legacy.Adam()\n"),
    "a handler for AttributeError": TF
    + "try:\n  a = x\nexcept AttributeError:\n  a = tf.keras.optimizers.legacy.Adam()\n",
    "ImportError suppressed": TF
    + ("import contextlib\nwith contextlib.suppress(ImportError):\n  tf.keras.optimizers.legacy.Adam()\n"),
    "an import with an alternative": TF
    + (
        "try:\n  from tensorflow.keras.layers import RandomFlip\nexcept ImportError:\n"
        "  from tensorflow.keras.layers.experimental.preprocessing import RandomFlip\n"
        "x = RandomFlip()\n"
    ),
    "lr of a configuration": TF
    + (
        "class T:\n  def __init__(self, cfg):\n"
        "    self.optimizer = tf.keras.optimizers.Adam(cfg.optimizer.lr)\nT(1)\n"
    ),
    "two strategies": TF
    + (
        "if x:\n  s = tf.distribute.ParameterServerStrategy(r)\nelse:\n"
        "  s = tf.distribute.MultiWorkerMirroredStrategy()\nmodel = tf.keras.Sequential()\n"
        "model.fit(x)\n"
    ),
    "another strategy under a condition": TF
    + (
        "s = tf.distribute.ParameterServerStrategy(r)\nif x:\n"
        "  s = tf.distribute.MirroredStrategy()\nmodel = tf.keras.Sequential()\nmodel.fit(x)\n"
    ),
    "weights of an embedding": TF + "e = tf.keras.layers.Embedding(10, 4, weights=[m])\n",
    "batch_input_shape of an input layer": TF + "e = tf.keras.layers.InputLayer(batch_input_shape=(1, 2))\n",
    "an unknown layer": TF + "e = tf.keras.layers.NewLayer(weights=[m])\n",
    "classes in a dict": TF
    + "ways = {'old': tf.keras.optimizers.legacy.Adam, 'new': tf.keras.optimizers.Adam}\n",
    "a method of another object": TF
    + (
        "class W:\n  def build(self):\n    return tf.keras.Sequential()\nm = other.build()\n"
        "m.reset_states()\n"
    ),
    "a choice with getattr": TF
    + "m = tf.keras.metrics.Mean()\nr = getattr(m, 'reset_state', None) or m.reset_states\n",
    "reset_states of an unknown model class": TF
    + "class M(Mixin, tf.keras.Model):\n  pass\nm = M()\nm.reset_states()\n",
    "an attribute that the script adds to Keras": TF
    + ("tf.keras.metrics.Metric.reset_states = f\nm = tf.keras.metrics.Mean()\nm.reset_states()\n"),
    "a name with two meanings": (
        "from tensorflow.keras import optimizers\noptimizers = mine\noptimizers.legacy.Adam()\n"
    ),
    "a layer in Sequential": TF
    + (
        "class Dense(tf.keras.layers.Layer):\n  pass\nlayer = Dense()\nmodel = tf.keras.Sequential([layer])\n"
    ),
    "a check of the version elsewhere in the file": TF
    + "KERAS_3 = tf.__version__ >= '2.16'\ndef f():\n  tf.keras.optimizers.legacy.Adam()\n",
}


@pytest.mark.parametrize("text", RUNS_ON_KERAS_3.values(), ids=RUNS_ON_KERAS_3)
def test_other_scripts_get_keras_3(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert choose(tmp_path) == KerasChoice(legacy=False)


def test_file_of_keras_3_in_the_command(tmp_path: Path) -> None:
    write(tmp_path, MODEL + "model.save(sys.argv[1])\n")
    assert choose(tmp_path, words=("model.keras",)) == KerasChoice(legacy=False)
    assert choose(tmp_path, words=("model",)).legacy


def test_tutorials_of_the_documentation() -> None:
    loop = choose(TUTORIALS, "custom_loop.py")
    assert loop.legacy
    assert "uses reset_states of a metric, which Keras 3 does not have" in (loop.note or "")
    assert choose(TUTORIALS, "multi_worker_keras.py") == KerasChoice(legacy=False)


def test_local_modules_count(tmp_path: Path) -> None:
    write(tmp_path, "import lib\n")
    write(tmp_path, TF + "a = tf.keras.optimizers.legacy.Adam()\n", "lib.py")
    assert (choose(tmp_path).note or "").startswith("lib.py line 2 uses tf.keras.optimizers.legacy")


@pytest.mark.parametrize(
    "use",
    [
        TF + "import lib\n",
        "from lib import old as o\no()\n",
        "from pkg import old\n",
        "def f():\n    import lib\n",
        "try:\n    import lib\nexcept OSError:\n    lib = None\n",
    ],
)
def test_functions_of_local_modules_count_if_they_are_not_called(tmp_path: Path, use: str) -> None:
    write(tmp_path, TF + "def old():\n    tf.keras.optimizers.legacy.Adam()\n", "lib.py")
    (tmp_path / "pkg").mkdir()
    write(tmp_path, "from lib import old\n", "pkg/__init__.py")
    write(tmp_path, use)
    assert choose(tmp_path).legacy


def test_weights_of_a_model_that_a_local_module_makes(tmp_path: Path) -> None:
    write(tmp_path, TF + "import lib\nmodel = lib.build()\nmodel.save_weights('w')\n")
    write(tmp_path, TF + "def build():\n    return tf.keras.Sequential()\n# reset_states\n", "lib.py")
    assert choose(tmp_path).legacy


def test_source_that_is_nested_too_deeply_gets_keras_3(tmp_path: Path) -> None:
    write(tmp_path, TF + "x = 0" + " + 1" * 1_500 + "\ntf.keras.optimizers.legacy.Adam()\n")
    assert choose(tmp_path) == KerasChoice(legacy=False)


def test_missing_tf_keras_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    write(tmp_path, METRIC)
    choice = choose(tmp_path, has=KERAS_3_ALONE)
    assert not choice.legacy
    assert choice.note == (
        "t.py line 3 uses reset_states of a metric, which Keras 3 does not have; tf_keras could, but is not"
        " installed: python -m pip install tf_keras~=2.21.0"
    )


@pytest.mark.parametrize("has", [None, Installed("2.15.1", tf_keras=False)])
def test_unknown_interpreters_and_older_tensorflow_get_no_choice(
    tmp_path: Path, has: Installed | None
) -> None:
    write(tmp_path, METRIC)
    assert choose(tmp_path, has=has) == KerasChoice(legacy=False)


def test_options_and_variables_of_the_user_win(tmp_path: Path) -> None:
    write(tmp_path, METRIC)
    assert choose(tmp_path, asked=KerasOption.THREE) == KerasChoice(legacy=False)
    assert choose(tmp_path, environ={"TF_USE_LEGACY_KERAS": "0"}) == KerasChoice(legacy=False)
    write(tmp_path, TF)
    assert choose(tmp_path, asked=KerasOption.LEGACY) == KerasChoice(legacy=True)


@pytest.mark.parametrize(
    ("asked", "environ", "has", "says"),
    [
        (KerasOption.LEGACY, {}, KERAS_3_ALONE, r"python -m pip install tf_keras~=2\.21\.0"),
        (KerasOption.LEGACY, {}, None, "is it a working Python"),
        (KerasOption.LEGACY, {"TF_USE_LEGACY_KERAS": "0"}, BOTH, "unset it"),
        (KerasOption.THREE, {"TF_USE_LEGACY_KERAS": "1"}, BOTH, "unset it"),
    ],
)
def test_contradictions_and_missing_packages_are_refused(
    tmp_path: Path, asked: KerasOption, environ: Mapping[str, str], has: Installed | None, says: str
) -> None:
    write(tmp_path, TF)
    with pytest.raises(UsageError, match=says):
        choose(tmp_path, asked=asked, environ=environ, has=has)


def test_installed_packages_of_another_interpreter(tmp_path: Path) -> None:
    """A virtual environment without anything, to which PYTHONPATH adds a tf_keras."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    assert installed_for(str(python), {"PATH": os.defpath}) == Installed(None, tf_keras=False)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "tf_keras.py").touch()
    (tmp_path / "lib" / "tensorflow-2.15.0.dist-info").mkdir()
    (tmp_path / "lib" / "tensorflow-2.15.0.dist-info" / "METADATA").write_text(
        "Name: tensorflow\nVersion: 2.15.0\n"
    )
    has = installed_for(str(python), {"PYTHONPATH": str(tmp_path / "lib")})
    assert has == Installed("2.15.0", tf_keras=True)
    assert not has.keras_is_3


def test_interpreters_that_do_not_answer(tmp_path: Path) -> None:
    assert installed_for(str(tmp_path / "gone"), {}) is None
    assert installed_for("/bin/false", {}) is None
    assert installed_for("/bin/echo", {}) is None


_WORDS = st.sampled_from(
    [
        "tf.keras", ".optimizers", ".legacy", ".Adam", "(", ")", "lr=1", "\n", "m", " = ", "m.reset_states", "self.",
        "class A(tf.keras.Model):", " pass", "def f(m):", "\n    ", "return m", ".metrics.Mean()", "if ", "hasattr(",
        ":", "with x as m", "for m in", "'x'", "f'{m}.h5'", ".save", ".fit", "[", "]", ", ", "lambda m: ", "*", ":=",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(_WORDS, max_size=16))
def test_any_source_has_an_answer(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    cwd = tmp_path_factory.getbasetemp() / "any-keras"
    cwd.mkdir(exist_ok=True)
    write(cwd, TF + "".join(words))
    choice = choose(cwd)
    assert choice.legacy is (choice.note is not None)
