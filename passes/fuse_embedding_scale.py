"""Scale embedding rows where they are gathered."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import EmbeddingAttributes, ScalarAttributes
from policyc.compiler.ir.graph import Graph
from policyc.passes.rewrite import Rewrite


def fuse_embedding_scale(graph: Graph) -> Graph:
    """Scale embedding rows where they are gathered.

    Before:    %y = mul_scalar(embedding(ids, @table)) {value=s}
    After:     %y = embedding(ids, @table) {scale=s}
    Requires:  level traced.
    Ensures:   no such pair remains.
    Numerics:  exact.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("mul_scalar"):
        rows = rewrite.made_by(node.inputs[0], "embedding")
        if rows is None or rewrite.only_reader(rows.output.name) is not node:
            continue
        assert isinstance(rows.attrs, EmbeddingAttributes)
        assert isinstance(node.attrs, ScalarAttributes)
        if rows.attrs.scale != 1.0:  # the product of two factors would be rounded once, not twice
            continue
        attributes = replace(rows.attrs, scale=float(node.attrs.value))
        rewrite.replace(node, replace(rows, attrs=attributes, outputs=node.outputs))
    return rewrite.finish()
