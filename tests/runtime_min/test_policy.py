from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import policyc
from policyc.runtime_min import policy as policy_module
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.errors import (
    BundleError,
    DeviceError,
    IncompatibleDeviceError,
    InputError,
    NonFiniteActions,
    ObservationError,
    PolicyClosed,
)
from policyc.runtime_min.null_driver import NullDriver, null_facts
from policyc.runtime_min.policy import Policy
from policyc.runtime_min.processing import Processing
from policyc.runtime_min.signature import Signature
from tests.runtime_min.bundles import (
    BUCKETS,
    HORIZON,
    ROBOT_WIDTH,
    WIDTH,
    expected,
    graph,
    observation,
    replace_file,
    tensors,
)
from tests.runtime_min.emulated_kernels import KERNELS

NOISE = np.random.default_rng(5).standard_normal((HORIZON, WIDTH)).astype(np.float32)


@pytest.fixture
def policy(robot_bundle_folder: Path) -> Iterator[Policy]:
    with Policy.load(robot_bundle_folder, "cpu") as policy:
        yield policy


def emulated(folder: Path) -> Policy:
    """A policy on the null driver, with the kernels of the small bundle in Python."""
    bundle, signature = Bundle.open(folder), Signature.of(graph(1), BUCKETS)
    driver = NullDriver(null_facts(90, 12080), KERNELS)
    processing = Processing.load(folder) if bundle.has("processing.json") else None
    executor = DeviceExecutor.load(bundle, driver, signature)
    return Policy(bundle, executor, signature, processing, "null")


def test_the_public_name() -> None:
    assert policyc.Policy is Policy


def test_actions_in_robot_units(policy: Policy) -> None:
    actions = policy.infer(observation(), noise=NOISE)
    assert actions.dtype == np.float64
    assert actions.shape == (HORIZON, ROBOT_WIDTH)
    network = expected({**tensors(), "noise": NOISE[None]})["actions"][0]
    np.testing.assert_allclose(actions, network[:, :ROBOT_WIDTH], rtol=1e-6)


def test_both_executors_give_the_same_actions(robot_bundle_folder: Path, policy: Policy) -> None:
    with emulated(robot_bundle_folder) as other:
        np.testing.assert_allclose(
            other.infer(observation(), seed=3), policy.infer(observation(), seed=3), rtol=1e-6
        )


def test_noise_and_seed(policy: Policy) -> None:
    """case 67"""
    seeded = policy.infer(observation(), seed=0)
    np.testing.assert_array_equal(seeded, policy.infer(observation(), seed=0))
    shape = (1, HORIZON, WIDTH)
    documented = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(seeded, policy.infer(observation(), noise=documented))
    assert (policy.infer(observation()) != policy.infer(observation())).any()
    double = NOISE.astype(np.float64)
    np.testing.assert_array_equal(
        policy.infer(observation(), noise=double), policy.infer(observation(), noise=NOISE)
    )


@pytest.mark.parametrize(
    ("noise", "seed", "message"),
    [
        (np.zeros((2, HORIZON, WIDTH)), None, r"expected shape \(1, 3, 4\) or \(3, 4\), got"),
        (np.zeros((HORIZON, WIDTH + 1)), None, "expected shape"),
        (np.full((HORIZON, WIDTH), np.nan), None, "not finite"),
        (np.full((HORIZON, WIDTH), 1e300), None, "not finite as float32"),
        (np.full((HORIZON, WIDTH), "a"), None, "expected floating point"),
        (NOISE, 1, "both given"),
        (None, -1, "expected 0 or more"),
        (None, 1.5, "expected an integer, got float"),
        (None, True, "expected an integer, got bool"),
    ],
)
def test_wrong_noise_is_refused(policy: Policy, noise: object, seed: object, message: str) -> None:
    """case 67"""
    with pytest.raises(InputError, match=message):
        policy.infer(observation(), noise=noise, seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [0, 1, 7, 33])
def test_a_state_of_another_width_is_refused(policy: Policy, width: int) -> None:
    """case 24"""
    with pytest.raises(ObservationError, match=rf"state: expected 2 numbers, got .*{width}"):
        policy.infer({**observation(), "state": np.zeros(width)}, seed=0)


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_no_state_outlives_a_call(robot_bundle_folder: Path, device: str) -> None:
    """case 66: equal after other prompts, a rejected call, reset and many calls."""
    load: Callable[[], Policy] = {
        "cpu": lambda: Policy.load(robot_bundle_folder, "cpu"),
        "null": lambda: emulated(robot_bundle_folder),
    }[device]
    with load() as policy:
        first = policy.infer(observation(), noise=NOISE)
        kept = first.copy()
        policy.infer({**observation(), "prompt": "fold the shirt"}, seed=1)
        with pytest.raises(ObservationError):
            policy.infer({**observation(), "prompt": 7}, seed=1)
        with pytest.raises(InputError):
            policy.run({**tensors(), "noise": np.full((1, 3, 4), np.nan, np.float32)})
        policy.reset()
        for _ in range(20):
            np.testing.assert_array_equal(policy.infer(observation(), noise=NOISE), kept)
        np.testing.assert_array_equal(first, kept, "case 64: results stay the caller's own")


