"""Pictures: layouts, dtypes, strides, and both resize rules against the official results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from policyc.runtime_min.errors import ObservationError
from policyc.runtime_min.processing import Processing
from policyc.runtime_min.processing.images import check_image, write_image
from policyc.runtime_min.processing.schema import Rule

SIZES = ("30x23", "48x64", "75x90")


def written(image: np.ndarray, rule: Rule, side: int = 56) -> np.ndarray:
    out = np.empty((3, side, side), np.float32)
    write_image(check_image(image, "images['top']"), rule, out, "images['top']")
    return out


def picture(height: int = 40, width: int = 56) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)


def resized(oracles: Path, name: str) -> np.ndarray:
    with safe_open(oracles / "resize" / "resize.safetensors", "np") as file:
        return file.get_tensor(name)


@pytest.mark.parametrize("size", SIZES)
def test_openpi_resize(size: str, oracles: Path) -> None:
    """Case 61: bit-equal to openpi's policy transform."""
    expected = resized(oracles, f"{size}/openpi_u8").transpose(2, 0, 1)
    expected = expected.astype(np.float32) / 255 * 2 - 1
    found = written(resized(oracles, f"{size}/raw_u8"), Rule.OPENPI)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", SIZES)
def test_lerobot_resize(size: str, oracles: Path) -> None:
    """Case 61: within 1e-6 of the recorded result, which was computed on [-1, 1]."""
    found = written(resized(oracles, f"{size}/raw_u8"), Rule.LEROBOT)
    expected = resized(oracles, f"{size}/openpi_model_f32")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pattern", ["checkerboard", "lines", "noise"])
def test_lerobot_resize_equals_torch(pattern: str) -> None:
    """Case 61: 640 x 480 to 224; within a float32 rounding or two of torch."""
    functional = pytest.importorskip("torch.nn.functional")
    torch = pytest.importorskip("torch")
    image = picture(480, 640)
    rows, columns = np.indices((480, 640))
    if pattern == "checkerboard":
        image[...] = ((rows + columns) % 2 * 255)[..., None]
    elif pattern == "lines":
        image[...] = (columns % 7 == 0)[..., None] * 255
    pixels = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32) / 255)[None]
    inner = functional.interpolate(pixels, size=(168, 224), mode="bilinear", align_corners=False)
    expected = functional.pad(inner.clamp(0, 1), (0, 0, 28, 28))[0].numpy() * 2 - 1
    found = written(image, Rule.LEROBOT, side=224)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-7)


def test_padding_is_black_and_centred() -> None:
    for rule in Rule:
        found = written(np.full((20, 40, 3), 255, np.uint8), rule)
        assert (found[:, :14] == -1).all() and (found[:, 42:] == -1).all()
        assert (found[:, 14:42] == 1).all()


def test_cameras_of_different_sizes(processing: Processing, observation: dict[str, Any]) -> None:
    """Case 25: each view is resized on its own, as if it were alone."""
    sizes = ((480, 640), (360, 640), (56, 56))
    names = list(observation["images"])
    for name, size in zip(names, sizes, strict=True):
        observation["images"][name] = picture(*size)
    together = processing.prepare(observation)["images"][0]
    for index, name in enumerate(names):
        alone = written(observation["images"][name], Rule.OPENPI)
        np.testing.assert_array_equal(together[index], alone)


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 40, 3), (40, 1, 3), (0, 40, 3), (40, 0, 3)])
def test_degenerate_sizes(shape: tuple[int, ...]) -> None:
    """Case 25: refused."""
    with pytest.raises(ObservationError, match="height and width must be at least 2"):
        written(np.zeros(shape, np.uint8), Rule.OPENPI)


