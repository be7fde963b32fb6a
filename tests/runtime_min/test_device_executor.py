from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.ir.types import DType, TensorType
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.driver_interface import KernelLaunch
from policyc.runtime_min.errors import (
    BundleError,
    DeviceError,
    DeviceMemoryError,
    IncompatibleDeviceError,
    PlanError,
)
from policyc.runtime_min.null_driver import NullDriver, null_facts
from policyc.runtime_min.signature import Signature
from tests.runtime_min.bundles import BUCKETS, expected, graph, replace_file, tensors
from tests.runtime_min.emulated_kernels import KERNELS

FACTS = null_facts(90, 12080)
LENGTH_TYPE = TensorType(DType.I32, (1,))
SIGNATURE = Signature.of(graph(1), BUCKETS)
ALLOCATING = {"allocate", "allocate_pinned", "load_module", "begin_capture", "create_event"}


def null_driver() -> NullDriver:
    return NullDriver(FACTS, KERNELS)


def names(driver: NullDriver) -> list[str]:
    return [call.name for call in driver.calls]


@pytest.fixture
def executor(bundle_folder: Path) -> Iterator[DeviceExecutor]:
    executor = DeviceExecutor.load(Bundle.open(bundle_folder), null_driver(), SIGNATURE)
    yield executor
    executor.close()


def driver_of(executor: DeviceExecutor) -> NullDriver:
    driver = executor.driver
    assert isinstance(driver, NullDriver)
    return driver


def run(executor: DeviceExecutor, batch: int, wanted: tuple[str, ...]) -> dict[str, object]:
    _, inputs = SIGNATURE.check_inputs(tensors(batch))
    return dict(executor.run(batch, inputs, wanted))


@pytest.mark.parametrize("batch", BUCKETS)
def test_values_of_emulated_kernels(executor: DeviceExecutor, batch: int) -> None:
    inputs = tensors(batch)
    wanted = ("doubled", "actions", "lang_emb")
    values = run(executor, batch, wanted)
    assert tuple(values) == wanted
    for name, array in values.items():
        got = np.asarray(array).astype(np.float32)
        np.testing.assert_allclose(got, expected(inputs)[name], rtol=1e-6, atol=1e-6)


def test_load_order(executor: DeviceExecutor) -> None:
    """case 63: every module and buffer is there before the first capture; each bucket runs once."""
    called = names(driver_of(executor))
    capture = called.index("begin_capture")
    assert max(i for i, name in enumerate(called) if name in ("allocate", "load_module")) < capture
    assert called.count("begin_capture") == called.count("upload_graph") == len(BUCKETS)
    assert called.count("launch_graph") == len(BUCKETS)


def test_launches_are_captured_in_plan_order_with_their_attributes(
    executor: DeviceExecutor,
) -> None:
    launches = [c.details[0] for c in driver_of(executor).calls if c.name == "launch"][:3]
    assert all(isinstance(launch, KernelLaunch) for launch in launches)
    described = [
        (launch.label.split(", ")[1], launch.pdl, launch.cluster)
        for launch in launches
        if isinstance(launch, KernelLaunch)
    ]
    assert described == [
        ("node lang_emb", False, 1),
        ("node hidden", True, 2),
        ("node actions", False, 1),
    ]


def test_an_inference_is_copies_one_graph_launch_copies_one_wait(executor: DeviceExecutor) -> None:
    """case 76: whatever the inputs, nothing is captured or allocated after load."""
    driver = driver_of(executor)
    for batch in (1, 2, 1):
        before = len(driver.calls)
        run(executor, batch, ("actions",))
        assert [call.name for call in driver.calls[before:]] == [
            *["copy_to_device"] * 5,
            "launch_graph",
            "copy_to_host",
            "synchronize",
        ]
    before = len(driver.calls)
    run(executor, 1, ("doubled", "lang_emb", "hidden"))
    assert not ALLOCATING & {call.name for call in driver.calls[before:]}


def test_close_frees_everything_once(executor: DeviceExecutor) -> None:
    """case 71"""
    driver = driver_of(executor)
    assert not driver.is_empty
    executor.close()
    assert driver.is_empty
    count = len(driver.calls)
    assert driver.calls[-1].name == "close"
    executor.close()
    assert len(driver.calls) == count


def test_results_are_the_callers_own(executor: DeviceExecutor) -> None:
    """case 64"""
    wanted = ("actions", "hidden", "doubled")
    first = run(executor, 1, wanted)
    kept = {name: np.array(array) for name, array in first.items()}
    _, inputs = SIGNATURE.check_inputs(tensors(1, seed=9))
    executor.run(1, inputs, wanted)
    for name, array in first.items():
        np.testing.assert_array_equal(np.asarray(array), kept[name])