def test_run_gives_named_values_as_plain_floats(policy: Policy) -> None:
    values = policy.run(tensors(2), outputs=("lang_emb", "doubled"))
    assert {array.dtype for array in values.values()} == {np.dtype(np.float32)}
    for name, array in values.items():
        got = np.asarray(array, np.float32)
        np.testing.assert_allclose(got, expected(tensors(2))[name], rtol=1e-6)


def test_inputs_are_not_written_to(policy: Policy) -> None:
    given = tensors()
    for array in given.values():
        array.flags.writeable = False
    policy.run(given)["actions"][:] = 0


@pytest.mark.parametrize("load", [Policy.load, lambda folder, _: emulated(folder)])
def test_threads_take_turns(bundle_folder: Path, load: Callable[[Path, str], Policy]) -> None:
    """case 68"""
    policy = load(bundle_folder, "cpu")
    wrong: list[int] = []

    def work(seed: int) -> None:
        given = tensors(1 + seed % 2, seed)
        for _ in range(20):
            got = policy.run(given)["actions"]
            if not np.allclose(got, expected(given)["actions"], rtol=1e-6, atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    policy.close()
    assert wrong == []


def test_close_waits_for_a_running_call(bundle_folder: Path) -> None:
    """case 68"""
    entered, leave = threading.Event(), threading.Event()
    policy = emulated(bundle_folder)
    run = policy.executor.run

    def slow(*arguments: object) -> object:
        entered.set()
        assert leave.wait(10)
        return run(*arguments)  # type: ignore[arg-type]

    policy.executor.run = slow  # type: ignore[method-assign,assignment]
    results: list[object] = []
    call = threading.Thread(target=lambda: results.append(policy.run(tensors())))
    closing = threading.Thread(target=policy.close)
    call.start()
    assert entered.wait(10)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    leave.set()
    call.join(10)
    closing.join(10)
    assert len(results) == 1
    with pytest.raises(PolicyClosed):
        policy.run(tensors())


def test_everything_after_close_raises(policy: Policy) -> None:
    """case 71"""
    policy.close()
    policy.close()
    for call in (
        lambda: policy.infer(observation(), seed=0),
        lambda: policy.run(tensors()),
        policy.reset,
    ):
        with pytest.raises(PolicyClosed, match=r"robot\.policy: the policy is closed"):
            call()


def test_a_forgotten_policy_is_released(bundle_folder: Path) -> None:
    """case 71"""
    policy = emulated(bundle_folder)
    executor = policy.executor
    assert isinstance(executor, DeviceExecutor)
    driver = executor.driver
    assert isinstance(driver, NullDriver)
    del policy
    gc.collect()
    assert driver.is_empty


def test_a_null_device_never_returns_actions(robot_bundle_folder: Path) -> None:
    with Policy.load(robot_bundle_folder, "null") as policy:
        assert policy.device == "null"
        with pytest.raises(NonFiniteActions, match=r"actions\[0, 0, 0\] is nan on device null"):
            policy.infer(observation(), seed=0)


def test_overflow_raises_instead_of_returning(policy: Policy) -> None:
    huge = np.full((1, HORIZON, WIDTH), 3e38, np.float32)
    with pytest.raises(NonFiniteActions, match="do not move the robot"), np.errstate(all="ignore"):
        policy.run({**tensors(), "noise": huge})


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:-1", "cuda:x", ""])
def test_unknown_devices_list_the_known(bundle_folder: Path, device: str) -> None:
    with pytest.raises(InputError, match="expected 'auto', 'cpu', 'cuda:N'"):
        Policy.load(bundle_folder, device)


def test_auto_is_the_cpu_only_where_there_is_no_driver(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def open_device(ordinal: int) -> NullDriver:
        opened.append(ordinal)
        return NullDriver(null_facts(86, 13000))

    monkeypatch.setattr(policy_module, "CudaDriver", open_device)
    monkeypatch.setattr(policy_module, "count_devices", lambda: 0)
    with Policy.load(bundle_folder) as policy:
        assert policy.device == "cpu"
    monkeypatch.setattr(policy_module, "count_devices", lambda: 1)
    with pytest.raises(IncompatibleDeviceError):  # case 53: no silent fall back to the CPU
        Policy.load(bundle_folder)
    assert opened == [0]


def test_a_named_device_is_never_replaced(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 58"""
    monkeypatch.setattr("policyc.runtime_min.driver.count_devices", lambda: 0)
    with pytest.raises(DeviceError, match="cuda:0 was asked for; .* offers 0 device"):
        Policy.load(bundle_folder, "cuda:0")


def test_info_has_plain_facts(policy: Policy) -> None:
    info = policy.info
    json.dumps(info)
    assert (info["policy"], info["device"], info["precision"]) == ("toy", "cpu", "f32")
    assert info["targets"] == {"h100": "9.0", "h20": "9.0"}
    assert info["outputs"] == ["actions", "lang_emb", "hidden", "doubled"]


def test_a_bundle_without_processing_runs_on_tensors_only(bundle_folder: Path) -> None:
    with Policy.load(bundle_folder, "cpu") as policy:
        policy.run(tensors())
        with pytest.raises(BundleError, match=r"has no processing\.json; call run\(\)"):
            policy.infer(observation())


def test_a_bundle_for_no_gpu(bundle_folder: Path) -> None:
    tree = json.loads((bundle_folder / "manifest.json").read_text())
    tree["targets"] = []
    (bundle_folder / "manifest.json").write_text(json.dumps(tree))
    Policy.load(bundle_folder, "cpu").close()
    with pytest.raises(IncompatibleDeviceError, match="compiled for no GPU"):
        Policy.load(bundle_folder, "null")


def test_damaged_processing_stops_the_load_before_the_device(
    robot_bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 71"""
    monkeypatch.setattr(policy_module, "CudaDriver", lambda ordinal: pytest.fail("device opened"))
    replace_file(robot_bundle_folder, "processing.json", b"{}")
    with pytest.raises(BundleError, match="processing"):
        Policy.load(robot_bundle_folder, "cuda:0")


def two_observations() -> list[dict[str, object]]:
    first, second = observation(), observation()
    return [first, {**second, "prompt": "open the drawer"}]


def test_a_batch_gives_what_single_calls_give(policy: Policy) -> None:
    given = two_observations()
    chunks = policy.infer_batch(given, seeds=[3, 4])
    assert chunks.shape == (2, HORIZON, ROBOT_WIDTH) and chunks.dtype == np.float64
    for chunk, item, seed in zip(chunks, given, (3, 4), strict=True):
        np.testing.assert_allclose(chunk, policy.infer(item, seed=seed), rtol=1e-6)
    noise = np.stack([NOISE, 2 * NOISE])
    with_noise = policy.infer_batch(given, noise=noise)
    np.testing.assert_allclose(with_noise[1], policy.infer(given[1], 2 * NOISE), rtol=1e-6)


def test_a_partly_filled_batch_is_padded_with_empty_samples(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = policy.infer(observation(), NOISE)
    policy.signature = replace(policy.signature, buckets=(2,))
    seen: list[Mapping[str, np.ndarray]] = []
    run = policy.executor.run

    def record(batch: int, inputs: Mapping[str, np.ndarray], wanted: Sequence[str]) -> object:
        seen.append(inputs)
        return run(batch, inputs, wanted)

    monkeypatch.setattr(policy.executor, "run", record)
    chunks = policy.infer_batch([observation()], noise=NOISE[None])
    assert chunks.shape == (1, HORIZON, ROBOT_WIDTH)
    np.testing.assert_allclose(chunks[0], single, rtol=1e-6)
    (inputs,) = seen
    assert not any(array[1].any() for array in inputs.values())
    assert inputs["token_mask"][0].any() and inputs["image_mask"][0].all()


def test_values_of_empty_samples_are_nobodys(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.signature = replace(policy.signature, buckets=(2,))
    actions = np.zeros((2, HORIZON, WIDTH), np.float32)
    actions[1] = np.nan
    monkeypatch.setattr(policy.executor, "run", lambda *_: {"actions": actions})
    assert np.isfinite(policy.infer_batch([observation()], noise=NOISE[None])).all()
    with pytest.raises(NonFiniteActions, match=r"actions\[1, 0, 0\]"):
        policy.infer_batch(two_observations(), seeds=[1, 2])


def test_batches_that_do_not_fit_are_refused(policy: Policy) -> None:
    with pytest.raises(InputError, match="none given"):
        policy.infer_batch([])
    with pytest.raises(InputError, match="3 given; this bundle was compiled for batch 1, 2"):
        policy.infer_batch([observation()] * 3)
    with pytest.raises(InputError, match="seeds: expected one for each of 2 observations"):
        policy.infer_batch(two_observations(), seeds=[1])
    with pytest.raises(InputError, match="noise: expected one for each of 2"):
        policy.infer_batch(two_observations(), noise=NOISE)
    with pytest.raises(InputError, match="both given"):
        policy.infer_batch(two_observations(), noise=np.stack([NOISE] * 2), seeds=[1, 2])
    broken = [observation(), {**observation(), "state": "no numbers"}]
    with pytest.raises(InputError, match=r"observations\[1\]: .*state"):
        policy.infer_batch(broken, seeds=[1, 2])
    with pytest.raises(InputError, match="sample 1 has no valid prompt token"):
        masked = tensors(2)
        masked["token_mask"][1] = False
        policy.run(masked)
