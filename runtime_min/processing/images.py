"""Camera pictures to the network's tensor: float32, channels first, in [-1, 1].

Accepted: height x width x 3, RGB, as uint8 (0..255) or as floating point in [0, 1]; the dtype
decides. The two resize rules differ by up to 0.4 on noisy pictures, so the bundle names the one it
was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from policyc.runtime_min.errors import ObservationError
from policyc.runtime_min.processing.schema import Cameras, MissingCamera, Rule

FILLER = np.float32(-1.0)
"""What an absent camera shows, everywhere."""

MINIMUM_SIDE = 2

_ACCEPTED = (
    "expected height x width x 3 (RGB, channels last), uint8 in 0..255 or floating point in [0, 1]"
)

Pixels = NDArray[np.uint8] | NDArray[np.float32]


def prepare_images(
    pictures: Mapping[str, object], cameras: Cameras, check_values: bool
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Pictures f32[1,C,3,H,W] in the network's order and their mask bool[1,C].

    Raises:
        ObservationError: a picture that `check_image` or `write_image` refuses.
    """
    order = [name for name in cameras.names if name in pictures]
    if cameras.missing is MissingCamera.KEEP_SLOT:
        order = list(cameras.names)
    images = np.empty((1, len(cameras.slots), 3, cameras.height, cameras.width), np.float32)
    mask = np.zeros((1, len(cameras.slots)), np.bool_)
    images[0, len(order) :] = FILLER
    for position, name in enumerate(order):
        if name not in pictures:
            images[0, position] = FILLER
            continue
        where = f"images['{name}']"
        picture = check_image(pictures[name], where, check_values)
        write_image(picture, cameras.resize, images[0, position], where)
        mask[0, position] = True
    return images, mask


def check_image(value: object, where: str, check_values: bool = True) -> NDArray[Any]:
    """The picture as an array of an accepted layout; shares the caller's memory.

    Args:
        value: the picture; any strides, may be read-only.
        where: its key, for messages.
        check_values: scan floating-point pictures for values outside [0, 1], NaN and infinity.

    Raises:
        ObservationError: another dtype, layout or size, or a value out of range.
    """
    try:
        image = np.asarray(value)
    except ValueError as fault:
        raise ObservationError(f"{where}: not an array: {fault}; {_ACCEPTED}.") from fault
    if image.dtype != np.uint8 and not np.issubdtype(image.dtype, np.floating):
        raise ObservationError(f"{where}: got dtype {image.dtype}; {_ACCEPTED}.")
    _check_layout(image.shape, where)
    if check_values and image.dtype != np.uint8:
        _check_range(image, where)
    return image


def _check_layout(shape: tuple[int, ...], where: str) -> None:
    if len(shape) == 4:
        raise ObservationError(
            f"{where}: got a batch, shape {shape}; give one picture. {_ACCEPTED}."
        )
    if len(shape) != 3 or shape[2] != 3:
        raise ObservationError(f"{where}: got shape {shape}; {_ACCEPTED}.{_layout_hint(shape)}")
    if min(shape[:2]) < MINIMUM_SIDE:
        raise ObservationError(
            f"{where}: got shape {shape}; height and width must be at least {MINIMUM_SIDE} pixels."
        )


def _layout_hint(shape: tuple[int, ...]) -> str:
    if len(shape) == 3 and shape[0] == 3:
        return " This looks channels first: use image.transpose(1, 2, 0)."
    if len(shape) == 3 and shape[2] == 4:
        return " Four channels: drop the alpha channel, and check the colour order."
    return ""


def _check_range(image: NDArray[Any], where: str) -> None:
    low, high = float(image.min()), float(image.max())
    if low >= 0.0 and high <= 1.0:
        return
    bad = ~((image >= 0) & (image <= 1))
    index = tuple(int(axis) for axis in np.unravel_index(int(bad.argmax()), image.shape))
    raise ObservationError(
        f"{where}: {image.dtype} value {float(image[index])} at {list(index)}; floating-point "
        "pictures must be in [0, 1]. Divide by 255, or give uint8."
    )


