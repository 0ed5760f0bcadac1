"""Which Keras a script gets: names that only Keras 2 has are found, and nothing else counts."""

from __future__ import annotations

import os
import re
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
KERAS_3 = KerasChoice(legacy=False)
TUTORIALS = Path(__file__).resolve().parents[2] / "e2e/local/tutorials"
TF = "import tensorflow as tf\n"


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
    """Write a source with the words of Keras that most cases have."""
    text = re.sub(r"\bWEIGHTS\b", "save_weights_only=True", text)
    text = re.sub(r"\bOLD\b", "tf.keras.optimizers.legacy.Adam()", text)
    text = re.sub(r"\bMODEL\b", "model = tf.keras.Sequential([])", text)
    text = re.sub(r"\bINIT\b", "def __init__(self)", text)
    text = re.sub(r"\bMEAN\b", "m = tf.keras.metrics.Mean()", text)
    text = re.sub(r"\bSERVERS\b", "s = tf.distribute.ParameterServerStrategy(r)", text)
    (directory / name).write_text(text)


METRIC = TF + "MEAN\nm.reset_states()\n"
# The line and what is found there, and a source after `import tensorflow as tf`. A name counts wherever it stands.
KERAS_2_BELOW_TF = [
    ("3 uses reset_states of a metric", "MEAN\nm.reset_states()"),
    ("3 uses reset_states of a model", "MODEL\nmodel.reset_states()"),
    ("6 uses fit_generator of a model", "def f():\n  MODEL\n  return model\nm = f()\nm.fit_generator(x)"),
    ("5 uses predict_gen", "class M(tf.keras.Model):\n pass\nm = M()\nm.predict_generator(x)"),
    ("2 uses tf.keras.optimizers.legacy", "o = OLD"),
    ("2 gives lr to Adam, which Keras 3 does not take", "o = tf.keras.optimizers.Adam(lr=1)"),
    ("3 uses lr of an optimizer", "o = tf.keras.optimizers.Adam()\nprint(o.lr)"),
    ("3 uses lr of an optimizer", "MODEL\nprint(model.optimizer.lr)"),
    ("3 uses minimize of an optimizer", "o = tf.keras.optimizers.SGD()\no.minimize(f, v)"),
    ("3 calls variables", "o = tf.keras.optimizers.SGD()\no.variables()"),
    ("2 uses tf.keras.utils.experimental", "d = tf.keras.utils.experimental.DatasetCreator(f)"),
    ("3 uses tf.keras.optimizers.legacy", "try:\n  a = OLD\nexcept KeyboardInterrupt:\n  pass"),
    ("2 uses tf.keras.experimental", "m = tf.keras.experimental.LinearModel()"),
    ("3 saves a model under a name", "MODEL\nmodel.save('dir')"),
    ("4 saves a model under a name", "MODEL\npath = 'dir/x'\nmodel.save(path)"),
    ("3 saves a model, and the source names no .keras or .h5 file", "MODEL\nmodel.save(f(args.dir))"),
    ("6 saves a model under a name", "def f():\n  MODEL\n  return model\nfitted = f()\nfitted.save('dir')"),
    ("2 gives a number as shape to Input", "x = tf.keras.Input(shape=(14))"),
    ('3 saves with save_format="tf"', "MODEL\nmodel.save(p, save_format='tf')"),
    ("3 saves weights under a name", "MODEL\nmodel.save_weights('w.ckpt')"),
    ("3 keeps checkpoints under", "p = f + '/{epoch:04d}'\ntf.keras.callbacks.ModelCheckpoint(p, WEIGHTS)"),
    ("3 saves weights", "MODEL\nmodel.save_weights(os.path.join(d, 'w.h5'))"),
    ("2 keeps checkpoints", "c = tf.keras.callbacks.ModelCheckpoint('ckpt/{epoch}')"),
    ("2 keeps checkpoints under a name that does not", "tf.keras.callbacks.ModelCheckpoint('c.h5', WEIGHTS)"),
    ("2 gives period to ModelCheckpoint", "c = tf.keras.callbacks.ModelCheckpoint(p, period=2)"),
    ("3 gives workers to fit", "MODEL\nmodel.fit(x, workers=2)"),
    ("2 gives batch_input_shape to Dense", "d = tf.keras.layers.Dense(2, batch_input_shape=(2, 3))"),
    ("2 uses ParameterServerStrategy with fit, which", "SERVERS\nwith s.scope():\n  MODEL\nmodel.fit(x)"),
    ("4 uses reset_states of a metric", "MEAN\ndef f(m):\n  m.reset_states()"),
    ("2 uses tf.keras.optimizers.legacy", "a = tf.keras.optimizers.Adam() if K3 else OLD"),
    ("7 uses r", "class A:\n INIT:\n  self.MEAN\nclass B:\n INIT:\n  self.m.reset_states()\nA()\nB()"),
    ("4 saves a model under a name that", "MODEL\nif x:\n  model.save('d')\nelse:\n  model.save('x.keras')"),
    ("3 uses tf.keras.optimizers.legacy", "def f():\n  OLD"),
    ("3 uses tf.keras.optimizers.legacy", "def f():\n  return OLD\nways = {'old': f, 'lambda': lambda: f()}"),
    ("4 uses tf.keras.optimizers.legacy", "match x:\n  case 1:\n    OLD"),
    ("3 uses reset_states of a metric", "for metric in model.metrics:\n  metric.reset_states()"),
    ("5 puts a tf.Module into", "class D(tf.Module):\n pass\nlayer = D()\ntf.keras.Sequential([layer])"),
]
# The same for sources with other imports.
KERAS_2 = [
    (
        "6 uses reset_states of a metric",
        "from tensorflow.keras import metrics\nclass T:\n INIT:\n  self.m = metrics.Mean()\n"
        " def go(self):\n  self.m.reset_states()\nT().go()",
    ),
    ("3 uses r", "from tensorflow.keras.metrics import Sum as M\nm = M()\nm.reset_states()"),
    ("2 uses tf.keras.optimizers.legacy", "from tensorflow.keras.optimizers.legacy import SGD\no = SGD()"),
    ("2 uses tf.keras.layers.experimental", "from tensorflow.keras import layers as L\nx = L.experimental.x"),
    ("2 uses tf.keras.backend.l", "from tensorflow.keras import backend as K\nK.learning_phase()"),
]
# Sources after `import tensorflow as tf`.
KERAS_3_BELOW_TF = [
    "class T:\n INIT:\n  self.n = self.f()\n  self.n.reset_states()\n def f(self):\n  MODEL\n  return model\nT()",
    "MEAN\nm.reset_state()",
    "m = make()\nm.reset_states()",
    "class Agent:\n  def reset_states(self): pass\na = Agent()\na.reset_states()",
    "l = tf.keras.layers.LSTM(3)\nl.reset_states()",
    "MEAN\nm = other()\nm.reset_states()",
    "class M(tf.keras.Model):\n  def reset_states(self): pass\nmodel = M()\nmodel.reset_states()",
    "o = tf.keras.optimizers\nif hasattr(o, 'legacy'):\n  a = OLD",
    "if tf.__version__ < '2.16':\n  a = OLD",
    "try:\n  a = OLD\nexcept ImportError:\n  a = None",
    "import mine\na = mine.optimizers.legacy.Adam()",
    "print('tf.keras.optimizers.legacy')  # model.fit_generator",
    "o = tf.keras.optimizers.Adam()\no.lr = 1",
    "o = torch.optim.Adam(lr=1)",
    "o = tf.keras.optimizers.SGD(learning_rate=1, decay=0.1)",
    "MODEL\nmodel.save('m.keras')\nmodel.save(f'{d}/m.h5')\nmodel.save(path)",
    "MODEL\nmodel.save(path.with_suffix('.keras'))",
    "MODEL\ntf.keras.ops.abs(x)\nmodel.save(path)",
    "x = tf.keras.Input(shape=(14,))\ny = tf.keras.layers.Input((3,))",
    "MODEL\nimage.save(path)",
    "MODEL\nmodel.save_weights('a.weights.h5')\nmodel.save_weights(p + '.h5')",
    "tf.keras.callbacks.ModelCheckpoint('a.keras')\ntf.keras.callbacks.ModelCheckpoint(p)",
    "MODEL\ntf.train.Checkpoint(model=model).save('dir')",
    "SERVERS\nc = tf.distribute.coordinator.ClusterCoordinator(s)",
    "SERVERS\nscaler.fit(x)",
    "pool.fit(x, workers=2)",
    "import keras\nMEAN\nm.reset_states()",
    "import tf_keras\nMEAN\nm.reset_states()",
    "tf.keras.experimental. = 3",
    "import platform\nif platform.system() == 'Darwin':\n  a = OLD",
    "K3 = tf.__version__ >= '2.16'\nif K3:\n  a = 1\nelse:\n  a = OLD",
    "try:\n  a = x\nexcept AttributeError:\n  a = OLD",
    "import contextlib\nwith contextlib.suppress(ImportError):\n  OLD",
    (
        "try:\n  from tensorflow.keras.layers import RandomFlip\nexcept ImportError:\n"
        "  from tensorflow.keras.layers.experimental.preprocessing import RandomFlip\nx = RandomFlip()"
    ),
    "class T:\n INIT:\n  self.optimizer = tf.keras.optimizers.Adam(cfg.optimizer.lr)\nT(1)",
    "if x:\n  SERVERS\nelse:\n  s = tf.distribute.MultiWorkerMirroredStrategy()\nMODEL\nmodel.fit(x)",
    "SERVERS\nif x:\n  s = tf.distribute.MirroredStrategy()\nMODEL\nmodel.fit(x)",
    "e = tf.keras.layers.Embedding(10, 4, weights=[m])",
    "e = tf.keras.layers.InputLayer(batch_input_shape=(1, 2))",
    "e = tf.keras.layers.NewLayer(weights=[m])",
    "ways = {'old': tf.keras.optimizers.legacy.Adam, 'new': tf.keras.optimizers.Adam}",
    "class W:\n  def build(self):\n    return tf.keras.Sequential()\nm = other.build()\nm.reset_states()",
    "MEAN\nr = getattr(m, 'reset_state', None) or m.reset_states",
    "class M(Mixin, tf.keras.Model):\n  pass\nm = M()\nm.reset_states()",
    "tf.keras.metrics.Metric.reset_states = f\nMEAN\nm.reset_states()",
    "class Dense(tf.keras.layers.Layer):\n  pass\nlayer = Dense()\nmodel = tf.keras.Sequential([layer])",
    "KERAS_3 = tf.__version__ >= '2.16'\ndef f():\n  OLD",
]
KERAS_3_SOURCES = [
    "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport tensorflow as tf\ntf.keras.experimental.x",
    "from tensorflow.keras import optimizers\noptimizers = mine\noptimizers.legacy.Adam()",
]


