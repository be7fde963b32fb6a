from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.compatibility import check_device, check_memory, usable_bytes
from policyc.runtime_min.errors import DeviceMemoryError, IncompatibleDeviceError
from policyc.runtime_min.null_driver import null_facts

BOARD = replace(null_facts(110, 13000), integrated=True)


@pytest.fixture
def bundle(bundle_folder: Path) -> Bundle:
    return Bundle.open(bundle_folder)


def test_the_right_device_passes(bundle: Bundle) -> None:
    check_device(bundle, null_facts(90, 12080))


def test_another_device_names_both_and_the_command(bundle: Bundle) -> None:
    """case 53"""
    facts = replace(null_facts(86, 13000), name="NVIDIA A40")
    with pytest.raises(IncompatibleDeviceError) as caught:
        check_device(bundle, facts)
    message = str(caught.value)
    assert "compiled for h100 (9.0), h20 (9.0)" in message
    assert "NVIDIA A40 (compute capability 8.6)" in message
    assert "policyc compile CHECKPOINT --target NAME -o toy.policy" in message


@pytest.mark.parametrize(("version", "text"), [(11080, r"11\.8"), (12040, r"12\.4")])
def test_an_old_driver_names_both_versions(bundle: Bundle, version: int, text: str) -> None:
    """case 54"""
    with pytest.raises(IncompatibleDeviceError, match=rf"CUDA 12\.8 or newer; .* CUDA {text}"):
        check_device(bundle, null_facts(90, version))


def test_too_little_memory_names_all_figures(bundle: Bundle) -> None:
    facts = null_facts(90, 12080)
    check_memory(bundle, facts, 1000, 700, 300)
    with pytest.raises(DeviceMemoryError, match=r"needs 1001 .*700.*301.*1000.* free\)"):
        check_memory(bundle, facts, 1000, 700, 301)


def test_shared_memory_counts_what_the_system_can_reclaim() -> None:
    """case 57"""
    text = "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:     90 kB\n"
    assert usable_bytes(BOARD, 10, text) == 90 * 1024
    assert usable_bytes(BOARD, 1 << 20, text) == 1 << 20
    assert usable_bytes(BOARD, 10, "MemTotal: 100 kB\n") == 10
    assert usable_bytes(replace(BOARD, integrated=False), 10, text) == 10
