"""What a policy's network takes and gives, and the complete check of what a caller hands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.graph import Graph, is_weight, stage_uses, value_types
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.runtime_min.errors import InputError

_STATE = "state"
"""Accepted from every caller: a policy that writes the state into the prompt does not read it here.
"""

_PROMPT_MASK = "token_mask"
_AXES: dict[str, tuple[str, ...]] = {
    "images": ("batch", "views", "channels", "height", "width"),
    "image_mask": ("batch", "views"),
    "tokens": ("batch", "prompt slots"),
    "token_mask": ("batch", "prompt slots"),
    "noise": ("batch", "horizon", "action width"),
    "state": ("batch", "state width"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of the network.

    `inputs` are the types at the smallest batch bucket; `required` those that the network reads;
    `vocabularies` the sizes of the embedding tables that integer inputs index; `outputs` the
    results of an inference, `named` further values that can be asked for.
    """

    inputs: Mapping[str, TensorType]
    required: tuple[str, ...]
    vocabularies: Mapping[str, int]
    buckets: tuple[int, ...]
    outputs: tuple[str, ...]
    named: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph, buckets: tuple[int, ...]) -> Signature:
        """The signature of a bundle: `graph` is the one of the smallest of `buckets`."""
        used = {name for stage in graph.stages for name in stage_uses(stage)}
        names = tuple(item.value.name for item in graph.inputs)
        return cls(
            inputs={item.value.name: item.value.type for item in graph.inputs},
            required=tuple(name for name in names if name in used),
            vocabularies=_vocabularies(graph),
            buckets=buckets,
            outputs=graph.outputs,
            named=graph.named,
        )

    def input_type(self, name: str, batch: int) -> TensorType:
        """Type of an input in a batch bucket."""
        one = self.inputs[name]
        return one.with_shape((batch, *one.shape[1:]))

    def check_outputs(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """The names asked for; raises InputError that lists the known ones."""
        if isinstance(outputs, str):
            raise InputError(f"outputs: expected a sequence of names; write ('{outputs}',).")
        names = tuple(outputs)
        known = (*self.outputs, *self.named)
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            asked = ", ".join(map(repr, unknown)) or "none"
            raise InputError(f"outputs: {asked} asked for; known: {', '.join(known)}.")
        return names

    def bucket_for(self, count: int) -> int:
        """The smallest batch bucket that holds `count` samples; raises InputError."""
        compiled = ", ".join(map(str, self.buckets))
        if count < 1:
            raise InputError("observations: none given; expected one or more.")
        for bucket in self.buckets:
            if bucket >= count:
                return bucket
        raise InputError(
            f"observations: {count} given; this bundle was compiled for batch {compiled}. "
            "Split the call, or compile with --batch for this size."
        )

    def check_inputs(
        self, tensors: Mapping[str, Array], real: int | None = None
    ) -> tuple[int, dict[str, Array]]:
        """The batch size, and the tensors as contiguous arrays of the network's element types.

        Args:
            tensors: by input name.
            real: samples from this one on are empty and need no prompt; None means that none is.

        Raises:
            InputError: a name, type, shape or value that the network does not take.
        """
        self._check_names(tensors)
        batch = self._check_shapes(tensors)
        if batch not in self.buckets:
            compiled = ", ".join(map(str, self.buckets))
            raise InputError(
                f"batch: {batch} samples given; this bundle was compiled for batch {compiled}. "
                "Split the call, or compile with --batch for this size."
            )
        checked = {
            name: self._checked_values(name, array, real)
            for name, array in tensors.items()
            if name in self.inputs
        }
        for name, expected in self.inputs.items():
            if name not in checked:
                shape = (batch, *expected.shape[1:])
                checked[name] = np.zeros(shape, expected.dtype.numpy)
        return batch, checked

    def _check_names(self, tensors: Mapping[str, Array]) -> None:
        missing = [name for name in self.required if name not in tensors]
        unknown = [name for name in tensors if name not in self.inputs and name != _STATE]
        if missing or unknown:
            raise InputError(
                f"tensors: missing {', '.join(missing) or 'none'}; "
                f"unknown {', '.join(map(str, unknown)) or 'none'}; "
                f"the policy takes {', '.join(self.inputs)}."
            )

    def _check_shapes(self, tensors: Mapping[str, Array]) -> int:
        batches: dict[str, int] = {}
        for name, array in tensors.items():
            if not isinstance(array, np.ndarray):
                raise InputError(f"{name}: expected a numpy array, got {type(array).__name__}.")
            expected = self.inputs.get(name)
            if expected is None:
                continue
            self._check_shape(name, array, expected)
            batches[name] = array.shape[0]
        if len(set(batches.values())) != 1:
            raise InputError(f"batch: the tensors disagree about the number of samples: {batches}.")
        return next(iter(batches.values()))

    def _check_shape(self, name: str, array: Array, expected: TensorType) -> None:
        axes = _AXES.get(name, ("batch",))
        if array.ndim != expected.rank:
            layout = ", ".join(axes)
            raise InputError(
                f"{name}: expected {expected.rank} axes ({layout}), got shape {array.shape}."
            )
        for axis in range(1, expected.rank):
            if array.shape[axis] != expected.shape[axis]:
                what = axes[axis] if axis < len(axes) else f"axis {axis}"
                raise InputError(
                    f"{name}: {what} is {array.shape[axis]}, this bundle was compiled for "
                    f"{expected.shape[axis]} (shape {array.shape}, expected "
                    f"(batch, {', '.join(map(str, expected.shape[1:]))}))."
                )

    def _checked_values(self, name: str, array: Array, real: int | None) -> Array:
        dtype = self.inputs[name].dtype
        if dtype.is_float:
            return _checked_floats(name, array, dtype)
        if dtype is DType.BOOL:
            return _checked_mask(name, array, real)
        return self._checked_integers(name, array, dtype)

    def _checked_integers(self, name: str, array: Array, dtype: DType) -> Array:
        if not np.issubdtype(array.dtype, np.integer):
            raise InputError(f"{name}: expected integers, got {array.dtype}.")
        largest = 2**31 if dtype is DType.I32 else 2**63
        limit = self.vocabularies.get(name, largest)
        outside = np.logical_or(np.less(array, 0), np.greater_equal(array, limit))
        if outside.any():
            index = _first(outside)
            raise InputError(
                f"{name}{list(index)} is {array[index]}, expected 0 to {limit - 1} "
                "(the vocabulary of the checkpoint)."
            )
        return np.ascontiguousarray(array, dtype.numpy)


def _checked_floats(name: str, array: Array, dtype: DType) -> Array:
    if array.dtype != dtype.numpy:
        raise InputError(
            f"{name}: expected {dtype.numpy.name}, got {array.dtype}. Convert it with astype."
        )
    finite = np.isfinite(array)
    if not finite.all():
        index = _first(~finite)
        raise InputError(f"{name}{list(index)} is {array[index]}, expected finite values.")
    return np.ascontiguousarray(array)


def _checked_mask(name: str, array: Array, real: int | None) -> Array:
    if array.dtype != np.bool_:
        raise InputError(f"{name}: expected bool, got {array.dtype}.")
    if name == _PROMPT_MASK:
        empty = np.logical_not(np.any(array[:real], axis=-1))
        if empty.any():
            raise InputError(f"{name}: sample {_first(empty)[0]} has no valid prompt token.")
    return np.ascontiguousarray(array)


def _first(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Index of the first true element."""
    return tuple(int(axis[0]) for axis in np.nonzero(mask))


def _vocabularies(graph: Graph) -> dict[str, int]:
    """Integer input -> rows of the embedding table that it indexes, casts and views followed."""
    types = value_types(graph)
    sources = {
        item.value.name: item.value.name
        for item in graph.inputs
        if item.value.type.dtype in (DType.I32, DType.I64)
    }
    sizes: dict[str, int] = {}
    for node in graph.nodes():
        values = [name for name in node.inputs if not is_weight(name)]
        if len(values) != 1 or values[0] not in sources:
            continue
        source = sources[values[0]]
        if node.op == "embedding":
            rows = types[node.inputs[1]].shape[0]
            sizes[source] = min(rows, sizes.get(source, rows))
        elif node.output.type.dtype in (DType.I32, DType.I64):
            sources[node.output.name] = source
    return sizes
