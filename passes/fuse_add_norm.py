"""Compute a residual sum and the norm that reads it in one launch."""

from __future__ import annotations

from policyc.compiler.ir.attributes import AddNormAttributes, NormAttributes
from policyc.compiler.ir.graph import Graph, Node
from policyc.passes.rewrite import Rewrite

NORM_KINDS = {"rms_norm": "rms", "layer_norm": "layer"}


def fuse_add_norm(graph: Graph) -> Graph:
    """Compute a residual sum and the norm that reads it in one launch.

    Before:    %s = add(r, mul(g, b));  %n = rms_norm(%s, s, t);  ... %s read again
    After:     %s, %n = add_norm(b, r, g, s, t) {kind=rms, gate=true, ...}
    Requires:  fuse_norm_affine has run.
    Ensures:   no sum of a linear's result that a norm reads stands alone.
    Numerics:  exact in float32: the norm reads the sum before it is rounded.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("add"):
        norms = [r for r in rewrite.readers(node.output.name) if r.op in NORM_KINDS]
        if len(norms) != 1 or rewrite.is_claimed(norms[0]):
            continue
        norm = norms[0]
        parts = _branch(rewrite, node)
        early = all(rewrite.is_before(name, node) for name in norm.inputs[1:])
        if parts is None or not early or norm.output.type.rank != node.output.type.rank:
            continue
        branch, residual, gate = parts
        assert isinstance(norm.attrs, NormAttributes)
        attributes = AddNormAttributes(
            kind=NORM_KINDS[norm.op],
            eps=norm.attrs.eps,
            gate=gate is not None,
            scale=norm.attrs.scale,
            shift=norm.attrs.shift,
            sum_dtype=node.output.type.dtype,
            dtype=norm.attrs.dtype,
        )
        gates = () if gate is None else (gate,)
        inputs = (branch, residual, *gates, *norm.inputs[1:])
        names = (node.output.name, norm.output.name)
        rewrite.replace(node, rewrite.make("add_norm", inputs, attributes, norm.origin, *names))
        rewrite.replace(norm)
    return rewrite.finish()


def _branch(rewrite: Rewrite, node: Node) -> tuple[str, str, str | None] | None:
    """(branch, residual, gate) of a residual sum: the branch is a linear's result, gated or not."""
    shape = node.output.type.shape
    for residual, branch in (node.inputs, node.inputs[::-1]):
        if rewrite.types[branch].shape != shape or not _repeats(rewrite, residual, shape):
            continue
        if _is_product(rewrite, branch):
            return branch, residual, None
        gated = rewrite.made_by(branch, "mul")
        if gated is None or rewrite.only_reader(branch) is not node:
            continue
        for gate, inner in (gated.inputs, gated.inputs[::-1]):
            is_row = rewrite.types[gate].shape in (shape[-1:], (1, shape[-1]))
            if is_row and _is_product(rewrite, inner) and rewrite.types[inner].shape == shape:
                return inner, residual, gate
    return None


def _is_product(rewrite: Rewrite, name: str) -> bool:
    """Is the value a linear's result, possibly reshaped?"""
    node = rewrite.made_by(name, "linear", "reshape")
    while node is not None and node.op == "reshape":
        node = rewrite.made_by(node.inputs[0], "linear", "reshape")
    return node is not None


def _repeats(rewrite: Rewrite, name: str, shape: tuple[int, ...]) -> bool:
    """Does the operand have the sum's shape, or one for every leading index?"""
    got = rewrite.types[name].shape
    return len(got) >= 2 and got == shape[len(shape) - len(got) :]
