"""What the user can decide about a compile, checked as far as possible without the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class OptionError(Exception):
    """An option that makes no sense as written: a user's mistake, found before any file is read."""


class Precision(Enum):
    """Element type of weights and activations; the value is the spelling printed and stored."""

    BF16 = "bf16"
    FLOAT32 = "float32"


class Rope(Enum):
    """Rotary frequencies: `exact`, or `rounded` to bfloat16 as some reference code does it."""

    EXACT = "exact"
    ROUNDED = "rounded"


class Golden(Enum):
    """How the golden vectors are made: by the adapter in float32, or not at all."""

    FLOAT32 = "float32"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Everything that decides the bytes of a bundle, beside checkpoint and versions of the tools.

    `None` always means: as the checkpoint says, or as its layout's own code does where the files
    are silent.

    Args:
        checkpoint: folder of the checkpoint.
        output: the bundle to write, `NAME.policy`.
        targets: names of profiles; `cpu` adds no GPU code.
        precision: element type of weights and activations; None as the checkpoint is served.
        steps: denoise steps.
        views: camera slots of the compiled policy.
        prompt_slots: token slots of the prompt.
        horizon: actions in a chunk.
        batch: batch sizes, ascending; one graph each.
        statistics: id of the statistics to use, where the checkpoint holds several.
        rope: rotary frequencies.
        state_in_prompt: is the robot's state written into the prompt?
        cameras: (robot's camera name, slot of the checkpoint) pairs; others keep their names.
        default_prompt: instruction for observations that bring none.
        tokenizer: tokenizer file, for checkpoints that hold none.
        cache: folder for compiled kernels; None keeps them in the user's cache folder.
        choices: file of measured kernel choices (`policyc tune`) to go before the profile's.
        dump: folder for the graph after every pass; None writes none.
        golden: how golden vectors are made.
    """

    checkpoint: Path
    output: Path
    targets: tuple[str, ...]
    precision: Precision | None = None
    steps: int | None = None
    views: int | None = None
    prompt_slots: int | None = None
    horizon: int | None = None
    batch: tuple[int, ...] = (1,)
    statistics: str | None = None
    rope: Rope | None = None
    state_in_prompt: bool | None = None
    cameras: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    tokenizer: Path | None = None
    cache: Path | None = None
    choices: Path | None = None
    dump: Path | None = None
    golden: Golden = Golden.FLOAT32

    def __post_init__(self) -> None:
        _check_targets(self.targets)
        _check_batch(self.batch)
        for name in ("steps", "views", "prompt_slots", "horizon"):
            _check_positive(name, getattr(self, name))
        _check_cameras(self.cameras)


_SPELLINGS: dict[str, Precision] = {
    "bf16": Precision.BF16,
    "bfloat16": Precision.BF16,
    "float32": Precision.FLOAT32,
    "float": Precision.FLOAT32,
    "fp32": Precision.FLOAT32,
    "f32": Precision.FLOAT32,
    "single": Precision.FLOAT32,
}
_HALF = frozenset({"half", "fp16", "float16", "f16"})
_QUANTISED = frozenset({"w8a16", "w4a16", "w8a8", "w4a8", "fp8", "int8", "int4", "nvfp4"})


def parse_precision(text: str) -> Precision:
    """The precision that `text` spells, whatever its case and with or without `torch.`.

    Raises:
        OptionError: for float16, quantised precisions and anything unknown; lists what there is.
    """
    name = text.strip().lower().removeprefix("torch.")
    if name in _SPELLINGS:
        return _SPELLINGS[name]
    known = ", ".join(member.value for member in Precision)
    if name in _HALF:
        raise OptionError(
            f"precision {text!r} is float16, which overflows in Gemma-family layers (above 65504) "
            f"and is refused. Use one of: {known}."
        )
    if name.replace("-", "").replace("_", "") in _QUANTISED:
        raise OptionError(
            f"precision {text!r} is not in this version of policyc. Those that are: {known}."
        )
    spellings = ", ".join(sorted(_SPELLINGS))
    raise OptionError(
        f"unknown precision {text!r}. Use one of: {known} (other spellings: {spellings})."
    )


def parse_camera(text: str) -> tuple[str, str]:
    """`robot=slot` as a pair of names.

    Raises:
        OptionError: unless the text has one `=` with a name on either side.
    """
    robot, separator, slot = text.partition("=")
    if not separator or not robot.strip() or not slot.strip() or "=" in slot:
        raise OptionError(f"camera {text!r} is not of the form ROBOT_NAME=CHECKPOINT_SLOT.")
    return robot.strip(), slot.strip()


def _check_targets(targets: Sequence[str]) -> None:
    if not targets:
        raise OptionError("no target given. Name at least one profile, or cpu: --target NAME.")
    repeated = sorted({name for name in targets if targets.count(name) > 1})
    if repeated:
        raise OptionError(f"targets given more than once: {', '.join(repeated)}.")


def _check_batch(batch: Sequence[int]) -> None:
    if not batch or min(batch) < 1:
        raise OptionError(f"batch sizes must be 1 or more, got {list(batch)}.")
    if list(batch) != sorted(set(batch)):
        raise OptionError(f"batch sizes must ascend without repeats, got {list(batch)}.")


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise OptionError(f"{name} must be 1 or more, got {value}.")


def _check_cameras(cameras: Sequence[tuple[str, str]]) -> None:
    for side, what in ((0, "robot camera"), (1, "checkpoint slot")):
        names = [pair[side] for pair in cameras]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise OptionError(f"{what} named more than once in --camera: {', '.join(repeated)}.")
