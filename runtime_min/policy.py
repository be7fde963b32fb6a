"""`Policy`: a loaded bundle. From an observation to actions in robot units."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policyc.compiler.ir.types import Array, DType
from policyc.runtime_min.bundle import PROCESSING_NAME, Bundle, DigestCheck
from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.driver import CudaDriver, count_devices
from policyc.runtime_min.errors import (
    BundleError,
    IncompatibleDeviceError,
    InputError,
    NonFiniteActions,
    PolicyClosed,
)
from policyc.runtime_min.host_executor import HostExecutor
from policyc.runtime_min.manifest import capability_text
from policyc.runtime_min.null_driver import NullDriver, null_facts
from policyc.runtime_min.processing import Processing
from policyc.runtime_min.signature import Signature

ACTIONS = "actions"
NOISE = "noise"
_DEVICES = "'auto', 'cpu', 'cuda:N' (N from 0) or 'null'"
_CUDA = re.compile(r"cuda:([0-9]{1,3})")


class Executor(Protocol):
    """What runs the network: `DeviceExecutor` or `HostExecutor`."""

    def run(
        self, batch: int, inputs: Mapping[str, Array], wanted: Sequence[str]
    ) -> dict[str, Array]: ...

    def close(self) -> None: ...


class Policy:
    """A loaded policy. Calls from several threads are safe and take turns.

    Every result is an array of the caller's own. A call returns computed actions or raises.
    """

    def __init__(
        self,
        bundle: Bundle,
        executor: Executor,
        signature: Signature,
        processing: Processing | None,
        device: str,
    ) -> None:
        """Use `load`. Takes over `executor`."""
        self.bundle = bundle
        self.device = device
        self.signature = signature
        self.executor = executor
        self._processing = processing
        self._lock = threading.Lock()
        self._closed = False
        # Runs once: by close, when the last reference goes, or when the process ends.
        self._release = weakref.finalize(self, executor.close)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        *,
        verify: DigestCheck = "sizes",
        debug: bool = False,
    ) -> Policy:
        """Load a bundle and make it ready to run; the first call is as fast as the others.

        Args:
            path: the `NAME.policy` folder; nothing is written to it.
            device: "cuda:0" a GPU, "cpu" numpy, "null" records the calls of a GPU and computes
                nothing, "auto" takes cuda:0 where the machine has a usable CUDA driver and the CPU
                where it has none. `Policy.device` says which. There is no fallback: a GPU that the
                bundle does not fit is an error.
            verify: "sizes" checks sizes and the digests of small files, "all" every digest.
            debug: fill device memory with NaN before every run.

        Raises:
            BundleError: the bundle is damaged or of another format version.
            DeviceError: no such device, too little memory, or a driver call failed.
        """
        bundle = Bundle.open(path, verify)
        buckets = bundle.manifest.batch_buckets
        signature = Signature.of(bundle.graph(buckets[0]), buckets)
        processing = Processing.load(bundle.folder) if bundle.has(PROCESSING_NAME) else None
        resolved = _resolve(device)
        executor: Executor
        if resolved == "cpu":
            executor = HostExecutor(bundle)
        else:
            driver = _null_driver(bundle) if resolved == "null" else CudaDriver(_ordinal(resolved))
            executor = DeviceExecutor.load(bundle, driver, signature, debug)
        return cls(bundle, executor, signature, processing, resolved)

    def __enter__(self) -> Policy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def info(self) -> dict[str, object]:
        """Facts of the bundle and the device, as plain values."""
        manifest = self.bundle.manifest
        return {
            "path": str(self.bundle.folder),
            "format_version": manifest.version,
            "policy": manifest.policy,
            "precision": manifest.precision,
            "device": self.device,
            "targets": {
                target.name: capability_text(target.compute_capability)
                for target in manifest.targets
            },
            "options": dict(manifest.options),
            "inputs": {name: str(kind) for name, kind in self.signature.inputs.items()},
            "outputs": [*self.signature.outputs, *self.signature.named],
            "provenance": dict(manifest.provenance),
        }

    def infer(
        self,
        observation: Mapping[str, Any],
        noise: ArrayLike | None = None,
        seed: int | None = None,
    ) -> NDArray[np.float64]:
        """One action chunk, in robot units.

        Args:
            observation: as the bundle's processing description says (cameras, state, prompt).
            noise: start of the solver, [horizon, action width] or [1, horizon, action width];
                converted to float32.
            seed: draws the noise as `numpy.random.default_rng(seed).standard_normal(shape)`,
                rounded to float32. With neither noise nor seed it is drawn from fresh entropy.

        Returns:
            float64 [horizon, robot width].

        Raises:
            InputError: the observation, noise or seed does not fit.
            NonFiniteActions: the policy computed NaN or infinity.
            PolicyClosed: after `close`.
        """
        self._check_open()
        processing = self._require_processing()
        tensors: dict[str, Array] = dict(processing.prepare(observation))
        if NOISE in self.signature.inputs:
            tensors[NOISE] = self._noise(noise, seed)
        elif noise is not None or seed is not None:
            raise InputError("noise, seed: this policy starts from no noise; leave both out.")
        actions = self.run(tensors)[ACTIONS]
        return processing.finish(actions[0].astype(np.float32, copy=False), observation)

    def infer_batch(
        self,
        observations: Sequence[Mapping[str, Any]],
        noise: ArrayLike | None = None,
        seeds: Sequence[int] | None = None,
    ) -> NDArray[np.float64]:
        """One action chunk for each observation, computed together.

        Runs the smallest compiled batch size that holds all observations; the slots left over are
        empty samples (every mask false). Each chunk is the one that `infer` gives up to rounding:
        batch sizes have kernels of their own, so equal bits are promised within one size only.

        Args:
            observations: one or more, each as `infer` takes it.
            noise: [observations, horizon, action width], as in `infer`.
            seeds: one for each observation, as in `infer`.

        Returns:
            float64 [observations, horizon, robot width].

        Raises:
            InputError: none or too many observations, or one that does not fit (it is named).
            NonFiniteActions, PolicyClosed: as `infer`.
        """
        self._check_open()
        processing = self._require_processing()
        count = len(observations)
        batch = self.signature.bucket_for(count)
        prepared = [_prepare(processing, item, index) for index, item in enumerate(observations)]
        tensors = {name: np.concatenate([item[name] for item in prepared]) for name in prepared[0]}
        if NOISE in self.signature.inputs:
            tensors[NOISE] = self._batch_noise(count, noise, seeds)
        elif noise is not None or seeds is not None:
            raise InputError("noise, seeds: this policy starts from no noise; leave both out.")
        padded = {name: _padded(array, batch) for name, array in tensors.items()}
        values = self._compute(padded, (ACTIONS,), count)[ACTIONS][:count]
        actions = self._finite({ACTIONS: values})[ACTIONS].astype(np.float32, copy=False)
        pairs = zip(actions, observations, strict=True)
        return np.stack([processing.finish(chunk, observation) for chunk, observation in pairs])

    def run(
        self, tensors: Mapping[str, Array], outputs: Sequence[str] = (ACTIONS,)
    ) -> dict[str, Array]:
        """The network alone, on tensors with a leading batch axis.

        Args:
            tensors: every input of `Policy.info["inputs"]` that the network reads; `state` is
                accepted by every policy. Integers may have any integer type, floats and masks
                exactly theirs.
            outputs: names from `Policy.info["outputs"]`.

        Returns:
            Arrays by name; bfloat16 values as float32.

        Raises:
            InputError: a name, shape, type or value does not fit; nothing was run.
            NonFiniteActions: a result of the inference is NaN or infinite.
            PolicyClosed: after `close`.
        """
        return self._finite(self.run_for_comparison(tensors, outputs))

    def run_for_comparison(
        self, tensors: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        """As `run`, but results that are not finite are returned: for golden vectors, not for
        robots.
        """
        return self._compute(tensors, outputs, None)

    def reset(self) -> None:
        """Forget the episode. No policy keeps any state between calls today, so nothing is lost."""
        self._check_open()

    def close(self) -> None:
        """Wait for a running call, then release everything; idempotent.

        A policy that nobody refers to any more is released as well, only later.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise PolicyClosed(f"{self.bundle.folder}: the policy is closed; load it again.")

    def _require_processing(self) -> Processing:
        if self._processing is None:
            raise BundleError(
                f"{self.bundle.folder}: has no {PROCESSING_NAME}; call run() with the network's "
                "tensors."
            )
        return self._processing

    def _compute(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], real: int | None
    ) -> dict[str, Array]:
        """Run the network; samples from `real` on are empty."""
        self._check_open()
        wanted = self.signature.check_outputs(outputs)
        batch, inputs = self.signature.check_inputs(tensors, real)
        with self._lock:
            self._check_open()
            values = self.executor.run(batch, inputs, wanted)
        return {name: _presentable(array) for name, array in values.items()}

    def _finite(self, results: dict[str, Array]) -> dict[str, Array]:
        """The results; raises NonFiniteActions if one of the inference is not finite."""
        for name in self.signature.outputs:
            if name in results and not np.isfinite(results[name]).all():
                index = tuple(int(axis[0]) for axis in np.nonzero(~np.isfinite(results[name])))
                raise NonFiniteActions(
                    f"{name}{list(index)} is {results[name][index]} on device {self.device}. "
                    "Nothing is returned; do not move the robot. `policyc verify` tells whether "
                    "the bundle is sound on this machine."
                )
        return results

    def _batch_noise(
        self, count: int, noise: ArrayLike | None, seeds: Sequence[int] | None
    ) -> NDArray[np.float32]:
        """Noise of `count` samples; each is what `_noise` gives for it alone."""
        for name, given in (("noise", noise), ("seeds", seeds)):
            if given is not None and (np.ndim(given) == 0 or len(np.asarray(given)) != count):
                raise InputError(f"{name}: expected one for each of {count} observations.")
        noises = [None] * count if noise is None else list(np.asarray(noise))
        drawn = [None] * count if seeds is None else list(seeds)
        return np.concatenate(
            [self._noise(item, seed) for item, seed in zip(noises, drawn, strict=True)]
        )

    def _noise(self, noise: ArrayLike | None, seed: int | None) -> NDArray[np.float32]:
        shape = self.signature.input_type(NOISE, 1).shape
        if noise is not None and seed is not None:
            raise InputError("noise, seed: both given; give one of them.")
        if noise is None:
            if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
                raise InputError(f"seed: expected an integer, got {type(seed).__name__}.")
            if seed is not None and seed < 0:
                raise InputError(f"seed: expected 0 or more, got {seed}.")
            return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        given = np.asarray(noise)
        if given.shape not in (shape, shape[1:]):
            raise InputError(f"noise: expected shape {shape} or {shape[1:]}, got {given.shape}.")
        if not (np.issubdtype(given.dtype, np.floating) or np.issubdtype(given.dtype, np.integer)):
            raise InputError(f"noise: expected floating point, got {given.dtype}.")
        with np.errstate(over="ignore"):
            rounded = given.astype(np.float32).reshape(shape)
        if not np.isfinite(rounded).all():
            raise InputError("noise: has values that are not finite as float32.")
        return rounded


