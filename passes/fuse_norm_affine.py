"""Take the affine terms of a norm into its kernel."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import NormAttributes
from policyc.compiler.ir.graph import Graph, Node
from policyc.passes.rewrite import Rewrite

NORMS = ("rms_norm", "layer_norm")


def fuse_norm_affine(graph: Graph) -> Graph:
    """Take the scale and shift of a norm into its kernel.

    Before:    %y = add(mul(rms_norm(x), s), t)         s, t vectors
    After:     %y = rms_norm(x, s, t) {scale=true, shift=true}
    Requires:  level traced; fold_norm_weights has taken the scales that fold into linears.
    Ensures:   no norm without affine terms is read by such a product alone.
    Numerics:  exact.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes(*NORMS):
        assert isinstance(node.attrs, NormAttributes)
        product = rewrite.only_reader(node.output.name)
        if node.attrs.scale or node.attrs.shift or product is None or product.op != "mul":
            continue
        scale = _vector_beside(rewrite, product, node.output.name)
        if scale is None:
            continue
        total = rewrite.only_reader(product.output.name)
        is_sum = total is not None and total.op == "add"
        shift = _vector_beside(rewrite, total, product.output.name) if total and is_sum else None
        last = total if shift is not None and total is not None else product
        vectors = (scale,) if shift is None else (scale, shift)
        attributes = replace(node.attrs, scale=True, shift=shift is not None)
        new = replace(
            node, inputs=(node.inputs[0], *vectors), attrs=attributes, outputs=last.outputs
        )
        rewrite.replace(last, new, claims=(product, node))
    return rewrite.finish()


def _vector_beside(rewrite: Rewrite, node: Node, name: str) -> str | None:
    """The other operand, if it is one row for all rows of the result."""
    others = [item for item in node.inputs if item != name]
    if len(others) != 1:
        return None
    width = node.output.type.shape[-1]
    return others[0] if rewrite.types[others[0]].shape in ((width,), (1, width)) else None