def test_a_name_of_keras_2_chooses_tf_keras(tmp_path: Path) -> None:
    end = ": tf_keras is used (--keras 3 to refuse)"
    for says, source in (*((says, TF + source) for says, source in KERAS_2_BELOW_TF), *KERAS_2):
        write(tmp_path, source)
        choice = choose(tmp_path)
        note = choice.note or ""
        assert choice.legacy and note.startswith(f"t.py line {says}") and note.endswith(end), (source, note)


def test_other_scripts_get_keras_3(tmp_path: Path) -> None:
    nested_too_deeply = TF + "x = 0" + " + 1" * 1_500 + "\nOLD\n"
    for source in (*(TF + source for source in KERAS_3_BELOW_TF), *KERAS_3_SOURCES, nested_too_deeply):
        write(tmp_path, source)
        assert choose(tmp_path) == KERAS_3, source


def test_file_of_keras_3_in_the_command(tmp_path: Path) -> None:
    write(tmp_path, TF + "MODEL\nmodel.save(sys.argv[1])\n")
    assert choose(tmp_path, words=("model.keras",)) == KERAS_3
    assert choose(tmp_path, words=("model",)).legacy


def test_tutorials_of_the_documentation() -> None:
    loop = choose(TUTORIALS, "custom_loop.py")
    assert loop.legacy
    assert "uses reset_states of a metric, which Keras 3 does not have" in (loop.note or "")
    assert choose(TUTORIALS, "multi_worker_keras.py") == KERAS_3