def _prepare(
    processing: Processing, observation: Mapping[str, Any], index: int
) -> dict[str, Array]:
    try:
        return dict(processing.prepare(observation))
    except InputError as error:
        raise InputError(f"observations[{index}]: {error}") from error


def _padded(array: Array, batch: int) -> Array:
    """The array with empty samples (zeros, masks false) appended up to `batch`."""
    empty = np.zeros((batch - array.shape[0], *array.shape[1:]), array.dtype)
    return np.concatenate([array, empty])


def _presentable(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == DType.BF16.numpy else array


def _resolve(device: str) -> str:
    if device == "auto":
        return "cuda:0" if count_devices() else "cpu"
    if device in ("cpu", "null") or _CUDA.fullmatch(device):
        return device
    raise InputError(f"device: expected {_DEVICES}, got {device!r}.")


def _ordinal(device: str) -> int:
    return int(device.removeprefix("cuda:"))


def _null_driver(bundle: Bundle) -> NullDriver:
    """A null device of the first target's kind."""
    if not bundle.manifest.targets:
        raise IncompatibleDeviceError(
            f"{bundle.folder}: compiled for no GPU, so there is no plan to record; pass "
            "device='cpu'."
        )
    target = bundle.manifest.targets[0]
    return NullDriver(null_facts(target.compute_capability, target.minimum_driver))
