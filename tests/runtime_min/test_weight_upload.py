from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.ir.types import DType
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.errors import BundleError
from policyc.runtime_min.manifest import Manifest, WeightEntry
from policyc.runtime_min.null_driver import NullDriver, null_facts
from policyc.runtime_min.weight_upload import Span, plan_region, upload_weights
from tests.runtime_min.bundles import weights

F32 = DType.F32


def manifest(**entries: tuple[str, int, int]) -> Manifest:
    """Weights of float32, given as file, offset and number of elements."""
    return Manifest(
        policy="toy",
        precision="f32",
        targets=(),
        options={"batch_buckets": [1]},
        files={},
        weights={
            name: WeightEntry(file=file, dtype=F32, shape=(count,), offset=offset)
            for name, (file, offset, count) in entries.items()
        },
    )


def test_neighbours_become_one_span_and_keep_their_distance() -> None:
    region = plan_region(manifest(b=("f", 768, 8), a=("f", 512, 10)), ["b", "a"])
    assert region.spans == (Span(file="f", start=512, end=800, offset=0),)
    assert region.offsets == {"a": 0, "b": 256}
    assert region.size_bytes == 512


def test_unused_weights_and_other_files_are_not_copied() -> None:
    facts = manifest(a=("f", 256, 8), unused=("f", 512, 5000), c=("f", 20736, 8), d=("g", 256, 8))
    region = plan_region(facts, ["a", "c", "d"])
    assert region.spans == (
        Span(file="f", start=256, end=288, offset=0),
        Span(file="f", start=20736, end=20768, offset=256),
        Span(file="g", start=256, end=288, offset=512),
    )
    assert region.size_bytes == 768
    assert all(offset % 256 == 0 for offset in region.offsets.values())


def test_a_weight_used_by_two_names_of_one_place() -> None:
    region = plan_region(manifest(a=("f", 256, 8), tied=("f", 256, 8)), ["a", "tied"])
    assert region.offsets == {"a": 0, "tied": 0}
    assert region.size_bytes == 256


def test_nothing_to_copy() -> None:
    assert plan_region(manifest(), []).size_bytes == 0


@pytest.mark.parametrize("staging_bytes", [256, 1000, 1 << 20])
def test_all_bytes_arrive_whatever_the_chunk(bundle_folder: Path, staging_bytes: int) -> None:
    bundle = Bundle.open(bundle_folder)
    region = plan_region(bundle.manifest, bundle.manifest.weights)
    driver = NullDriver(null_facts(90, 12080))
    with driver.current():
        address = driver.allocate(region.size_bytes, "weights")
        upload_weights(driver, bundle, region, address, staging_bytes)
        for name, array in weights().items():
            stored = driver.memory(address + region.offsets[name], array.nbytes)
            np.testing.assert_array_equal(stored.view(array.dtype).reshape(array.shape), array)
        pinned = [call.details for call in driver.calls if call.name == "allocate_pinned"]
        assert pinned == [(min(staging_bytes, region.spans[0].end - region.spans[0].start),)] * 2
        driver.free(address)
        assert driver.is_empty


def test_a_buffer_is_reused_only_after_its_copy(bundle_folder: Path) -> None:
    bundle = Bundle.open(bundle_folder)
    region = plan_region(bundle.manifest, bundle.manifest.weights)
    driver = NullDriver(null_facts(90, 12080))
    with driver.current():
        upload_weights(driver, bundle, region, driver.allocate(region.size_bytes, "weights"), 2048)
    marks = [call for call in driver.calls if call.name in ("record_event", "wait_event")]
    recorded = [call.details[0] for call in marks if call.name == "record_event"]
    waited = [call.details[0] for call in marks if call.name == "wait_event"]
    assert len(recorded) == 5
    assert recorded[:2] == [waited[1], waited[0]]
    assert waited[1:] == recorded[:-1]


def test_a_file_cut_after_opening(bundle_folder: Path) -> None:
    """case 71: what was allocated is freed, also when reading fails."""
    bundle = Bundle.open(bundle_folder)
    region = plan_region(bundle.manifest, bundle.manifest.weights)
    os.truncate(bundle_folder / "weights-00001.safetensors", 600)
    driver = NullDriver(null_facts(90, 12080))
    with driver.current():
        address = driver.allocate(region.size_bytes, "weights")
        with pytest.raises(BundleError, match="ends before byte .* Copy the bundle again"):
            upload_weights(driver, bundle, region, address)
        driver.free(address)
    assert driver.is_empty


def test_integrated_devices_drop_the_file_cache(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 57"""
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advice.append(arguments[3]))
    bundle = Bundle.open(bundle_folder)
    region = plan_region(bundle.manifest, bundle.manifest.weights)
    for integrated in (False, True):
        driver = NullDriver(replace(null_facts(110, 13000), integrated=integrated))
        with driver.current():
            address = driver.allocate(region.size_bytes, "weights")
            upload_weights(driver, bundle, region, address)
    assert advice == [os.POSIX_FADV_DONTNEED]