def test_local_modules_count(tmp_path: Path) -> None:
    write(tmp_path, TF + "import lib\nmodel = lib.build()\nmodel.save_weights('w')\n")
    write(tmp_path, TF + "def build():\n    return tf.keras.Sequential()\n# reset_states\n", "lib.py")
    assert choose(tmp_path).legacy
    # Their functions count even if they are not called.
    write(tmp_path, TF + "def old():\n    OLD\n", "lib.py")
    (tmp_path / "pkg").mkdir()
    write(tmp_path, "from lib import old\n", "pkg/__init__.py")
    for use in (
        TF + "import lib\n",
        "from lib import old as o\no()\n",
        "from pkg import old\n",
        "def f():\n    import lib\n",
        "try:\n    import lib\nexcept OSError:\n    lib = None\n",
    ):
        write(tmp_path, use)
        assert (choose(tmp_path).note or "").startswith("lib.py line 3 uses tf.keras.optimizers.legacy"), use


def test_missing_tf_keras_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    write(tmp_path, METRIC)
    choice = choose(tmp_path, has=KERAS_3_ALONE)
    assert not choice.legacy
    assert choice.note == (
        "t.py line 3 uses reset_states of a metric, which Keras 3 does not have; tf_keras could, but is not"
        " installed: python -m pip install tf_keras~=2.21.0"
    )


