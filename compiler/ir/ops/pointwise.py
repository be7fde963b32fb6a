"""Pointwise ops, and the group that fusion makes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policyc.compiler.ir.attributes import (
    CastAttributes,
    Instruction,
    NoAttributes,
    PointwiseAttributes,
    ScalarAttributes,
)
from policyc.compiler.ir.ops.row import (
    Infer,
    OpRow,
    Reference,
    activate,
    broadcast_shape,
    promoted,
    require,
    require_count,
    require_float,
    widen,
)
from policyc.compiler.ir.types import Array, TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[Array, ...]

UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda x: -x,
    "exp": lambda x: np.exp(x),
    "sin": lambda x: np.sin(x),
    "cos": lambda x: np.cos(x),
    "sqrt": lambda x: np.sqrt(x),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "tanh": lambda x: np.tanh(x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "silu": lambda x: activate("silu", x),
    "gelu_tanh": lambda x: activate("gelu_tanh", x),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}
SCALAR: dict[str, Callable[[Array, Array], Array]] = {
    "add_scalar": lambda x, value: x + value,
    "mul_scalar": lambda x, value: x * value,
    "div_scalar": lambda x, value: x / value,
    "rsub_scalar": lambda x, value: value - x,
}


def evaluate_instruction(instruction: Instruction, arguments: Arrays) -> Array:
    """The value of one step of a pointwise program; arguments are float32 or float64."""
    if instruction.op in UNARY:
        return UNARY[instruction.op](arguments[0])
    if instruction.op in BINARY:
        return BINARY[instruction.op](arguments[0], arguments[1])
    value = arguments[0].dtype.type(instruction.value)
    return SCALAR[instruction.op](arguments[0], value)


def _infer_unary(_: NoAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    require_float(operands[0], "operand")
    return operands


def _infer_binary(_: NoAttributes, operands: Types) -> Types:
    require_count(operands, 2)
    for operand in operands:
        require_float(operand, "operand")
    return (TensorType(promoted(operands), broadcast_shape(operands)),)


def _infer_scalar(_: ScalarAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    require_float(operands[0], "operand")
    return operands


def _infer_cast(attributes: CastAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    return (operands[0].with_dtype(attributes.dtype),)


def _infer_group(attributes: PointwiseAttributes, operands: Types) -> Types:
    known = len(operands)
    for instruction in attributes.program:
        arity = 2 if instruction.op in BINARY else 1
        known_op = instruction.op in UNARY or instruction.op in BINARY or instruction.op in SCALAR
        require(known_op, f"{instruction.op} is not a pointwise op")
        require(len(instruction.arguments) == arity, f"{instruction.op} takes {arity} arguments")
        require(all(0 <= a < known for a in instruction.arguments), "argument not defined yet")
        known += 1
    require(len(attributes.results) == len(attributes.dtypes), "one dtype a result")
    require(all(0 <= r < known for r in attributes.results), "result not defined")
    shape = broadcast_shape(operands)
    return tuple(TensorType(dtype, shape) for dtype in attributes.dtypes)


def _run_group(attributes: PointwiseAttributes, operands: Arrays) -> Arrays:
    values = [widen(operand) for operand in operands]
    for instruction in attributes.program:
        values.append(
            evaluate_instruction(instruction, tuple(values[a] for a in instruction.arguments))
        )
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    return tuple(np.broadcast_to(values[index], shape) for index in attributes.results)


def _run_unary(function: Callable[[Array], Array]) -> Callable[[NoAttributes, Arrays], Arrays]:
    return lambda _, operands: (function(widen(operands[0])),)


def _run_binary(
    function: Callable[[Array, Array], Array],
) -> Callable[[NoAttributes, Arrays], Arrays]:
    return lambda _, operands: (function(widen(operands[0]), widen(operands[1])),)


def _run_scalar(name: str) -> Callable[[ScalarAttributes, Arrays], Arrays]:
    def run(attributes: ScalarAttributes, operands: Arrays) -> Arrays:
        instruction = Instruction(op=name, arguments=(0,), value=attributes.value)
        return (evaluate_instruction(instruction, (widen(operands[0]),)),)

    return run


def _run_cast(attributes: CastAttributes, operands: Arrays) -> Arrays:
    return (operands[0].astype(attributes.dtype.numpy, copy=False),)


def _row(name: str, attributes: type, infer: Infer, reference: Reference) -> OpRow:
    return OpRow(
        name=name,
        attributes=attributes,
        infer=infer,
        reference=reference,
        pointwise=True,
        rowwise=True,
    )


ROWS: tuple[OpRow, ...] = (
    *(_row(name, NoAttributes, _infer_unary, _run_unary(f)) for name, f in UNARY.items()),
    *(_row(name, NoAttributes, _infer_binary, _run_binary(f)) for name, f in BINARY.items()),
    *(_row(name, ScalarAttributes, _infer_scalar, _run_scalar(name)) for name in SCALAR),
    OpRow(
        name="cast",
        attributes=CastAttributes,
        infer=_infer_cast,
        reference=_run_cast,
        rowwise=True,
    ),
    OpRow(
        name="pointwise",
        attributes=PointwiseAttributes,
        infer=_infer_group,
        reference=_run_group,
        rowwise=True,
    ),
)
