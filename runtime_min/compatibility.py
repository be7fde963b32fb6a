"""Does a bundle run on this device? Answered before anything is allocated."""

from __future__ import annotations

from pathlib import Path

from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.driver_interface import DeviceFacts
from policyc.runtime_min.errors import DeviceMemoryError, IncompatibleDeviceError
from policyc.runtime_min.manifest import capability_text

_MEMORY_FACTS = Path("/proc/meminfo")


def check_device(bundle: Bundle, facts: DeviceFacts) -> None:
    """Compare compute capability and driver version.

    Raises:
        IncompatibleDeviceError: what the bundle holds, what is here, and how to compile for it.
    """
    manifest = bundle.manifest
    here = f"{facts.name} (compute capability {capability_text(facts.compute_capability)})"
    matching = [t for t in manifest.targets if t.compute_capability == facts.compute_capability]
    if not matching:
        held = ", ".join(
            f"{target.name} ({capability_text(target.compute_capability)})"
            for target in manifest.targets
        )
        raise IncompatibleDeviceError(
            f"{bundle.folder}: compiled for {held or 'no GPU'}; this machine has {here}. Compile "
            "for "
            f"it: policyc compile CHECKPOINT --target NAME -o {bundle.folder.name}, with NAME a "
            f"profile of compute capability {capability_text(facts.compute_capability)}; or pass "
            "device='cpu'."
        )
    needed = max(target.minimum_driver for target in matching)
    if facts.driver_version < needed:
        raise IncompatibleDeviceError(
            f"{bundle.folder}: its machine code needs a driver for CUDA {_cuda_text(needed)} or "
            "newer; "
            f"the driver of this machine ({here}) is for CUDA {_cuda_text(facts.driver_version)}. "
            "Upgrade the NVIDIA driver, or compile with an older toolkit."
        )


def check_memory(
    bundle: Bundle, facts: DeviceFacts, free_bytes: int, weight_bytes: int, arena_bytes: int
) -> None:
    """Compare what the bundle needs with what is free.

    Raises:
        DeviceMemoryError: needed, free and total bytes.
    """
    usable = usable_bytes(facts, free_bytes, _memory_facts() if facts.integrated else "")
    needed = weight_bytes + arena_bytes
    if needed > usable:
        raise DeviceMemoryError(
            f"{bundle.folder}: needs {needed} bytes on {facts.name} (weights {weight_bytes}, "
            f"activations {arena_bytes}); usable are {usable} (the driver reports {free_bytes} "
            "free) "
            f"of {facts.total_bytes}. Close other programs on the GPU, or compile with smaller "
            "weights or fewer batch buckets."
        )


def usable_bytes(facts: DeviceFacts, free_bytes: int, memory_facts: str) -> int:
    """Free memory; where device and host share it, what the operating system can reclaim counts.

    Args:
        memory_facts: text of /proc/meminfo; empty where it is not to be used.
    """
    if not facts.integrated:
        return free_bytes
    for line in memory_facts.splitlines():
        key, _, rest = line.partition(":")
        if key == "MemAvailable" and rest.split()[:1]:
            return max(free_bytes, int(rest.split()[0]) * 1024)
    return free_bytes


def _memory_facts() -> str:
    return _MEMORY_FACTS.read_text("ascii") if _MEMORY_FACTS.exists() else ""


def _cuda_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
