from __future__ import annotations

import json
from typing import Any

import pytest

from policyc.runtime_min.errors import BundleVersionError, PlanError
from policyc.runtime_min.plan import plan_text
from policyc.runtime_min.plan_reader import read_plan
from tests.runtime_min.bundles import plan

BUCKET = ("buckets", "1")
LAUNCH = (*BUCKET, "launches", 0)
ADD = (*BUCKET, "launches", 2)
DESCRIPTOR = (*ADD, "args", 0, "descriptor")
KERNEL = ("kernels", "embed")


def changed(path: tuple[str | int, ...], value: object) -> bytes:
    """The small plan with one value replaced."""
    tree: Any = json.loads(plan_text(plan()))
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("colour",), 1, "unknown keys colour; known: buckets, compute_capability, format"),
        ((*LAUNCH, "colour"), 1, r"buckets\.1\.launches\[0\]: unknown keys colour"),
        (("compute_capability",), 9, "expected 10 to 999, got 9"),
        (("buckets",), {}, "at least one batch bucket"),
        (("buckets", "01"), {}, "named by its batch size"),
        (("buckets", "0"), {}, "named by its batch size"),
        ((*BUCKET, "launches"), [], "at least one launch"),
        ((*KERNEL, "block_threads"), 100, "multiple of 32, got 100"),
        ((*KERNEL, "block_threads"), 2048, "expected 32 to 1024"),
        ((*KERNEL, "shared_bytes"), 1 << 20, "shared_bytes: expected 0"),
        ((*KERNEL, "params", 1, "offset"), 4, "expected 8 to"),
        ((*KERNEL, "params", 0, "size"), 4, "the cubin do not belong together"),
        ((*LAUNCH, "kernel"), "ember", "unknown kernel 'ember'; the plan has add, embed, linear"),
        ((*LAUNCH, "grid"), [1, 1], r"expected \[x, y, z\]"),
        ((*LAUNCH, "grid"), [1, 65536, 1], "y and z are at most 65535"),
        ((*LAUNCH, "grid"), [0, 1, 1], r"grid\[0\]: expected 1 to 2147483647, got 0"),
        ((*BUCKET, "launches", 1, "grid"), [3, 1, 1], "no multiple of the cluster of 2"),
        ((*LAUNCH, "args"), [], "arguments of 0 parameters"),
        ((*LAUNCH, "args", 3), {"i64": 1}, "expected one of .* got keys"),
        ((*LAUNCH, "args", 3), {"i32": 2**31}, "expected -2147483648 to 2147483647"),
        ((*LAUNCH, "args", 4), {"null": False}, "expected one of"),
        ((*LAUNCH, "args", 4), 7, "expected one of"),
        ((*ADD, "args", 3), {"f32": 1e39}, "does not fit a 32-bit float"),
        ((*LAUNCH, "args", 0, "buffer", "arena"), "steps", "unknown arena 'steps'; .* step"),
        ((*LAUNCH, "args", 0, "buffer", "offset"), 4096, "expected 0 to 4095"),
        ((*BUCKET, "inputs", "noise", "offset"), 4, "multiple of 256, got 4"),
        ((*BUCKET, "values", "actions", "offset"), 768, "ends at byte 816 of arena 'step'"),
        ((*BUCKET, "values", "actions", "dtype"), "f16", "unknown 'f16'; known: f64"),
        ((*BUCKET, "values", "actions", "shape"), [2**40, 2**40], "ends at byte"),
        ((*DESCRIPTOR, "shape"), [200, 4], "ends at byte 3200 of arena 'step'"),
        ((*DESCRIPTOR, "strides"), [3, 1], "multiples of 16 bytes"),
        ((*DESCRIPTOR, "strides"), [4, 2], "the last is 1"),
        ((*DESCRIPTOR, "box"), [8], "1 to 5 axes in shape, strides and box alike"),
        ((*DESCRIPTOR, "box"), [512, 4], "expected 1 to 256"),
        ((*DESCRIPTOR, "element_type"), 10, r"f32 has \(7, 8\), got 10"),
        ((*DESCRIPTOR, "base"), {"i32": 1}, "expected a buffer or a weight"),
        ((*DESCRIPTOR, "base", "buffer", "offset"), 8, "multiple of 16, got 8"),
    ],
)
def test_a_rule_is_enforced(path: tuple[str | int, ...], value: object, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        read_plan(changed(path, value), "plan/90.json")
    assert str(caught.value).startswith("plan/90.json")


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_says_which_side_to_upgrade(version: int) -> None:
    """case 69"""
    with pytest.raises(BundleVersionError, match=f"plan format {version}, this runtime reads 1"):
        read_plan(changed(("format",), version), "plan/90.json")