def test_unknown_interpreters_older_tensorflow_and_words_of_the_user(tmp_path: Path) -> None:
    write(tmp_path, METRIC)
    for has in (None, Installed("2.15.1", tf_keras=False)):
        assert choose(tmp_path, has=has) == KERAS_3
    # Options and variables of the user win.
    assert choose(tmp_path, asked=KerasOption.THREE) == KERAS_3
    assert choose(tmp_path, environ={"TF_USE_LEGACY_KERAS": "0"}) == KERAS_3
    write(tmp_path, TF)
    assert choose(tmp_path, asked=KerasOption.LEGACY) == KerasChoice(legacy=True)


def test_contradictions_and_missing_packages_are_refused(tmp_path: Path) -> None:
    write(tmp_path, TF)
    table: list[tuple[KerasOption, dict[str, str], Installed | None, str]] = [
        (KerasOption.LEGACY, {}, KERAS_3_ALONE, r"python -m pip install tf_keras~=2\.21\.0"),
        (KerasOption.LEGACY, {}, None, "is it a working Python"),
        (KerasOption.LEGACY, {"TF_USE_LEGACY_KERAS": "0"}, BOTH, "unset it"),
        (KerasOption.THREE, {"TF_USE_LEGACY_KERAS": "1"}, BOTH, "unset it"),
    ]
    for asked, environ, has, says in table:
        with pytest.raises(UsageError, match=says):
            choose(tmp_path, asked=asked, environ=environ, has=has)


def test_installed_packages_of_another_interpreter(tmp_path: Path) -> None:
    """A virtual environment without anything, to which PYTHONPATH adds a tf_keras."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    assert installed_for(str(python), {"PATH": os.defpath}) == Installed(None, tf_keras=False)
    metadata = tmp_path / "lib" / "tensorflow-2.15.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: tensorflow\nVersion: 2.15.0\n")
    (tmp_path / "lib" / "tf_keras.py").touch()
    has = installed_for(str(python), {"PYTHONPATH": str(tmp_path / "lib")})
    assert has == Installed("2.15.0", tf_keras=True)
    assert not has.keras_is_3
    # Interpreters that do not answer.
    assert [installed_for(python, {}) for python in (f"{tmp_path}/gone", "/bin/false", "/bin/echo")] == [
        None
    ] * 3


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
