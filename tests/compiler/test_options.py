from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policyc.compiler.options import (
    CompileOptions,
    OptionError,
    Precision,
    parse_camera,
    parse_precision,
)


def options(**changes: Any) -> CompileOptions:
    defaults: dict[str, Any] = {
        "checkpoint": Path("c"),
        "output": Path("o.policy"),
        "targets": ("cpu",),
    }
    return CompileOptions(**(defaults | changes))


@pytest.mark.parametrize("text", ["bf16", "bfloat16", "BF16", "torch.bfloat16", " Bf16 "])
def test_every_spelling_of_bfloat16(text: str) -> None:
    assert parse_precision(text) is Precision.BF16


@pytest.mark.parametrize("text", ["fp32", "float32", "float", "torch.float32", "F32"])
def test_every_spelling_of_float32(text: str) -> None:
    assert parse_precision(text) is Precision.FLOAT32


@pytest.mark.parametrize("text", ["half", "fp16", "torch.float16"])
def test_float16_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(OptionError, match=r"overflows.*bf16, float32"):
        parse_precision(text)


@pytest.mark.parametrize("text", ["w8a16", "W4A16", "w8a8", "W4-A8", "fp8"])
def test_quantised_precisions_are_refused_as_absent(text: str) -> None:
    with pytest.raises(OptionError, match=r"not in this version.*bf16, float32"):
        parse_precision(text)


@pytest.mark.parametrize("text", ["int7", "", "bf17"])
def test_unknown_precisions_are_refused_with_the_list(text: str) -> None:
    with pytest.raises(OptionError, match=r"unknown precision.*bf16, float32.*bfloat16"):
        parse_precision(text)


def test_camera_pairs() -> None:
    assert parse_camera("top=base_0_rgb") == ("top", "base_0_rgb")
    for text in ("top", "top=", "=base_0_rgb", "a=b=c"):
        with pytest.raises(OptionError, match="ROBOT_NAME=CHECKPOINT_SLOT"):
            parse_camera(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": ()}, "no target given"),
        ({"targets": ("h100", "cpu", "h100")}, "more than once: h100"),
        ({"batch": ()}, "1 or more"),
        ({"batch": (0, 1)}, "1 or more"),
        ({"batch": (2, 1)}, "ascend"),
        ({"batch": (1, 1)}, "ascend"),
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"views": -1}, "views must be 1 or more"),
        ({"prompt_slots": 0}, "prompt_slots must be"),
        ({"horizon": 0}, "horizon must be"),
        ({"cameras": (("a", "x"), ("a", "y"))}, "robot camera named more than once.*a"),
        ({"cameras": (("a", "x"), ("b", "x"))}, "checkpoint slot named more than once.*x"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**changes)


def test_defaults_leave_the_checkpoint_to_decide() -> None:
    given = options()
    assert (given.steps, given.views, given.prompt_slots, given.horizon) == (None,) * 4
    assert given.rope is None and given.state_in_prompt is None
    assert given.precision is None and given.batch == (1,)
