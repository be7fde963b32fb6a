"""The pointwise family: a group of pointwise ops becomes the text of a Triton kernel of its own."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from policyc.compiler.ir.attributes import (
    Instruction,
    NoAttributes,
    PointwiseAttributes,
    ScalarAttributes,
)
from policyc.compiler.ir.graph import Node, is_weight
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.copy_layout import common_axes, padded, tile
from policyc.kernels.layout import Constant, as_bytes, kernel_call, parameters
from policyc.kernels.spec import (
    Argument,
    Candidate,
    Device,
    KernelCall,
    Parameters,
    Problem,
    View,
    WithoutWorkspace,
)

UNARY = {
    "neg": "-{0}",
    "exp": "tl.exp({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "reciprocal_root({0})",
    "tanh": "tanh({0})",
    "sigmoid": "sigmoid({0})",
    "silu": "silu({0})",
    "gelu_tanh": "gelu_tanh({0})",
}
BINARY = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "tl.div_rn({0}, {1})",
}
SCALAR = {
    "add_scalar": "{0} + {1}",
    "mul_scalar": "{0} * {1}",
    "div_scalar": "{0} / {1}",
    "rsub_scalar": "{1} - {0}",
}
_EXPRESSIONS = UNARY | BINARY | SCALAR

_WARPS = (4, 8, 2, 1)

_HEADER = '''"""Generated from a pointwise group."""

import triton
import triton.language as tl

from policyc.kernels.pointwise import gelu_tanh, reciprocal_root, sigmoid, silu, tanh


@triton.jit
'''

_PLACE = """\
    rows = tl.program_id(0) * ROWS_BLOCK + tl.arange(0, ROWS_BLOCK)[:, None]
    columns = tl.program_id(1) * COLUMNS_BLOCK + tl.arange(0, COLUMNS_BLOCK)[None, :]
    inside = (rows < ROWS) & (columns < COLUMNS)
    first, second, third = rows // (SIZE_1 * SIZE_2), rows // SIZE_2 % SIZE_1, rows % SIZE_2
"""

_WAIT = """\
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
"""


class PointwiseFamily(WithoutWorkspace):
    """Pointwise groups, and single pointwise ops as groups of one."""

    ops = ("pointwise", *_EXPRESSIONS)

    def problem(self, node: Node, operands: tuple[TensorType, ...]) -> Problem:
        attrs = group_of(node)
        steps = ",".join(step.op for step in attrs.program)
        types = " ".join(map(str, operands))
        results = " ".join(str(value.type) for value in node.outputs)
        return Problem(op=node.op, key=f"pointwise {steps or 'cast'} {types}->{results}")

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(parameters=parameters(num_warps=warps), cost=float(rank))
            for rank, warps in enumerate(_WARPS)
        )

    def calls(
        self,
        node: Node,
        operands: tuple[View, ...],
        results: tuple[View, ...],
        scratch: View | None,
        parameters: Parameters,
        device: Device,
    ) -> tuple[KernelCall, ...]:
        settings = dict(parameters)
        shape = results[0].shape
        views = tuple(broadcast(view, shape) for view in operands) + results
        axes = common_axes(views)
        rows, columns, rows_block, columns_block, grid = tile(axes, settings["num_warps"])
        four = padded(axes)
        names = _view_names(len(operands), len(results))
        constants: dict[str, Constant] = {
            "ROWS": rows,
            "COLUMNS": columns,
            "SIZE_1": four[1][0],
            "SIZE_2": four[2][0],
            "ROWS_BLOCK": rows_block,
            "COLUMNS_BLOCK": columns_block,
        }
        for axis, (_, strides) in enumerate(four):
            constants.update(
                {
                    f"{name.upper()}_{axis}": stride
                    for name, stride in zip(names, strides, strict=True)
                }
            )
        early = tuple(is_weight(view.base) for view in operands)
        name, program = program_text(group_of(node), early)
        arguments: dict[str, Argument] = {
            f"{name}_pointer": as_bytes(view) for name, view in zip(names, views, strict=True)
        }
        call = kernel_call(f"{name}:{name}", arguments, constants, grid, settings, device)
        return (replace(call, program=program),)


def group_of(node: Node) -> PointwiseAttributes:
    """The node's group; a single pointwise op is a group with one instruction."""
    attrs = node.attrs
    if isinstance(attrs, PointwiseAttributes):
        return attrs
    count = len(node.inputs)
    assert isinstance(attrs, NoAttributes | ScalarAttributes), f"{node.op} is not pointwise"
    value = attrs.value if isinstance(attrs, ScalarAttributes) else None
    step = Instruction(op=node.op, arguments=tuple(range(count)), value=value)
    return PointwiseAttributes(program=(step,), results=(count,), dtypes=(node.output.type.dtype,))