def test_debug_poisons_before_every_run(bundle_folder: Path) -> None:
    silent = {**KERNELS, "small_linear": lambda driver, launch: None}
    driver = NullDriver(FACTS, silent)
    executor = DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE, debug=True)
    for _ in range(2):
        values = run(executor, 1, ("actions", "lang_emb"))
        assert np.isnan(np.asarray(values["actions"])).all(), "hidden was never written"
        assert np.isfinite(np.asarray(values["lang_emb"]).astype(np.float32)).all()
    executor.close()


def counting_folder(folder: Path) -> Path:
    """The bundle with an arena of counters."""
    text = json.loads((folder / f"plan/{FACTS.compute_capability}.json").read_text())
    for bucket in text["buckets"].values():
        bucket["arenas"]["counters"] = 256
    replace_file(folder, f"plan/{FACTS.compute_capability}.json", json.dumps(text).encode())
    return folder


def test_counters_start_at_zero_and_are_left_alone(bundle_folder: Path) -> None:
    """Not even debug touches them; only a failed run makes the next one begin at zero again."""
    driver = null_driver()
    bundle = Bundle.open(counting_folder(bundle_folder))
    executor = DeviceExecutor.load(bundle, driver, SIGNATURE, debug=True)
    address = executor._arenas["counters"]
    counters = driver.memory(address, 256)
    assert not counters.any()
    counters[:4] = 7
    run(executor, 1, ("actions",))
    assert counters[:4].tolist() == [7] * 4

    def fail(*_: object) -> None:
        raise DeviceError("copy failed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "copy_to_host", fail)
        with pytest.raises(DeviceError):
            run(executor, 1, ("actions",))
    run(executor, 1, ("actions",))
    assert not counters.any()
    executor.close()


class GuardedDriver(NullDriver):
    """Notes for each graph launch whether the device was held for this run alone."""

    def __init__(self) -> None:
        super().__init__(FACTS, KERNELS)
        self.held = False
        self.launched: list[bool] = []

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        assert not self.held
        self.held = True
        try:
            yield
        finally:
            self.held = False

    def launch_graph(self, graph: int) -> None:
        self.launched.append(self.held)
        super().launch_graph(graph)


def test_runs_hold_the_device_from_the_launch_to_the_end(bundle_folder: Path) -> None:
    """Case 68: kernels whose thread blocks wait for each other never meet another run."""
    driver = GuardedDriver()
    with closing(DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE)) as executor:
        run(executor, 1, ("actions",))
        executor.measure_replays(1, 3)
    assert len(driver.launched) >= len(BUCKETS) + 4 and all(driver.launched)
    assert not driver.held


def test_warm_inputs_are_harmless(bundle_folder: Path) -> None:
    seen: list[object] = []

    def embed(driver: NullDriver, launch: KernelLaunch) -> None:
        tokens = driver.memory(launch.pointers[0], 256)
        mask = driver.memory(launch.pointers[0] + 1024, 64)
        seen.append((tokens.any(), mask.all()))

    driver = NullDriver(FACTS, {"embed_rows": embed})
    DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE).close()
    assert seen == [(False, True)] * len(BUCKETS)


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        (null_facts(86, 12080), IncompatibleDeviceError),
        (null_facts(90, 12040), IncompatibleDeviceError),
    ],
)
def test_the_device_is_checked_before_anything(
    bundle_folder: Path, facts: object, error: type[Exception]
) -> None:
    """case 53, case 54"""
    driver = NullDriver(facts)  # type: ignore[arg-type]
    with pytest.raises(error):
        DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE)
    assert names(driver) == ["close"]


def test_memory_is_checked_before_anything_is_allocated(bundle_folder: Path) -> None:
    driver = NullDriver(FACTS, free_bytes=15000)
    with pytest.raises(DeviceMemoryError, match="needs 15360 bytes"):
        DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE)
    assert names(driver) == ["close"]


