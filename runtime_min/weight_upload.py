"""Streams weights from a bundle's files to the device through two page-locked buffers.

Peak host memory is the two buffers: while one is copied to the device, the other is filled from the
    file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.driver_interface import Bytes, Driver
from policyc.runtime_min.errors import BundleError
from policyc.runtime_min.manifest import WEIGHT_ALIGNMENT, Manifest

STAGING_BYTES = 64 << 20
_LARGEST_GAP_BYTES = 4096
"""Unused bytes between two weights that are copied along rather than read around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bytes `start` to `end` of a file, at `offset` in the weight region."""

    file: str
    start: int
    end: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRegion:
    """One device allocation for all weights: size, what to copy, and where each weight lies."""

    size_bytes: int
    spans: tuple[Span, ...]
    offsets: dict[str, int]


def plan_region(manifest: Manifest, names: Iterable[str]) -> WeightRegion:
    """Lay out the weights `names` (without `@`) in the order of their files."""
    ordered = sorted(set(names), key=lambda name: _place(manifest, name))
    spans: list[Span] = []
    offsets: dict[str, int] = {}
    for name in ordered:
        entry = manifest.weights[name]
        end = entry.offset + entry.size_bytes
        last = spans[-1] if spans else None
        if last and last.file == entry.file and entry.offset - last.end <= _LARGEST_GAP_BYTES:
            spans[-1] = Span(
                file=last.file, start=last.start, end=max(end, last.end), offset=last.offset
            )
        else:
            offset = _aligned(last.offset + last.end - last.start) if last else 0
            spans.append(Span(file=entry.file, start=entry.offset, end=end, offset=offset))
        offsets[name] = spans[-1].offset + entry.offset - spans[-1].start
    size = _aligned(spans[-1].offset + spans[-1].end - spans[-1].start) if spans else 0
    return WeightRegion(size_bytes=size, spans=tuple(spans), offsets=offsets)


def upload_weights(
    driver: Driver,
    bundle: Bundle,
    region: WeightRegion,
    address: int,
    staging_bytes: int = STAGING_BYTES,
) -> None:
    """Copy all spans to the region at device `address`; returns when they are there.

    Raises:
        BundleError: a file ends early.
        DeviceError: a copy failed.
    """
    size = min(staging_bytes, max((span.end - span.start for span in region.spans), default=0))
    if size == 0:
        return
    with ExitStack() as resources:
        buffers: list[Bytes] = []
        events: list[int] = []
        for _ in range(2):
            buffers.append(driver.allocate_pinned(size))
            resources.callback(driver.free_pinned, buffers[-1])
            events.append(driver.create_event())
            resources.callback(driver.destroy_event, events[-1])
        # The buffers must outlive the copies, also when reading fails halfway.
        resources.callback(driver.synchronize)
        for index, (target, source) in enumerate(_chunks(bundle, region, buffers)):
            driver.copy_to_device(address + target, source)
            driver.record_event(events[index % 2])
            driver.wait_event(events[(index + 1) % 2])
    if driver.facts.integrated:
        _release_file_cache(bundle, region)


def _chunks(
    bundle: Bundle, region: WeightRegion, buffers: list[Bytes]
) -> Iterator[tuple[int, Bytes]]:
    """(offset in the region, bytes), alternately in the two buffers."""
    turn = 0
    for span in region.spans:
        path = bundle.path_of(span.file)
        with path.open("rb", buffering=0) as file:
            file.seek(span.start)
            for start in range(span.start, span.end, buffers[0].nbytes):
                chunk = buffers[turn][: min(buffers[0].nbytes, span.end - start)]
                view = chunk.data
                while view.nbytes:
                    count = file.readinto(view)
                    if not count:
                        raise BundleError(
                            f"{path}: ends before byte {span.end}. Copy the bundle again."
                        )
                    view = view[count:]
                yield span.offset + start - span.start, chunk
                turn = 1 - turn


def _release_file_cache(bundle: Bundle, region: WeightRegion) -> None:
    """Where GPU and CPU share memory, cached pages of the files take what the policy needs."""
    for file in {span.file for span in region.spans}:
        with bundle.path_of(file).open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _place(manifest: Manifest, name: str) -> tuple[str, int]:
    entry = manifest.weights[name]
    return entry.file, entry.offset


def _aligned(size: int) -> int:
    return -(-size // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
