"""Times a loaded policy at three boundaries, and writes down what is needed to repeat it.

- `replay`: one launch of the captured graph, by device events, inputs already there;
- `run`: network inputs on the host to normalised actions on the host;
- `infer`, for several observations `infer_batch`: raw observation (pictures, state, instruction) to
  actions in robot units.

Percentiles are nearest-rank: each is a time that was measured, not one between two of them.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from policyc import __version__
from policyc.compiler.ir.types import Array
from policyc.compiler.launch_costs import (
    LaunchReport,
    by_kernel,
    by_stage,
    launch_report,
    measure_groups,
)
from policyc.compiler.roofline import Roofline, measured_roofline
from policyc.profiles.loader import load_profile
from policyc.profiles.profile import Profile
from policyc.runtime_min.bundle import MANIFEST_NAME, Bundle
from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.errors import InputError
from policyc.runtime_min.policy import NOISE, Policy
from policyc.runtime_min.processing import Processing

UNKNOWN = "unknown"
PROMPT = "pick up the red block"
_QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,persistence_mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Percentiles of one boundary, in microseconds; `n` calls were timed."""

    boundary: str
    n: int
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTiming:
    """Phases of a load in a process that has the code imported already, in seconds."""

    open_s: float
    policy_load_s: float
    first_call_s: float
    median_call_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was measured, where, with which settings."""

    policyc: str
    bundle: str
    manifest_sha256: str
    policy: str
    device: str
    hardware: Mapping[str, str]
    host: Mapping[str, str]
    precision: str
    options: Mapping[str, object]
    views: int
    horizon: int
    prompt_slots: int
    prompt_valid: int
    batch: int
    warmup: int
    taken_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A measurement that can be repeated: setup and figures, those that were asked for."""

    setup: Setup
    timings: tuple[Timing, ...]
    load: LoadTiming | None
    launches: LaunchReport | None = None
    roofline: Roofline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How to measure.

    `observation` None makes one up from the bundle's description. `prompt_valid` fills that many
    of the prompt slots at the boundaries `replay` and `run`; None takes the observation's prompt.
    """

    device: str
    calls: int = 200
    warmup: int = 20
    seed: int = 0
    observation: Mapping[str, object] | None = None
    prompt_valid: int | None = None
    load: bool = False
    batch: int = 1
    launches: bool = False
    roofline: bool = False
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A loaded policy and what it is given: `tensors` are those of the whole batch bucket."""

    policy: Policy
    observations: Sequence[Mapping[str, object]]
    tensors: Mapping[str, Array]
    bucket: int


def bench_bundle(path: Path, options: BenchOptions) -> Receipt:
    """Measure a bundle on a device.

    Raises:
        BundleError, DeviceError, InputError: as `Policy.load` and `Policy.infer` do; launches or a
            roofline of a device that is no GPU; a batch that no bucket holds.
    """
    processing = Processing.load(Bundle.open(path).folder)
    observation = options.observation or made_up_observation(processing, options.seed)
    load = time_load(path, options, observation) if options.load else None
    with _subject(path, options, processing, observation) as subject:
        timings = _time_boundaries(subject, options)
        launches = _launches(subject, options) if options.launches else None
        stages = _roofline(subject, options) if options.roofline else None
        return Receipt(
            setup=_setup(subject, options),
            timings=timings,
            load=load,
            launches=launches,
            roofline=stages,
        )


@contextmanager
def _subject(
    path: Path,
    options: BenchOptions,
    processing: Processing,
    observation: Mapping[str, object],
) -> Iterator[_Subject]:
    with Policy.load(path, device=options.device) as policy:
        bucket = policy.signature.bucket_for(options.batch)
        single: dict[str, Array] = dict(processing.prepare(observation))
        if options.prompt_valid is not None:
            single |= filled_prompt(single["tokens"].shape[1], options.prompt_valid)
        tensors = {name: np.repeat(array, bucket, axis=0) for name, array in single.items()}
        shape = policy.signature.input_type(NOISE, bucket).shape
        noise = np.random.default_rng(options.seed).standard_normal(shape).astype(np.float32)
        tensors[NOISE] = noise
        yield _Subject(
            policy=policy,
            observations=[observation] * options.batch,
            tensors=tensors,
            bucket=bucket,
        )