class FailingDriver(NullDriver):
    """Fails at the `count`-th call of a method."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(FACTS, KERNELS)
        self._name, self._count = name, count

    def _record(self, name: str, *details: object) -> None:
        super()._record(name, *details)
        if name == self._name:
            self._count -= 1
            if self._count == 0:
                raise DeviceError(f"{name} failed on purpose")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("load_module", 2),
        ("function", 1),
        ("allocate", 1),
        ("allocate", 3),
        ("allocate_pinned", 2),
        ("allocate_pinned", 4),
        ("copy_to_device", 1),
        ("encode_tensor_map", 1),
        ("upload_graph", 2),
        ("launch_graph", 1),
    ],
)
def test_a_load_that_fails_midway_frees_everything(
    bundle_folder: Path, name: str, count: int
) -> None:
    """case 71"""
    driver = FailingDriver(name, count)
    with pytest.raises(DeviceError, match="on purpose"):
        DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE)
    assert driver.is_empty
    assert driver.calls[-1].name == "close"


class CaptureFailingDriver(NullDriver):
    """Refuses the second launch of a capture."""

    def launch(self, launch: KernelLaunch) -> None:
        if "hidden" in launch.label:
            raise DeviceError(f"cuLaunchKernelEx ({launch.label}) failed")
        super().launch(launch)


def test_a_failed_capture_names_the_launch_and_is_ended(bundle_folder: Path) -> None:
    """case 63"""
    driver = CaptureFailingDriver(FACTS)
    with pytest.raises(DeviceError, match="stage denoise, node hidden, kernel small_linear"):
        DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE)
    assert "abort_capture" in names(driver)
    assert driver.is_empty


@pytest.mark.parametrize(
    ("part", "name", "message"),
    [
        ("inputs", "noise", r"input noise: f32\[1,3,3\]; the graph has f32\[1,3,4\]"),
        ("values", "actions", "lacks the outputs actions"),
    ],
)
def test_a_plan_that_does_not_fit_the_graph(
    bundle_folder: Path, part: str, name: str, message: str
) -> None:
    tree = json.loads((bundle_folder / "plan/90.json").read_text())
    if part == "inputs":
        tree["buckets"]["1"][part][name]["shape"] = [1, 3, 3]
    else:
        del tree["buckets"]["1"][part][name]
    replace_file(bundle_folder, "plan/90.json", json.dumps(tree).encode())
    with pytest.raises(PlanError, match=message):
        DeviceExecutor.load(Bundle.open(bundle_folder), null_driver(), SIGNATURE)


def test_a_report_that_needs_a_value_the_plan_dropped(bundle_folder: Path) -> None:
    tree = json.loads((bundle_folder / "plan/90.json").read_text())
    del tree["buckets"]["1"]["values"]["hidden"]
    replace_file(bundle_folder, "plan/90.json", json.dumps(tree).encode())
    executor = DeviceExecutor.load(Bundle.open(bundle_folder), null_driver(), SIGNATURE)
    with pytest.raises(BundleError, match="doubled need hidden, which the plan does not keep"):
        run(executor, 1, ("doubled",))
    executor.close()


def test_measured_replays(executor: DeviceExecutor) -> None:
    driver = driver_of(executor)
    before = names(driver).count("launch_graph")
    assert executor.measure_replays(1, 5) == (0.0,) * 5
    assert names(driver).count("launch_graph") == before + 5
    executor.close()
    assert driver.is_empty


def test_integrated_devices_load_too(bundle_folder: Path) -> None:
    """case 57: free memory is reported too low, what the system can reclaim counts."""
    driver = NullDriver(replace(FACTS, integrated=True), KERNELS)
    DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE).close()
    assert driver.is_empty


@pytest.fixture
def timed(bundle_folder: Path) -> Iterator[DeviceExecutor]:
    """An executor whose launches count as 5 us each."""
    driver = NullDriver(FACTS, KERNELS, launch_us=5.0)
    executor = DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE)
    yield executor
    executor.close()


def test_groups_cost_what_a_replay_without_them_saves(timed: DeviceExecutor) -> None:
    before = run(timed, 2, ("actions",))
    graphs = len(driver_of(timed)._live.graphs)
    costs = timed.measure_without(
        2,
        {
            "denoise": lambda launch: launch.stage == "denoise",
            "add": lambda launch: launch.kernel == "add",
            "nothing": lambda launch: False,
        },
        3,
    )
    assert costs.total_us == 15.0
    assert costs.groups_us == {"denoise": 10.0, "add": 5.0}
    assert len(driver_of(timed)._live.graphs) == graphs
    after = run(timed, 2, ("actions",))
    assert np.array_equal(after["actions"], before["actions"])  # type: ignore[arg-type]


def test_launches_that_write_integers_stay(bundle_folder: Path) -> None:
    driver = NullDriver(FACTS, KERNELS, launch_us=5.0)
    executor = DeviceExecutor.load(Bundle.open(bundle_folder), driver, SIGNATURE)
    counted = graph(1)
    prompt = counted.stages[0]
    embedding = replace(
        prompt.nodes[0], outputs=(replace(prompt.nodes[0].outputs[0], type=LENGTH_TYPE),)
    )
    stage = replace(prompt, nodes=(embedding, *prompt.nodes[1:]))
    executor._graphs[1] = counted.with_stages((stage, *counted.stages[1:]))
    costs = executor.measure_without(1, {"all": lambda launch: True}, 2)
    assert costs.groups_us == {"all": 10.0}
    executor.close()
