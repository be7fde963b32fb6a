"""Compares what a candidate computed with the op table's reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policyc.backends.views import Work
from policyc.compiler.costs import node_cost
from policyc.compiler.ir.types import Array, DType
from policyc.compiler.tuning.operands import HostOperands, evaluate, sampled_rows

_LARGE_FLOPS = 20e9
"""Products above this are checked on a sample of rows: numpy would take seconds for the whole."""

_BF16_RELATIVE, _F32_RELATIVE = 8e-3, 2e-5
"""Relative L2 error allowed. bf16 rounds to 2^-9 on the way in and out; float32 sums in another
order, and exponentials by the GPU's own approximation."""

_BF16_LARGEST, _F32_LARGEST = 2e-2, 1e-4
"""Largest error of one value, as a share of the largest value: a single wrong value hides in L2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Reference results of a launch, of all rows or of those in `rows`."""

    work: Work
    results: tuple[Array, ...]
    rows: Sequence[int] | None
    is_bf16: bool

    def fault(self, computed: Sequence[Array]) -> str:
        """What is wrong with the computed results; empty if nothing is."""
        for index, (ours, right) in enumerate(zip(computed, self.results, strict=True)):
            chosen = ours if self.rows is None else _chosen(self.work, ours, self.rows)
            fault = self._compare(chosen.reshape(right.shape), right)
            if fault:
                return f"result {index}: {fault}"
        return ""

    def _compare(self, ours: Array, right: Array) -> str:
        if not np.issubdtype(right.dtype, np.floating):
            wrong = int((ours != right).sum())
            return f"{wrong} of {right.size} values differ" if wrong else ""
        mine, true = ours.astype(np.float64), right.astype(np.float64)
        if not np.isfinite(mine).all():
            count = int((~np.isfinite(mine)).sum())
            return f"{count} of {mine.size} values are not finite or were not written"
        difference = np.abs(mine - true)
        relative = float(np.linalg.norm(difference) / max(float(np.linalg.norm(true)), 1e-30))
        largest = float(difference.max() / max(float(np.abs(true).max()), 1e-30))
        limits = (_BF16_RELATIVE, _BF16_LARGEST) if self.is_bf16 else (_F32_RELATIVE, _F32_LARGEST)
        if relative <= limits[0] and largest <= limits[1]:
            return ""
        return (
            f"relative error {relative:.2g} (allowed {limits[0]:.2g}), largest error "
            f"{largest:.2g} of the largest value (allowed {limits[1]:.2g})"
        )


def expected_results(work: Work, operands: HostOperands, seed: int) -> Expected:
    """The reference of a launch; of large products, one row of every eight."""
    arrays = [operands.view(view) for view in work.operands]
    rows = None
    if node_cost(work.node, work.operand_types).flops > _LARGE_FLOPS and _is_product(work):
        flat = arrays[0].reshape(-1, arrays[0].shape[-1])
        rows = sampled_rows(flat.shape[0], seed)
        arrays[0] = flat[rows]
    results = tuple(
        result.astype(view.dtype.numpy, copy=False) if not view.dtype.is_float else result
        for result, view in zip(evaluate(work.node, tuple(arrays)), work.results, strict=True)
    )
    dtypes = {view.dtype for view in (*work.operands, *work.results)}
    return Expected(
        work=work,
        results=results,
        rows=rows,
        is_bf16=DType.BF16 in dtypes,
    )


def _is_product(work: Work) -> bool:
    """Is x [.., K] the first operand, and does row i of the result depend on its row i alone?"""
    return work.node.op in ("linear", "gated_linear", "split_linear")


def _chosen(work: Work, result: Array, rows: Sequence[int]) -> Array:
    """The rows of a result [.., N], or of each part of [splits, .., N]."""
    parts = result.shape[0] if work.node.op == "split_linear" else 1
    return result.reshape(parts, -1, result.shape[-1])[:, rows]