def made_up_observation(processing: Processing, seed: int) -> dict[str, object]:
    """Random pictures of the network's size for every camera, zeros as state, a short prompt."""
    generator = np.random.default_rng(seed)
    cameras = processing.description.cameras
    shape = (cameras.height, cameras.width, 3)
    return {
        "images": {
            name: generator.integers(0, 256, shape, dtype=np.uint8) for name in cameras.names
        },
        "state": np.zeros(processing.description.state.width, np.float32),
        "prompt": PROMPT,
    }


def filled_prompt(slots: int, valid: int) -> dict[str, Array]:
    """A prompt of `valid` tokens in `slots` slots, batch 1.

    Raises:
        InputError: more tokens than slots, or none.
    """
    if not 1 <= valid <= slots:
        raise InputError(f"prompt: {valid} valid tokens asked for, expected 1 to {slots} slots.")
    mask = (np.arange(slots) < valid)[None]
    return {"tokens": np.where(mask, 2, 0).astype(np.int32), "token_mask": mask}


def timing_of(boundary: str, times_us: Sequence[float]) -> Timing:
    """Percentiles of measured times; at least one."""
    ordered = sorted(times_us)
    return Timing(
        boundary=boundary,
        n=len(ordered),
        p50_us=nearest_rank(ordered, 50),
        p95_us=nearest_rank(ordered, 95),
        p99_us=nearest_rank(ordered, 99),
        max_us=ordered[-1],
    )


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """The smallest value with at least `percent` of all values at or below it."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def time_calls(call: Callable[[], object], options: BenchOptions) -> tuple[float, ...]:
    """Wall time of each of `options.calls` calls after the warm-up, in microseconds."""
    for _ in range(options.warmup):
        call()
    times = []
    for _ in range(options.calls):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1000)
    return tuple(times)


def time_load(path: Path, options: BenchOptions, observation: Mapping[str, object]) -> LoadTiming:
    """Load a policy and call it: how much slower is the first call than the others?"""
    start = time.perf_counter()
    Bundle.open(path)
    opened = time.perf_counter()
    with Policy.load(path, device=options.device) as policy:
        loaded = time.perf_counter()
        policy.infer(observation, seed=options.seed)
        first = time.perf_counter()
        few = BenchOptions(device=options.device, calls=min(19, options.calls), warmup=0)
        times = time_calls(lambda: policy.infer(observation, seed=options.seed), few)
    return LoadTiming(
        open_s=opened - start,
        policy_load_s=loaded - opened,
        first_call_s=first - loaded,
        median_call_s=nearest_rank(sorted(times), 50) / 1e6,
    )


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Store a receipt as JSON, aside and renamed."""
    aside = path.with_name(path.name + ".partial")
    aside.write_text(json.dumps(asdict(receipt), indent=2, sort_keys=True) + "\n", "utf-8")
    aside.replace(path)


def device_facts(device: str) -> dict[str, str]:
    """Name, driver, clocks and power limit from nvidia-smi; `unknown` where it does not answer."""
    keys = [key.replace(".", "_") for key in _QUERY.split(",")]
    program = shutil.which("nvidia-smi")
    if not device.startswith("cuda") or program is None:
        return dict.fromkeys(keys, UNKNOWN)
    ordinal = device.partition(":")[2]
    command = (program, f"--query-gpu={_QUERY}", "--format=csv,noheader", "-i", ordinal)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode or len(values) != len(keys):
        return dict.fromkeys(keys, UNKNOWN)
    return dict(zip(keys, values, strict=True))


