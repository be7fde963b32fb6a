from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from policyc.compiler.errors import PassError
from policyc.compiler.exit_codes import USER_ERRORS, ExitCode, exit_code, missing_extra
from policyc.frontends.errors import CheckpointError
from policyc.runtime_min.errors import BundleVersionError, DeviceMemoryError, ObservationError


@pytest.mark.parametrize(("module", "name", "code"), USER_ERRORS)
def test_every_family_exists_and_has_its_code(module: str, name: str, code: ExitCode) -> None:
    family = getattr(importlib.import_module(f"policyc.{module}"), name)
    assert exit_code(family("message")) is code


def test_members_of_a_family_have_its_code() -> None:
    assert exit_code(CheckpointError("x")) is ExitCode.CHECKPOINT
    assert exit_code(BundleVersionError("x")) is ExitCode.BUNDLE
    assert exit_code(DeviceMemoryError("x")) is ExitCode.DEVICE
    assert exit_code(ObservationError("x")) is ExitCode.INPUT


def test_everything_else_is_a_bug() -> None:
    class BundleError(Exception):
        """Not ours, though it has the name of one of ours."""

    for error in (PassError("x"), ValueError("x"), BundleError("x")):
        assert exit_code(error) is ExitCode.INTERNAL


def test_files_and_packages() -> None:
    assert exit_code(PermissionError("x")) is ExitCode.USAGE
    missing = ModuleNotFoundError("x", name="triton.language")
    assert exit_code(missing) is ExitCode.TOOLCHAIN and missing_extra(missing) == "compiler"
    ours = ModuleNotFoundError("x", name="policyc.passes.absent")
    assert exit_code(ours) is ExitCode.INTERNAL


def test_the_page_has_every_code(repository: Path) -> None:
    page = (repository / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert documented == {int(code) for code in ExitCode}
