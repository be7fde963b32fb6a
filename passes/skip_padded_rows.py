"""Tell row-wise work which rows are padding."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import AttentionAttributes
from policyc.compiler.ir.graph import Graph, Node, Rate
from policyc.passes.rewrite import Rewrite

ROW_OPS = frozenset(
    {"linear", "gated_linear", "split_linear", "rms_norm", "layer_norm", "add_norm", "rope"}
)
VIEWS_THAT_KEEP_ROWS = frozenset({"reshape", "slice"})


def skip_padded_rows(graph: Graph) -> Graph:
    """Give the row counts of compacted rows to the ops that work on them row by row.

    Before:    %c = compact_rows(x, mask);  %p = count_true(mask);  %y = linear(%c, @w)
    After:     %y = linear(%c, @w, %p) {length=true}
    Requires:  the fusions have run: the ops that remain are those that kernels exist for.
    Ensures:   padding rows of these values are unspecified on a device; only readers that drop
               or mask
               them read them.
    Numerics:  exact for every row that counts.
    """
    rewrite = Rewrite(graph)
    domains = _domains(rewrite)
    safe = _safe_values(rewrite, domains)
    for stage in graph.stages:
        for node in stage.nodes:
            names = [value.name for value in node.outputs]
            length = domains.get(names[0])
            if length is None or not all(name in safe for name in names):
                continue
            if node.op in ROW_OPS and not node.attrs.length:  # type: ignore[attr-defined]
                attributes = replace(node.attrs, length=True)  # type: ignore[type-var]
            elif isinstance(node.attrs, AttentionAttributes) and not node.attrs.query_length:
                attributes = replace(node.attrs, query_length=True)
            else:
                continue
            rewrite.replace(node, replace(node, inputs=(*node.inputs, length), attrs=attributes))
    return rewrite.finish()


def _domains(rewrite: Rewrite) -> dict[str, str]:
    """Value -> the count of its valid rows, for values whose rows are those of a compact_rows."""
    counts: dict[str, str] = {}
    domains: dict[str, str] = {}
    order = [node for stage in rewrite.graph.stages for node in stage.nodes]
    for node in order:
        if node.op == "count_true":
            counts.setdefault(node.inputs[0], node.output.name)
    for node in order:
        if node.op == "compact_rows" and node.inputs[1] in counts:
            domains[node.output.name] = counts[node.inputs[1]]
            continue
        length = domains.get(node.inputs[0]) if node.inputs else None
        if length is None or not _keeps_rows(rewrite, node):
            continue
        if rewrite.is_before(length, node):
            domains.update((value.name, length) for value in node.outputs)
    return domains


def _keeps_rows(rewrite: Rewrite, node: Node) -> bool:
    """Is row r of the result made of row r of the first operand, apart from keys and weights?"""
    if node.op in ROW_OPS or node.op == "attention":
        return True
    if node.op not in VIEWS_THAT_KEEP_ROWS:
        return False
    source = rewrite.types[node.inputs[0]].shape
    return len(source) >= 3 and node.output.type.shape[:2] == source[:2]


def _safe_values(rewrite: Rewrite, domains: dict[str, str]) -> set[str]:
    """Values whose padding rows no reader lets act, in reverse order of definition."""
    safe: set[str] = set()
    for name in reversed(list(domains)):
        if rewrite.is_read_outside(name):
            continue
        if all(_ignores_padding(rewrite, r, name, domains, safe) for r in rewrite.readers(name)):
            safe.add(name)
    return safe


def _ignores_padding(
    rewrite: Rewrite, reader: Node, name: str, domains: dict[str, str], safe: set[str]
) -> bool:
    if reader.op == "scatter_rows":
        return True
    if isinstance(reader.attrs, AttentionAttributes) and name in reader.inputs[1:3]:
        if not reader.attrs.length or reader.inputs[3] != domains[name]:
            return False
        return name != reader.inputs[0] or reader.output.name in safe
    if name not in reader.inputs:
        return False
    results = [value.name for value in reader.outputs]
    if all(result in domains for result in results):
        return all(result in safe for result in results)
    return _is_report_view(rewrite, reader)


def _is_report_view(rewrite: Rewrite, reader: Node) -> bool:
    """Does the reader only pass rows on to readers that drop padding, in the report stage?"""
    if reader.op not in (*VIEWS_THAT_KEEP_ROWS, "permute"):
        return False
    report = any(s.rate is Rate.REPORT and reader in s.nodes for s in rewrite.graph.stages)
    later = rewrite.readers(reader.output.name)
    ends = all(r.op == "scatter_rows" or _is_report_view(rewrite, r) for r in later)
    return report and bool(later) and ends
