"""What an adapter is: a model family's stages in plain PyTorch, with names and rates.

The adapter owns the meaning of a model. Its stage functions run eagerly as the executable reference
(`run_reference`) and are traced into a graph (`trace.py`); they see weights by name and never a
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import policyc.frontends.custom_ops  # noqa: F401  (registers torch.ops.policyc)
from policyc.compiler.ir.graph import Rate
from policyc.compiler.ir.types import Array, TensorType

LOOP_WEIGHT_BYTES = 2 << 30
"""Weights of a loop are kept from step to step up to this size."""

Weights = Mapping[str, Tensor]
StageFunction = Callable[..., dict[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """A tensor that the caller gives, and how often it changes."""

    name: str
    type: TensorType
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrySpec:
    """A loop value: starts as `initial`, is `inner` inside, `next` after a step, `final` in the
    end."""

    initial: str
    inner: str
    next: str
    final: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSpec:
    """A stage that runs `count` times; `collects` maps a value of each step to the name of its
    stack."""

    count: int
    carries: tuple[CarrySpec, ...]
    collects: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage: `function(weights, *inputs)` returns its results by name.

    In a loop the function takes `(weights, index, *inners, *inputs)`, with index i32 [].
    """

    name: str
    rate: Rate
    function: StageFunction
    inputs: tuple[str, ...]
    loop: LoopSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as data for tracing: what an adapter hands over.

    Attributes:
        weights: every weight by name, with the type in which the stage functions see it.
        constants: weights that come from the adapter and not from the checkpoint (tables, time
            grid).
        outputs: results of one inference.
        named: intermediates that a caller may ask for.
    """

    family: str
    inputs: tuple[InputSpec, ...]
    weights: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    stages: tuple[StageSpec, ...]
    outputs: tuple[str, ...]
    named: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LazyWeights(Mapping[str, Tensor]):
    """Weights read and converted at each access, so that a full-size model never stands in
    memory.

    A checkpoint's tensor comes in `dtype`, and so does a constant, unless it is float64, which the
    adapter means, or no floating-point tensor.
    """

    read: Callable[[str], Array]
    weights: frozenset[str]
    constants: Mapping[str, Array]
    dtype: torch.dtype

    def __getitem__(self, name: str) -> Tensor:
        constant = self.constants.get(name)
        if constant is not None:
            tensor = torch.tensor(constant)
            return tensor.to(self.dtype) if tensor.dtype == torch.float32 else tensor
        if name not in self.weights:
            raise KeyError(name)
        array = self.read(name)
        wide = array if array.dtype == np.float64 else array.astype(np.float32)
        # A copy of torch's own: products can differ in the last bit with the alignment of memory.
        return torch.from_numpy(np.ascontiguousarray(wide)).to(self.dtype, copy=True)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted((*self.weights, *self.constants)))

    def __len__(self) -> int:
        return len(self.weights) + len(self.constants)


@dataclass(frozen=True, slots=True)
class _LoopWeights(Mapping[str, Tensor]):
    """The weights of a loop, converted once each as long as they fit in `LOOP_WEIGHT_BYTES`."""

    weights: Weights
    kept: dict[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        if name in self.kept:
            return self.kept[name]
        tensor = self.weights[name]
        if tensor.nbytes + sum(other.nbytes for other in self.kept.values()) <= LOOP_WEIGHT_BYTES:
            self.kept[name] = tensor
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


class _OnlyExistingRows(TorchFunctionMode):
    """Cuts what `compact_rows` yields to the longest sample of the batch.

    The rows behind are zeros that no later value depends on, and every stage takes its number of
    rows from its operands, so that the reference need not compute them.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.policyc.compact_rows:
            return result
        longest = max(1, int(args[1].sum(dim=1).max()))
        return result[:, :longest].contiguous()


def run_reference(
    model: ModelSpec,
    read_weight: Callable[[str], Array],
    inputs: Mapping[str, Array],
    dtype: torch.dtype,
) -> dict[str, Array]:
    """Run the stages eagerly, as written.

    Args:
        model: the adapter's stages.
        read_weight: gives a tensor of the checkpoint by name; constants are the model's own.
        inputs: an array for each input of the model; floating-point ones are converted to `dtype`.
        dtype: precision of the arithmetic, torch.float32 or torch.float64.

    Returns:
        Every value that a stage yields, by name, in `dtype` or its integer type. Values between
        `compact_rows` and `scatter_rows` have the rows of the longest sample, not all slots.
    """
    weights = LazyWeights(read_weight, frozenset(model.weights), model.constants, dtype)
    values: dict[str, Tensor] = {}
    for item in model.inputs:
        tensor = torch.tensor(inputs[item.name])
        values[item.name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    with torch.no_grad(), _OnlyExistingRows():
        for stage in model.stages:
            _run_stage(stage, weights, values)
    return {name: tensor.numpy() for name, tensor in values.items()}


def _run_stage(stage: StageSpec, weights: Weights, values: dict[str, Tensor]) -> None:
    given = [values[name] for name in stage.inputs]
    if stage.loop is None:
        values.update(stage.function(weights, *given))
        return
    loop, weights = stage.loop, _LoopWeights(weights)
    inner = [values[carry.initial] for carry in loop.carries]
    collected: dict[str, list[Tensor]] = {stacked: [] for _, stacked in loop.collects}
    for step in range(loop.count):
        index = torch.tensor(step, dtype=torch.int32)
        results = stage.function(weights, index, *inner, *given)
        for each, stacked in loop.collects:
            collected[stacked].append(results[each])
        inner = [results[carry.next] for carry in loop.carries]
    for carry, tensor in zip(loop.carries, inner, strict=True):
        values[carry.final] = tensor
    for name, tensors in collected.items():
        values[name] = torch.stack(tensors)