def test_aspect_ratio_that_leaves_nothing() -> None:
    """Case 25: the short side would vanish."""
    for rule in Rule:
        with pytest.raises(ObservationError, match="2 x 4000 leaves no pixel of its short side"):
            written(np.zeros((2, 4000, 3), np.uint8), rule)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 40, 56), r"got shape \(3, 40, 56\).*channels first: use image.transpose\(1, 2, 0\)"),
        ((1, 40, 56, 3), r"got a batch, shape \(1, 40, 56, 3\)"),
        ((1, 3, 40, 56), "got a batch"),
        ((40, 56, 4), "Four channels: drop the alpha"),
        ((40, 56), r"got shape \(40, 56\); expected height x width x 3"),
        ((40, 56, 1), r"got shape \(40, 56, 1\)"),
    ],
)
def test_layouts(shape: tuple[int, ...], message: str) -> None:
    """Case 26: height x width x 3 is the one layout; others are refused by name."""
    with pytest.raises(ObservationError, match=message):
        check_image(np.zeros(shape, np.uint8), "images['top']")


def test_three_by_three_is_channels_last() -> None:
    """Case 26: the documented layout decides, so this is not ambiguous."""
    image = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    expected = image.transpose(2, 0, 1).astype(np.float32) / 255 * 2 - 1
    np.testing.assert_array_equal(written(image, Rule.OPENPI, side=3), expected)


@pytest.mark.parametrize("dtype", ["i8", "i2", "?", "U1", "O", "c8", "u2"])
def test_other_dtypes(dtype: str) -> None:
    with pytest.raises(ObservationError, match="got dtype .*uint8 in 0..255 or floating point"):
        check_image(np.zeros((4, 4, 3), dtype), "images['top']")


@pytest.mark.parametrize("value", [None, "picture.png", [[1, 2], [3]]])
def test_no_array(value: object) -> None:
    with pytest.raises(ObservationError, match=r"images\['top'\]: (got dtype|not an array)"):
        check_image(value, "images['top']")


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_floats_equal_bytes_within_quantisation(rule: Rule, dtype: str) -> None:
    """Case 33: the dtype decides the range; openpi truncates to bytes, which may lose one level."""
    image = picture(56, 56)
    floats = image.astype(dtype) / np.dtype(dtype).type(255)
    difference = np.abs(written(floats, rule) - written(image, rule)).max()
    assert difference <= 2 / 255 + 1e-6


def test_openpi_truncates_floats() -> None:
    """Case 33: value * 255, rounded down, as openpi does."""
    image = np.full((4, 4, 3), 0.5, np.float32)
    expected = np.float32(127) / np.float32(255) * np.float32(2) - np.float32(1)
    assert (written(image, Rule.OPENPI, side=4) == expected).all()
    assert (written(image, Rule.LEROBOT, side=4) == 0.0).all()


@pytest.mark.parametrize("value", [255.0, 1.001, -0.01, np.nan, np.inf])
def test_floats_out_of_range(value: float) -> None:
    """Case 33, case 60: named with value and index."""
    image = np.zeros((4, 5, 3), np.float32)
    image[2, 3, 1] = value
    with pytest.raises(ObservationError, match=r"images\['top'\]: float32 value .* at \[2, 3, 1\]"):
        check_image(image, "images['top']")
    assert check_image(image, "images['top']", check_values=False) is image


def views(image: np.ndarray) -> dict[str, np.ndarray]:
    """The same kind of array with every awkward memory layout."""
    wide = np.repeat(image, 2, axis=1)
    frozen = image.copy()
    frozen.flags.writeable = False
    return {
        "reversed channels": image[:, :, ::-1],
        "flipped": image[::-1],
        "every second column": wide[:, ::2],
        "transposed": image.transpose(1, 0, 2),
        "Fortran order": np.asfortranarray(image),
        "read-only": frozen,
    }


@pytest.mark.parametrize("name", list(views(picture())))
@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("kind", ["u1", "f4"])
@pytest.mark.parametrize("side", [56, 64])
def test_memory_layouts(name: str, rule: Rule, kind: str, side: int) -> None:
    """Case 59: bit-equal to a contiguous copy; the caller's buffer is not written to."""
    source = picture(56, 56)
    if kind == "f4":
        source = source.astype(np.float32) / np.float32(255)
    view = views(source)[name]
    before = view.copy()
    np.testing.assert_array_equal(written(view, rule, side), written(before, rule, side))
    np.testing.assert_array_equal(view, before)
