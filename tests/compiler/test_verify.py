from __future__ import annotations

from pathlib import Path

import pytest

from policyc.compiler.events import Event
from policyc.compiler.verify import verification_json, verify_bundle
from policyc.runtime_min.errors import BundleError
from tests.runtime_min.bundles import manifest_of, manifest_text, replace_file, write_bundle


def test_steps_are_reported(tmp_path: Path) -> None:
    events: list[Event] = []
    verification = verify_bundle(write_bundle(tmp_path / "a.policy"), "cpu", events.append)
    assert verification.passed and len(verification.comparisons) == 3
    assert [event.kind for event in events] == ["verify"] * 4


def test_a_device_that_computes_nothing_fails(tmp_path: Path) -> None:
    """The null device gives NaN, which must not pass."""
    verification = verify_bundle(write_bundle(tmp_path / "a.policy"), "null", lambda event: None)
    value = verification_json(verification)
    assert not verification.passed and value["passed"] is False


def test_golden_vectors_are_required_unless_structure_only(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "a.policy")
    (folder / "golden.safetensors").unlink()
    (folder / "manifest.json").write_text(manifest_text(manifest_of(folder)))
    assert verify_bundle(folder, None, lambda event: None).golden is None
    with pytest.raises(BundleError, match="golden"):
        verify_bundle(folder, "cpu", lambda event: None)


def test_a_graph_that_breaks_a_rule_is_named(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "a.policy")
    text = (folder / "graph/1.ir").read_text()
    changed = text.replace("hidden: f32[1,3,4]", "hidden: f32[1,3,5]")
    assert changed != text
    replace_file(folder, "graph/1.ir", changed.encode())
    with pytest.raises(BundleError, match=r"graph/1.ir"):
        verify_bundle(folder, None, lambda event: None)
