"""Checks, in seconds and before any work, that this machine can compile for the targets."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policyc.backends.errors import ToolchainError

# Compute capability -> (oldest Triton, oldest ptxas). Source: found by compiling with Triton 3.6.0
# and 3.9.0; ptxas releases from NVIDIA's PTX ISA release notes (sm_90a: 12.0, sm_100a and sm_120a:
# 12.8, sm_103a and sm_121a: 12.9, sm_110a: 13.0).
_NEEDS: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {
    80: ((3, 6), (11, 1)),
    86: ((3, 6), (11, 1)),
    87: ((3, 6), (11, 5)),
    89: ((3, 6), (11, 8)),
    90: ((3, 6), (12, 0)),
    100: ((3, 6), (12, 8)),
    103: ((3, 6), (12, 9)),
    110: ((3, 9), (13, 0)),
    120: ((3, 6), (12, 8)),
    121: ((3, 6), (12, 9)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Versions of Triton, and of the ptxas that it uses for each compute capability."""

    triton: str
    ptxas: Mapping[int, str]


def check_toolchain(capabilities: Iterable[int]) -> Toolchain:
    """The tools that compile for `capabilities` (90 for 9.0).

    Raises:
        ToolchainError: no Triton, no ptxas, or one too old; a line for each capability.
    """
    if importlib.util.find_spec("triton") is None:
        raise ToolchainError(
            "triton is not installed, which compiles the kernels. "
            'Run: pip install "policyc[compiler]"'
        )
    import triton

    faults: list[str] = []
    ptxas: dict[int, str] = {}
    for capability in sorted(set(capabilities)):
        ptxas[capability] = _ptxas_version(capability)
        faults += unmet(capability, triton.__version__, ptxas[capability])
    if faults:
        raise ToolchainError(
            "this machine cannot compile for the targets:\n  " + "\n  ".join(faults)
        )
    return Toolchain(triton=triton.__version__, ptxas=ptxas)


def unmet(capability: int, triton_version: str, ptxas_version: str) -> list[str]:
    """What is missing to compile for a capability, a line each; versions as `3.9.0` and `13.4`."""
    if capability not in _NEEDS:
        known = ", ".join(map(str, sorted(_NEEDS)))
        return [f"compute capability {capability} is unknown to policyc; known: {known}."]
    triton_needed, ptxas_needed = _NEEDS[capability]
    faults = []
    if _version(triton_version) < triton_needed:
        faults.append(
            f"compute capability {capability} needs triton {_text(triton_needed)} or newer, this "
            f'is {triton_version}. Run: pip install --upgrade "policyc[compiler]"'
        )
    if not ptxas_version:
        faults.append(
            f"compute capability {capability}: the ptxas of triton {triton_version} does not run. "
            "Install triton again, or name another ptxas by TRITON_PTXAS_PATH."
        )
    elif _version(ptxas_version) < ptxas_needed:
        faults.append(
            f"compute capability {capability} needs ptxas {_text(ptxas_needed)} or newer, this "
            f"is {ptxas_version}. Upgrade triton, or name another ptxas by TRITON_PTXAS_PATH."
        )
    return faults


def _ptxas_version(capability: int) -> str:
    """Release of the ptxas that Triton uses, such as `13.4`; empty if it does not run."""
    from triton.backends.nvidia.compiler import get_ptxas

    try:
        return str(get_ptxas(capability).version)
    except RuntimeError:
        return ""


def _version(text: str) -> tuple[int, int]:
    major, minor, *_ = (*text.split("."), "0")
    return int(major), int(minor)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
