"""Exit codes of the command line, and which error has which (docs/exit-codes.md).

Errors are told apart by the names of their classes, so that finding the code of an error imports
nothing: torch is not installed on a robot.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to its caller."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    CHECKPOINT = 3
    TOOLCHAIN = 4
    BUNDLE = 5
    DEVICE = 6
    INPUT = 7
    INTERNAL = 70
    INTERRUPTED = 130


# Families of user errors: module of the class (below `policyc.`), class, code.
USER_ERRORS: tuple[tuple[str, str, ExitCode], ...] = (
    ("compiler.options", "OptionError", ExitCode.USAGE),
    ("compiler.synth.checkpoint", "SynthesisError", ExitCode.USAGE),
    ("compiler.errors", "CompileError", ExitCode.CHECKPOINT),
    ("frontends.errors", "FrontendError", ExitCode.CHECKPOINT),
    ("compiler.ir.errors", "TensorFileError", ExitCode.CHECKPOINT),
    ("profiles.errors", "ProfileError", ExitCode.TOOLCHAIN),
    ("backends.errors", "ToolchainError", ExitCode.TOOLCHAIN),
    ("runtime_min.errors", "BundleError", ExitCode.BUNDLE),
    ("runtime_min.errors", "DeviceError", ExitCode.DEVICE),
    ("runtime_min.errors", "InputError", ExitCode.INPUT),
    ("runtime_min.errors", "NonFiniteActions", ExitCode.INPUT),
    ("compiler.cli.archives", "ArchiveError", ExitCode.INPUT),
)

# Packages that an extra brings: package -> extra of policyc.
EXTRAS = {
    "torch": "compiler",
    "triton": "compiler",
    "onnx": "compiler",
    "tokenizers": "tokenizers",
    "cuda": "cuda",
    "matplotlib": "plot",
}


def exit_code(error: BaseException) -> ExitCode:
    """The code of an error; `INTERNAL` for everything that is not the user's to mend."""
    if isinstance(error, ModuleNotFoundError):
        return ExitCode.TOOLCHAIN if missing_extra(error) else ExitCode.INTERNAL
    if isinstance(error, OSError):
        return ExitCode.USAGE
    names = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    for module, name, code in USER_ERRORS:
        if (f"policyc.{module}", name) in names:
            return code
    return ExitCode.INTERNAL


def missing_extra(error: ModuleNotFoundError) -> str:
    """The extra of policyc that brings the package that was not found, or nothing."""
    return EXTRAS.get((error.name or "").split(".")[0], "")