def broadcast(view: View, shape: tuple[int, ...]) -> View:
    """The view with the result's shape, as numpy broadcasts: repeated axes get stride 0."""
    missing = len(shape) - len(view.shape)
    sizes = (1,) * missing + view.shape
    strides = (0,) * missing + view.strides
    kept = tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
    return replace(view, shape=shape, strides=kept)


def program_text(attrs: PointwiseAttributes, early: tuple[bool, ...]) -> tuple[str, str]:
    """Name and source of the kernel of a group; equal groups give equal text.

    Args:
        attrs: the group.
        early: for every operand, whether it is a weight and may be read before the wait.
    """
    count = len(early)
    inputs = tuple(f"in{i}" for i in range(count))
    outputs = tuple(f"out{i}" for i in range(len(attrs.results)))
    body = _PLACE
    body += "".join(_load(i, name) for i, name in enumerate(inputs) if early[i])
    body += _WAIT
    body += "".join(_load(i, name) for i, name in enumerate(inputs) if not early[i])
    for position, step in enumerate(attrs.program):
        body += f"    v{count + position} = {_expression(step)}\n"
    for name, index, dtype in zip(outputs, attrs.results, attrs.dtypes, strict=True):
        body += _store(name, index, dtype)
    text = _signature(inputs + outputs) + body
    name = "pointwise_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return name, f"{_HEADER}def {name}({text}"


def _view_names(operands: int, results: int) -> tuple[str, ...]:
    return (*(f"in{i}" for i in range(operands)), *(f"out{i}" for i in range(results)))


def _signature(names: tuple[str, ...]) -> str:
    sizes = ("ROWS", "COLUMNS", "SIZE_1", "SIZE_2", "ROWS_BLOCK", "COLUMNS_BLOCK")
    strides = (f"{name.upper()}_{axis}" for axis in range(4) for name in names)
    constants = ", ".join(f"{name}: tl.constexpr" for name in (*sizes, *strides, "PDL"))
    return ", ".join(f"{name}_pointer" for name in names) + f", {constants}):\n"


def _address(name: str) -> str:
    axes = zip(("first", "second", "third", "columns"), range(4), strict=True)
    offsets = " + ".join(f"{index} * {name.upper()}_{axis}" for index, axis in axes)
    return f"{name}_pointer + {offsets}"


def _load(index: int, name: str) -> str:
    address = _address(name)
    return f"    v{index} = tl.load({address}, mask=inside, other=0).to(tl.float32)\n"


def _store(name: str, index: int, dtype: DType) -> str:
    value = f"(v{index} != 0)" if dtype is DType.BOOL else f"v{index}"
    kind = f"{name}_pointer.dtype.element_ty"
    return f"    tl.store({_address(name)}, {value}.to({kind}), mask=inside)\n"


def _expression(step: Instruction) -> str:
    arguments = [f"v{argument}" for argument in step.arguments]
    if step.op in SCALAR:
        assert step.value is not None, f"{step.op} without a value"
        value = float(step.value)
        arguments.append(repr(value) if math.isfinite(value) else f'float("{value}")')
    return _EXPRESSIONS[step.op].format(*arguments)
