"""Cases: optimizers with their slots, schedules and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from case import EXAMPLES, Place, Run, Values, compiled, data, dense, fit, labels, mlp, sequential, topic
from keras import optimizers
from keras.optimizers import schedules

case = topic("optimizers")


def used(make: Callable[[], Any], model: Callable[[], Any] = mlp, **options: Any) -> Run:
    """Return a case that trains six steps; the optimizer's variables count, too."""

    def run(place: Place) -> Values:
        trained = compiled(place, model, make)
        values = fit(trained, **options)
        slots = [variable.numpy() for variable in trained.optimizer.variables]
        return values | {f"slot {index}": slot for index, slot in enumerate(slots) if slot.dtype.kind == "f"}

    return run


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(0.1),
    "SGD with momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "SGD with Nesterov momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: optimizers.Adam(0.01),
    "Adam with amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "RMSprop, centered, with momentum": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "Lion": lambda: optimizers.Lion(0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "clipvalue": lambda: optimizers.SGD(1.0, clipvalue=0.01),
    "clipnorm": lambda: optimizers.SGD(1.0, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.Adam(0.1, global_clipnorm=0.05),
    "weight decay": lambda: optimizers.SGD(0.1, weight_decay=0.1),
    "moving averages of weights": lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "gradient accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "gradient accumulation and clipping": lambda: optimizers.SGD(
        1.0, gradient_accumulation_steps=3, global_clipnorm=0.05
    ),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
    "ExponentialDecay": lambda: optimizers.SGD(schedules.ExponentialDecay(0.5, 2, 0.5)),
    "CosineDecay with warm-up": lambda: optimizers.Adam(
        schedules.CosineDecay(0.0, 4, warmup_target=0.1, warmup_steps=2)
    ),
    "PiecewiseConstantDecay": lambda: optimizers.SGD(
        schedules.PiecewiseConstantDecay([2, 4], [0.5, 0.1, 0.01])
    ),
}
THREE = {"SGD", "Adam", "global_clipnorm", "gradient accumulation"}
QUICK = {"Adam", "global_clipnorm"}


for _name, _make in OPTIMIZERS.items():
    case(_name, used(_make), three=_name in THREE, quick=_name in QUICK)

case(
    "ScheduleFreeAdamW",
    used(lambda: optimizers.ScheduleFreeAdamW(0.01)),
    differs="in one process Keras builds it in the first step, and loses the initial weights of the model",
)


@case("ScheduleFreeAdamW, built before the first step")
def built_schedule_free(place: Place) -> Values:
    model = compiled(place, optimizer=lambda: optimizers.ScheduleFreeAdamW(0.01))
    with place.scope():
        model.optimizer.build(model.trainable_variables)
    return fit(model)


class Own(optimizers.Optimizer):
    """Descends by the sign of the gradient, and keeps the last one."""

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self.last = self.add_optimizer_variables(variables, ["last"])[0]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        last = self.last[self._get_variable_index(variable)]
        self.assign(last, gradient)
        self.assign_sub(variable, keras.ops.tanh(gradient) * keras.ops.cast(learning_rate, variable.dtype))

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


class Halving(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.5 / (1.0 + keras.ops.cast(step, "float32"))

    def get_config(self) -> dict[str, Any]:
        return {}


case("own optimizer with a slot", used(lambda: Own(learning_rate=0.1)), three=True)
case("own schedule", used(lambda: optimizers.SGD(Halving())))


def embedded() -> Any:
    flat = keras.layers.Flatten()
    return sequential((3,), keras.layers.Embedding(9, 4), flat, dense(), dtype="int32")


case(
    "sparse gradients of an embedding, Adam",
    used(lambda: optimizers.Adam(0.01), embedded, x=labels(EXAMPLES * 3, 9).reshape(EXAMPLES, 3), y=labels()),
    three=True,
)


@case("learning rate that is set between two fits")
def set_rate(place: Place) -> Values:
    model = compiled(place)
    fit(model, epochs=1)
    model.optimizer.learning_rate = 0.01
    return fit(model, *data(), epochs=1) | {"rate": float(model.optimizer.learning_rate.numpy())}
