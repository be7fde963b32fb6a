from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler import bench
from policyc.compiler.bench import BenchOptions, bench_bundle, nearest_rank, timing_of
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.errors import InputError
from policyc.runtime_min.null_driver import NullDriver, null_facts
from policyc.runtime_min.policy import Policy
from policyc.runtime_min.processing import Processing
from policyc.runtime_min.signature import Signature
from tests.runtime_min.bundles import BUCKETS, graph, write_bundle
from tests.runtime_min.emulated_kernels import KERNELS

FEW = BenchOptions(device="cpu", calls=4, warmup=1)


@pytest.fixture
def bundle(tmp_path: Path, oracles: Path) -> Path:
    return write_bundle(tmp_path / "a.policy", oracles / "tokenizer" / "tokenizer.model")


def test_percentiles_are_measured_values() -> None:
    timing = timing_of("run", [float(value) for value in range(200, 0, -1)])
    assert (timing.n, timing.p50_us, timing.p95_us) == (200, 100.0, 190.0)
    assert (timing.p99_us, timing.max_us) == (198.0, 200.0)
    assert nearest_rank([7.0], 99) == 7.0


def test_a_receipt_has_what_is_needed_to_repeat_it(bundle: Path, tmp_path: Path) -> None:
    receipt = bench_bundle(bundle, FEW)
    setup = receipt.setup
    assert (setup.views, setup.horizon, setup.prompt_slots) == (2, 3, 64)
    assert 0 < setup.prompt_valid < 64 and setup.device == "cpu" and receipt.load is None
    assert all(timing.n == 4 and timing.max_us > 0 for timing in receipt.timings)
    bench.write_receipt(tmp_path / "r.json", receipt)
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored["setup"]["hardware"]["clocks_sm"] == "unknown"


def test_loading_is_timed(bundle: Path) -> None:
    load = bench_bundle(bundle, BenchOptions(device="cpu", calls=3, warmup=1, load=True)).load
    assert load is not None and min(load.policy_load_s, load.median_call_s) > 0


def test_warmup_is_not_counted() -> None:
    calls: list[int] = []
    times = bench.time_calls(lambda: calls.append(1), BenchOptions(device="cpu", calls=3, warmup=2))
    assert (len(times), len(calls)) == (3, 5)


def test_the_made_up_observation_is_seeded(bundle: Path) -> None:
    processing = Processing.load(Bundle.open(bundle).folder)
    first, again, other = (
        bench.made_up_observation(processing, seed)["images"] for seed in (0, 0, 1)
    )
    assert np.array_equal(first["front"], again["front"])  # type: ignore[index]
    assert not np.array_equal(first["front"], other["front"])  # type: ignore[index]


def test_facts_come_from_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVIDIA H100, 580.1, 1980 MHz, 2619 MHz, 1980 MHz, 700 W, Enabled\n"
    done = subprocess.CompletedProcess((), 0, stdout=line, stderr="")
    monkeypatch.setattr(bench.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(bench.subprocess, "run", lambda *args, **options: done)
    facts = bench.device_facts("cuda:0")
    assert (facts["driver_version"], facts["clocks_sm"]) == ("580.1", "1980 MHz")
    assert set(bench.device_facts("cpu").values()) == {"unknown"}
    done.returncode = 9
    assert set(bench.device_facts("cuda:0").values()) == {"unknown"}


def emulated(bundle: Path, device: str) -> Policy:
    """The small bundle on a null device whose launches take 4 us each."""
    opened, signature = Bundle.open(bundle), Signature.of(graph(1), BUCKETS)
    driver = NullDriver(null_facts(90, 12080), KERNELS, launch_us=4.0)
    executor = DeviceExecutor.load(opened, driver, signature)
    return Policy(opened, executor, signature, Processing.load(bundle), device)


def test_batches_are_timed_together(bundle: Path) -> None:
    receipt = bench_bundle(bundle, replace(FEW, batch=2))
    assert [timing.boundary for timing in receipt.timings] == ["run", "infer_batch"]
    assert receipt.setup.batch == 2 and receipt.setup.prompt_valid < 64
    with pytest.raises(InputError, match="3 given; .* batch 1, 2"):
        bench_bundle(bundle, replace(FEW, batch=3))


def test_launches_and_stages_are_measured_on_a_device(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.Policy, "load", lambda path, device: emulated(path, device))
    asked = replace(FEW, device="null", batch=2, prompt_valid=5, launches=True, roofline=True)
    receipt = bench_bundle(bundle, asked)
    assert receipt.setup.prompt_valid == 5
    assert [timing.boundary for timing in receipt.timings][0] == "replay"
    launches, stages = receipt.launches, receipt.roofline
    assert launches is not None and stages is not None
    assert (launches.target, launches.batch, launches.total_us) == ("h100", 2, 12.0)
    assert {group.name: group.microseconds for group in launches.groups} == dict.fromkeys(
        ("embed", "linear", "add"), 4.0
    )
    assert [point.microseconds for point in stages.stages] == [4.0, 8.0]
    other = bench_bundle(bundle, replace(asked, target="h20", launches=False))
    assert other.launches is None and other.roofline is not None
    assert other.roofline.target == "h20"


def test_launches_need_a_gpu(bundle: Path) -> None:
    with pytest.raises(InputError, match="measured on a GPU, this is cpu"):
        bench_bundle(bundle, replace(FEW, launches=True))