def write_image(image: NDArray[Any], rule: Rule, out: NDArray[np.float32], where: str) -> None:
    """Convert a checked picture and write it to `out` [3, H, W], resizing to H x W where needed.

    openpi: uint8 throughout (floats are multiplied by 255 and truncated), Pillow's bilinear filter,
    which antialiases. LeRobot: float32 in [0, 1], bilinear without antialiasing. Both keep the
    aspect ratio and pad to the centre with black, which is -1.0.

    Raises:
        ObservationError: the aspect ratio leaves nothing of one side.
    Source: openpi `openpi_client/image_tools.py`, `models/model.py` at 15a9616; LeRobot
        `policies/common/vla_utils.py` (`resize_with_pad_torch`), `policies/pi05/modeling_pi05.py`
        at 7427f31.
    """
    if rule is Rule.OPENPI and image.dtype != np.uint8:
        image = (255 * image).astype(np.uint8)
    pixels = cast(Pixels, image)
    size = (out.shape[1], out.shape[2])
    if image.shape[:2] != size:
        inner = _fitted_size(image.shape[:2], size, where)
        resize = _resize_openpi if rule is Rule.OPENPI else _resize_lerobot
        pixels = _pad_center(resize(image, inner), size)
    out[...] = pixels.transpose(2, 0, 1)
    if pixels.dtype == np.uint8:
        out /= np.float32(255)
    out *= np.float32(2)
    out -= np.float32(1)


def _fitted_size(shape: tuple[int, ...], size: tuple[int, int], where: str) -> tuple[int, int]:
    """The largest (height, width) of the same aspect ratio inside `size`, rounded down."""
    ratio = max(shape[1] / size[1], shape[0] / size[0])
    fitted = (int(shape[0] / ratio), int(shape[1] / ratio))
    if min(fitted) < 1:
        raise ObservationError(
            f"{where}: a picture of {shape[0]} x {shape[1]} leaves no pixel of its short side "
            f"when fitted into {size[0]} x {size[1]}."
        )
    return fitted


def _pad_center(image: Pixels, size: tuple[int, int]) -> Pixels:
    top, left = (size[0] - image.shape[0]) // 2, (size[1] - image.shape[1]) // 2
    padded = np.zeros((*size, 3), image.dtype)
    padded[top : top + image.shape[0], left : left + image.shape[1]] = image
    return cast(Pixels, padded)


def _resize_openpi(image: NDArray[Any], size: tuple[int, int]) -> Pixels:
    picture = Image.fromarray(np.ascontiguousarray(image))
    resized = picture.resize((size[1], size[0]), resample=Image.Resampling.BILINEAR)
    return np.asarray(resized, np.uint8)


def _resize_lerobot(image: NDArray[Any], size: tuple[int, int]) -> Pixels:
    """Bilinear, half-pixel centres, no antialiasing, float32: rows of the result, then columns.

    The three channels stay side by side in memory, so that every loop runs over a long row.
    """
    low, high, weight = _taps(image.shape[0], size[0])
    rows = _blend(_unit_rows(image, low), _unit_rows(image, high), weight[:, None])
    low, high, weight = _taps(image.shape[1], size[1])
    low, high = (tap[:, None] * 3 + np.arange(3) for tap in (low, high))
    left, right = rows.take(low.ravel(), axis=1), rows.take(high.ravel(), axis=1)
    resized = _blend(left, right, weight.repeat(3)).clip(0.0, 1.0)
    return cast(Pixels, resized.reshape(*size, 3))


def _unit_rows(image: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The given rows in [0, 1], flattened to [rows, 3 * width]."""
    selected: NDArray[np.float32] = image[rows].reshape(len(rows), -1).astype(np.float32)
    if image.dtype == np.uint8:
        selected /= np.float32(255)
    return selected


def _blend(
    first: NDArray[np.float32], second: NDArray[np.float32], weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    return cast(NDArray[np.float32], first * (np.float32(1) - weight) + second * weight)


def _taps(
    source: int, target: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each target pixel: the two source pixels and the weight of the second.

    torch multiplies and subtracts with one rounding where the processor can (all current ones do);
    float64 gives the same bits.
    """
    ratio = np.float64(np.float32(source / target))
    centre = (np.arange(target) + 0.5) * ratio - 0.5
    position = np.maximum(centre.astype(np.float32), np.float32(0.0))
    low = position.astype(np.int64)
    return low, np.minimum(low + 1, source - 1), position - low.astype(np.float32)
