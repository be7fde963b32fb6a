from __future__ import annotations

from policyc.compiler.ir.types import DType
from policyc.compiler.synth.dimensions import FULL
from policyc.compiler.synth.tensors import lerobot_tensors, openpi_tensors

# Counts and bytes: shared/specs/pi05.md, sections 1.7 and 4.1.


def test_full_size_has_the_public_parameter_count() -> None:
    specs = openpi_tensors(FULL)
    assert len(specs) == 812
    assert sum(spec.element_count for spec in specs) == 3_616_757_520
    assert {spec.dtype for spec in specs} == {DType.BF16}


def test_full_size_of_the_other_layout_stores_the_table_twice() -> None:
    specs = lerobot_tensors(FULL)
    assert len(specs) == 813
    assert sum(spec.element_count for spec in specs) == 4_143_404_816
    assert len({spec.name for spec in specs}) == len(specs)
    kept = {spec.name for spec in specs if spec.dtype is DType.F32}
    assert "model.action_in_proj.weight" in kept
    assert not any("q_proj" in name and "vision" not in name for name in kept)
