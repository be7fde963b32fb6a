"""The op table: one row an op. Verifier, printer, interpreter and passes read the row."""

from __future__ import annotations

from policyc.compiler.ir.ops.row import OpRow
from policyc.compiler.ir.ops.table import OP_TABLE, infer, row_of

__all__ = ["OP_TABLE", "OpRow", "infer", "row_of"]
