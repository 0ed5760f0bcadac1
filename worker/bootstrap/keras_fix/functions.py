"""The functions that fit and evaluate call: steps over the workers' data, their logs not reduced again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .clusters import first_local, spans_workers
from .datasets import steps_left, take_steps
from .steps import is_kerass_own, travels


def replace_make_function(trainer: Any) -> None:
    """Make the train and test functions of models that span workers; others keep Keras's."""
    original = trainer.TensorFlowTrainer._make_function

    @functools.wraps(original)
    def make_function(self: Any, step_function: Any) -> Any:
        if not spans_workers(self.distribute_strategy):
            return original(self, step_function)
        if self.jit_compile:
            raise ValueError(
                "jit_compile=True does not work with several workers: XLA cannot compile what they exchange. "
                'Use compile(jit_compile=False), or leave it at "auto".'
            )
        return _make_function(self, step_function, trainer)

    trainer.TensorFlowTrainer._make_function = make_function


def replace_predict_on_batch(trainer: Any) -> None:
    """Predict for the batch that this worker was given, where Keras joins those of all workers."""
    original = trainer.TensorFlowTrainer.predict_on_batch

    @functools.wraps(original)
    def predict_on_batch(self: Any, x: Any) -> Any:
        import tensorflow as tf

        strategy = self.distribute_strategy
        if not spans_workers(strategy):
            return original(self, x)

        def local(data: Any) -> Any:
            outputs = strategy.run(self.predict_step, args=(data,))
            return trainer.tree.map_structure(lambda value: first_local(strategy, value), outputs)

        if self.run_eagerly:
            predict = local
        else:
            predict = _kept(self, "_orch_predict_on_batch", lambda: tf.function(local, reduce_retracing=True))
        return trainer.tree.map_structure(trainer.convert_to_np_if_not_ragged, predict((x,)))

    trainer.TensorFlowTrainer.predict_on_batch = predict_on_batch


def _kept(model: Any, name: str, make: Callable[[], Any]) -> Any:
    """What `make` gave for this model at first, kept where Keras neither tracks nor saves it."""
    if name not in model.__dict__:
        model.__dict__[name] = make()
    return model.__dict__[name]


def _make_function(model: Any, step_function: Any, trainer: Any) -> Any:
    import tensorflow as tf

    strategy = model.distribute_strategy
    is_test = step_function == model.test_step or getattr(step_function, "__name__", "") == "test_step"

    def is_local() -> bool:
        """Whether the step's logs need no reducing: Keras reads the metrics themselves after its own test steps,
        with the names of their logs."""
        if is_test:
            return is_kerass_own(model, "test_step") and is_kerass_own(model, "compute_metrics")
        return travels(model)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def one_step(data: Any) -> Any:
        outputs = strategy.run(step_function, args=(data,))
        return _logs(model, strategy, outputs, local=is_local(), trainer=trainer)

    if not model.run_eagerly:
        one_step = tf.function(one_step, reduce_retracing=True)
    # Keras has it since 3.12, for data sets with absent parts.
    one_step = getattr(model, "_autoconvert_optionals", lambda step: step)(one_step)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def several_steps(iterator: Any, steps: Any) -> Any:
        _, outputs = tf.while_loop(
            lambda done, _: done < steps,
            lambda done, _: (done + 1, one_step(iterator.get_next())),
            (tf.constant(1), one_step(iterator.get_next())),
            parallel_iterations=1,
        )
        return outputs

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def next_step(iterator: Any) -> Any:
        return one_step(iterator.get_next())

    @functools.cache
    def traced(step: Any, asks_peers: bool) -> Any:
        """One for iterators that ask in each step whether somebody has data left, and one for others: a
        traced function takes the one for the other."""
        del asks_peers
        return step if model.run_eagerly else tf.function(step, reduce_retracing=True)

    def function(iterator: Any) -> Any:
        wanted = model.steps_per_execution
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            for _, data in zip(range(wanted), iterator, strict=False):
                outputs = one_step(data)
            return outputs
        asks_peers = bool(getattr(iterator, "_enable_get_next_as_optional", False))
        if wanted == 1:
            return traced(next_step, asks_peers)(iterator)
        if steps_left(iterator) is None or model.run_eagerly:
            return _until_the_end(traced(next_step, asks_peers), iterator, wanted)
        return traced(several_steps, asks_peers)(iterator, tf.constant(take_steps(iterator, wanted)))

    return function


def _until_the_end(step: Any, iterator: Any, wanted: int) -> Any:
    """Up to `wanted` steps, as nobody knows how many there are; StopIteration when there are none."""
    import tensorflow as tf

    outputs = None
    for done in range(wanted):
        try:
            outputs = step(iterator)
        except tf.errors.OutOfRangeError:
            if done == 0:
                raise StopIteration from None
            break
    return outputs


def _logs(model: Any, strategy: Any, outputs: Any, *, local: bool, trainer: Any) -> Any:
    """A step's logs: those of all workers, or of this one alone where nothing has to be summed for them."""
    if local:
        return trainer.tree.map_structure(lambda value: first_local(strategy, value), outputs)
    return trainer.reduce_per_replica(outputs, strategy, reduction="auto")
