"""The driver of the passes: order, records, dumps, verification, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyc.compiler import pipeline
from policyc.compiler.errors import PassError
from policyc.compiler.ir.errors import VerifyError
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.types import DType
from policyc.compiler.levels import is_fused, is_scheduled, is_traced
from policyc.compiler.pipeline import PIPELINE, PassRow, PipelineOptions, run_pipeline

TEXT = """\
input x: f32[2,4] rate=observation
weight @w: f32[4,4]
weight @unused: f32[4,4]
output y

stage s rate=observation (x: f32[2,4]) -> (y: f32[2,4]) {
  %7: f32[2,4] = linear(x, @w)  # proj
  y: f32[2,4] = silu(%7)
}
"""
OPTIONS = PipelineOptions(dtype=DType.BF16)


def test_rows_are_named_after_their_files_and_stand_once() -> None:
    names = [row.name for row in PIPELINE]
    assert len(set(names)) == len(names)
    folder = Path(__file__).parents[2] / "passes"
    assert [name for name in names if not (folder / f"{name}.py").is_file()] == []


def test_every_row_starts_where_the_one_before_it_ended() -> None:
    strictness = {is_traced: 0, is_fused: 1, is_scheduled: 2}
    for before, after in zip(PIPELINE, PIPELINE[1:], strict=False):
        assert (
            strictness[after.requires] <= strictness[before.ensures] or after.requires is is_fused
        )
    assert PIPELINE[-1].ensures is is_scheduled


def test_a_graph_is_compiled_recorded_dumped_and_watched(tmp_path: Path) -> None:
    watched: list[str] = []
    result, records = run_pipeline(
        parse_graph(TEXT), OPTIONS, tmp_path / "dump", lambda name, *_: watched.append(name)
    )
    is_scheduled(result)
    assert [weight.name for weight in result.weights] == ["@w"]
    names = [row.name for row in PIPELINE]
    assert watched == names and [record.name for record in records] == names
    changed = [record.name for record in records if record.changed]
    assert changed == ["drop_unused", "fuse_activation", "set_precision"]
    fused = next(record for record in records if record.name == "fuse_activation")
    assert (fused.nodes_before, fused.nodes_after) == (2, 1) and fused.seconds >= 0
    files = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert files == [f"{n:02d}_{name}.ir" for n, name in enumerate(["trace", *names])]
    last = (tmp_path / "dump" / files[-1]).read_text()
    assert parse_graph(last) == result and "%7" not in (tmp_path / "dump" / files[0]).read_text()


def test_a_broken_traced_graph_is_refused() -> None:
    broken = parse_graph(
        TEXT.replace("(x, @w)", "(x, @unused)").replace("unused: f32[4,4]", "unused: f32[3,4]")
    )
    with pytest.raises(VerifyError, match="after trace, stage s, %0 linear: states"):
        run_pipeline(broken, OPTIONS)


def break_graph(graph: Graph, options: PipelineOptions) -> Graph:
    return Graph(inputs=(), weights=(), stages=graph.stages, outputs=graph.outputs)


def stumble(graph: Graph, options: PipelineOptions) -> Graph:
    raise AssertionError("an invariant of the pass")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            PassRow(name="break_graph", run=break_graph, requires=is_traced, ensures=is_traced),
            "pass break_graph failed .passes before it: drop_unused.: after break_graph, stage s",
        ),
        (
            PassRow(name="stumble", run=stumble, requires=is_traced, ensures=is_traced),
            "pass stumble failed .passes before it: drop_unused.: an invariant of the pass",
        ),
        (
            PassRow(name="eager", run=lambda g, _: g, requires=is_fused, ensures=is_fused),
            "pass eager failed .* op silu does not belong to level fused",
        ),
    ],
    ids=["breaks", "stumbles", "comes too early"],
)
def test_errors_name_the_pass_and_those_before_it(
    row: PassRow, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PIPELINE", (PIPELINE[0], row))
    with pytest.raises(PassError, match=message):
        run_pipeline(parse_graph(TEXT), OPTIONS)
