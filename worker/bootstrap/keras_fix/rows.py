"""Shares each batch of a data set by rows: each worker takes the rows of its examples.

Most parts of a batch have a row for each example. A `map` after `batch` may make several rows of each, or add a table
that is the same in every batch. Shapes tell the difference: the pipeline's functions are asked for the shapes that
they would return for a batch of a special size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import tf

# Size of an imagined batch. A first axis that is a multiple of this prime depends on the size of the batch.
_SPECIAL = 15_485_863
# The rows of a part that is the same in every batch.
SAME_IN_EVERY_BATCH = 0
_MAPS = ("MapDataset", "ParallelMapDataset")
_BATCHES = ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset")
# Data sets with the elements of their inputs.
_PASS = frozenset(
    f"{kind}Dataset"
    for kind in ("Prefetch", "Repeat", "Shuffle", "Take", "Skip", "Cache", "Filter", "Options")
)


def rows_by_example(dataset: Any) -> list[int | None]:
    """The rows of each part of the data set's batches for each example. None if that is unknown."""
    specs = tf.nest.flatten(dataset.element_spec)
    unknown: list[int | None] = [None] * len(specs)
    try:
        sizes: list[int] = []
        shapes = _shapes(dataset, sizes)
    except (
        Exception
    ):  # user functions may need the usual size; without shapes, all parts must have equal rows
        return unknown
    if len(shapes) != len(unknown) or not sizes:
        return unknown
    # A function returns a sparse or ragged part as a tensor of another shape.
    return [
        _rows(shape, sizes[0]) if isinstance(spec, tf.TensorSpec) else None
        for shape, spec in zip(shapes, specs, strict=True)
    ]


def _rows(shape: Any, usual: int) -> int | None:
    """The rows by example of a part of this shape in a batch of the special size; `usual` is the real size."""
    first = shape[0] if shape is not None and shape.rank else None
    if not first:
        return None
    if first % _SPECIAL == 0:
        return int(first // _SPECIAL)
    # A function may have been traced with the usual size as a constant.
    return SAME_IN_EVERY_BATCH if first % usual else None


def _shapes(dataset: Any, sizes: list[int]) -> list[Any]:
    """The shapes of the parts if batches had the special size, None for unknown ones. `sizes` gets the real size."""
    kind = type(dataset).__name__.lstrip("_").removesuffix("V2")
    specs = tf.nest.flatten(dataset.element_spec)
    shapes = [spec.shape if isinstance(spec, tf.TensorSpec) else None for spec in specs]
    if kind in _BATCHES:
        sizes.append(int(dataset._batch_size))
        return [None if shape is None else tf.TensorShape([_SPECIAL, *shape[1:]]) for shape in shapes]
    if kind in _MAPS:
        return _results(dataset._map_func.function, _shapes(dataset._inputs()[0], sizes))
    if kind == "ZipDataset":
        return [shape for source in dataset._inputs() for shape in _shapes(source, sizes)]
    if kind in _PASS:
        return _shapes(dataset._inputs()[0], sizes)
    return shapes if kind == "TensorDataset" else [None] * len(shapes)


def _results(function: Any, shapes: Sequence[Any]) -> list[Any]:
    """The shapes that a traced function returns for arguments of the given shapes. It does not run."""
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

    captured = [
        None if value.dtype in (tf.resource, tf.variant) else value.shape
        for value in function.inputs[len(shapes) :]
    ]
    definition = type(function.function_def)()
    definition.CopyFrom(function.function_def)
    definition.ClearField("arg_attr")  # the shapes that it was traced with
    graph = function_def_to_graph(definition, input_shapes=[*shapes, *captured])
    return [result.shape for result in graph.outputs]


def share_rows(dataset: Any, rows: Sequence[int | None], context: Any) -> Any:
    """Take this worker's rows of every batch, in the order of the workers. `rows` are those of `rows_by_example`."""
    mine, workers = context.input_pipeline_id, context.num_input_pipelines
    first = next((index for index, number in enumerate(rows) if number), 0)
    names = _names(dataset)

    def take(*parts: Any) -> Any:
        batch = parts if isinstance(dataset.element_spec, tuple) else parts[0]
        values = tf.nest.flatten(batch)
        size = _hidden(tf.shape(values[first])[0] // (rows[first] or 1), values[first].shape[0], workers)
        start = mine * (size // workers) + tf.minimum(mine, size % workers)
        stop = start + size // workers + tf.cast(mine < size % workers, tf.int32)
        taken = []
        for value, number, name in zip(values, rows, names, strict=True):
            if number == SAME_IN_EVERY_BATCH:
                taken.append(value)
                continue
            if number is None:
                value = _with_rows(value, size, name, names[first])
            taken.append(value[start * (number or 1) : stop * (number or 1)])
        return tf.nest.pack_sequence_as(batch, taken)

    return dataset.map(take).prefetch(2)


def refuse_tables(dataset: Any, rows: Sequence[int | None]) -> None:
    """ValueError if a part is the same in every batch: TensorFlow, which shares this data set, would cut it."""
    for name, number in zip(_names(dataset), rows, strict=True):
        if number == SAME_IN_EVERY_BATCH:
            raise ValueError(
                f"Part {name} of the data set is the same in every batch, and TensorFlow would give each worker only "
                "some of its rows: orch shares a data set that reads files as TensorFlow does. Keep this part in the "
                "model, or share the data with strategy.distribute_datasets_from_function."
            )


def _names(dataset: Any) -> list[str]:
    """The path of each part in an element of the data set."""
    from tensorflow.python.util import nest

    return [path for path, _ in nest.flatten_with_joined_string_paths(dataset.element_spec)]


def _hidden(size: Any, static: int | None, workers: int) -> Any:
    """Return `size`. If the workers' shares differ, shapes do not show it, because all must trace the same step."""
    if static is not None and static % workers == 0:
        return size
    return tf.raw_ops.PlaceholderWithDefault(input=size, shape=[])


def _with_rows(value: Any, size: Any, name: str, first: str) -> Any:
    """Return `value`; an error in the pipeline unless it has `size` rows."""
    same = tf.debugging.assert_equal(
        tf.shape(value)[0],
        size,
        f"Part {name} of the data set has another number of rows than part {first}, so orch cannot tell which rows "
        "belong to which example, and cannot share the batch among the workers. Give each part one row for each "
        "example and reshape in the model, or share the data with strategy.distribute_datasets_from_function.",
    )
    with tf.control_dependencies([same]):
        return tf.identity(value)