def _time_boundaries(subject: _Subject, options: BenchOptions) -> tuple[Timing, ...]:
    """Replay and run compute the whole bucket; the observations may fill a part of it."""
    policy, observations = subject.policy, subject.observations
    noise = subject.tensors[NOISE][: options.batch]

    def infer() -> object:
        if options.batch == 1:
            return policy.infer(observations[0], noise)
        return policy.infer_batch(observations, noise)

    run = timing_of("run", time_calls(lambda: policy.run(subject.tensors), options))
    whole = timing_of("infer" if options.batch == 1 else "infer_batch", time_calls(infer, options))
    if not isinstance(policy.executor, DeviceExecutor):
        return run, whole
    policy.run(subject.tensors)
    policy.executor.measure_replays(subject.bucket, options.warmup)
    replays = policy.executor.measure_replays(subject.bucket, options.calls)
    return timing_of("replay", replays), run, whole


def _device_executor(subject: _Subject) -> DeviceExecutor:
    """The executor, after an inference on the subject's tensors."""
    executor = subject.policy.executor
    if not isinstance(executor, DeviceExecutor):
        raise InputError(
            f"device: launches are measured on a GPU, this is {subject.policy.device}. "
            "Pass --device cuda:0, or leave --launches and --roofline out."
        )
    subject.policy.run(subject.tensors)
    return executor


def _launches(subject: _Subject, options: BenchOptions) -> LaunchReport:
    executor, profile = _device_executor(subject), _profile(subject, options)
    bundle = subject.policy.bundle
    launches = bundle.plan(profile.compute_capability).buckets[subject.bucket].launches
    measured = measure_groups(executor, subject.bucket, launches, by_kernel, _replays(options))
    return launch_report(bundle, profile, subject.bucket, by_kernel, measured)


def _roofline(subject: _Subject, options: BenchOptions) -> Roofline:
    executor, profile = _device_executor(subject), _profile(subject, options)
    bundle = subject.policy.bundle
    launches = bundle.plan(profile.compute_capability).buckets[subject.bucket].launches
    measured = measure_groups(executor, subject.bucket, launches, by_stage, _replays(options))
    return measured_roofline(bundle, profile, subject.bucket, measured)


def _replays(options: BenchOptions) -> int:
    """Replays of each graph: there are tens of graphs, so fewer than there are calls."""
    return min(options.calls, 20)


def _profile(subject: _Subject, options: BenchOptions) -> Profile:
    """The profile that gives the roof: the one asked for, else the bundle's first that fits."""
    executor = _device_executor(subject)
    capability = executor.driver.facts.compute_capability
    targets = [
        target.name
        for target in subject.policy.bundle.manifest.targets
        if target.compute_capability == capability
    ]
    profile = load_profile(options.target or targets[0])
    if profile.compute_capability != capability:
        raise InputError(
            f"target: {profile.target} has compute capability {profile.compute_capability}, the "
            f"device has {capability}. Of this bundle there are: {', '.join(targets)}."
        )
    return profile


def _setup(subject: _Subject, options: BenchOptions) -> Setup:
    policy, tensors = subject.policy, subject.tensors
    manifest = policy.bundle.manifest
    data = (policy.bundle.folder / MANIFEST_NAME).read_bytes()
    return Setup(
        policyc=__version__,
        bundle=policy.bundle.folder.name,
        manifest_sha256=hashlib.sha256(data).hexdigest(),
        policy=manifest.policy,
        device=policy.device,
        hardware=device_facts(policy.device),
        host=_host(),
        precision=manifest.precision,
        options=dict(manifest.options),
        views=tensors["images"].shape[1],
        horizon=tensors[NOISE].shape[1],
        prompt_slots=tensors["token_mask"].shape[1],
        prompt_valid=int(tensors["token_mask"][0].sum()),
        batch=options.batch,
        warmup=options.warmup,
        taken_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _host() -> dict[str, str]:
    return {
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": platform.release(),
    }
