"""All rows of the op table."""

from __future__ import annotations

from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.ops import attention, gather, linear, norm, pointwise, shape
from policyc.compiler.ir.ops.row import OpRow
from policyc.compiler.ir.types import TensorType

OP_TABLE: dict[str, OpRow] = {
    row.name: row
    for row in (
        *pointwise.ROWS,
        *linear.ROWS,
        *norm.ROWS,
        *attention.ROWS,
        *shape.ROWS,
        *gather.ROWS,
    )
}


def row_of(op: str) -> OpRow:
    """The row of an op; raises TypeMismatch that lists the known ops."""
    row = OP_TABLE.get(op)
    if row is None:
        raise TypeMismatch(f"no op {op}; known: {', '.join(sorted(OP_TABLE))}")
    return row


def infer(node: Node, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Result types of a node, by its row; raises TypeMismatch."""
    row = row_of(node.op)
    if type(node.attrs) is not row.attributes:
        got, expected = type(node.attrs).__name__, row.attributes.__name__
        raise TypeMismatch(f"{node.op} has attributes {got}, expected {expected}")
    return row.infer(node.attrs, operands)
