"""The preflight: which tools there are, and what is said when they do not do."""

from __future__ import annotations

import importlib.util
import re

import pytest

from policyc.backends.errors import ToolchainError
from policyc.backends.toolchain import check_toolchain, unmet


def test_this_machine_compiles_for_every_known_capability() -> None:
    toolchain = check_toolchain((90, 86))
    assert re.fullmatch(r"\d+\.\d+.*", toolchain.triton)
    assert list(toolchain.ptxas) == [86, 90]
    assert all(re.fullmatch(r"\d+\.\d+", version) for version in toolchain.ptxas.values())


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r'triton is not installed.*"policyc\[compiler\]"'):
        check_toolchain((90,))


def test_every_unmet_capability_is_named() -> None:
    with pytest.raises(ToolchainError) as raised:
        check_toolchain((90, 31, 47))
    text = str(raised.value)
    assert "compute capability 31 is unknown" in text
    assert "compute capability 47 is unknown to policyc; known: 80, 86" in text
    assert "capability 90" not in text


@pytest.mark.parametrize(
    ("capability", "triton", "ptxas", "message"),
    [
        (90, "3.5.1", "12.9", "needs triton 3.6 or newer, this is 3.5.1"),
        (90, "3.10.0", "11.8", "needs ptxas 12.0 or newer, this is 11.8"),
        (110, "3.9.0", "12.9", "needs ptxas 13.0 or newer"),
        (90, "3.9.0", "", "the ptxas of triton 3.9.0 does not run"),
    ],
)
def test_too_old(capability: int, triton: str, ptxas: str, message: str) -> None:
    (fault,) = unmet(capability, triton, ptxas)
    assert f"compute capability {capability}" in fault
    assert message in fault


def test_versions_are_compared_as_numbers() -> None:
    assert unmet(90, "3.10.0", "12.10") == []
    assert unmet(90, "4.0.0+cu130", "13") == []
