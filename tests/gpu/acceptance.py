"""Builds, checks and times pi0.5 on a GPU in one call; prints a table last.

    python tests/gpu/acceptance.py --out $OUT --oracles .carry/oracles [--carried .carry/full]

Runs on a machine with torch and triton (kernels are compiled there), except for what `--carried`
holds: graphs, plans and kernels of the full-size synthetic checkpoint that were compiled on a
machine without a GPU; its weights are made here from the same seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from policyc.compiler.bench import BenchOptions, bench_bundle, write_receipt
from policyc.compiler.compile import compile_checkpoint
from policyc.compiler.events import Event
from policyc.compiler.ir.tensor_file import TensorFile
from policyc.compiler.options import CompileOptions, Golden, Precision
from policyc.compiler.synth import SynthesisOptions, synthesise
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.golden import check_golden, compare, read_golden
from policyc.runtime_min.policy import Policy

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINED = REPOSITORY / "artifacts" / "policies" / "metaworld_pi05_small"
SEED = 7
UNSTABLE = 1e-4
"""Where the official float32 run is this far from float64 (1000 times its usual error), the solver
sits between two branches, and no bfloat16 arithmetic decides which; reported, not judged."""
BF16_LIMITS = {  # twice the official bf16 code's error: (largest, relative L2)
    "image_emb": (9.2e-2, 1.62e-2),
    "k": (2.8e-1, 3.6e-2),
    "v": (2.2e-1, 3.4e-2),
    "v_t": (2.8e-1, 3.6e-2),
    "actions": (1.16e-1, 1.68e-2),
}


class Table:
    """Rows of (check, result, verdict), printed last and written as JSON."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.rows: list[tuple[str, str, str]] = []

    def add(self, check: str, result: str, passed: bool | None = None) -> None:
        verdict = "" if passed is None else ("ok" if passed else "FAIL")
        self.rows.append((check, result, verdict))
        print(f"[{check}] {result} {verdict}", flush=True)
        (self._out / "acceptance.json").write_text(json.dumps(self.rows, indent=1))

    def print(self) -> None:
        print("\n" + "-" * 100)
        for check, result, verdict in self.rows:
            print(f"{check:44.44s} {result:46.46s} {verdict}")


def quiet(event: Event) -> None:
    if event.kind in ("golden", "write", "read", "kernels", "trace") and event.seconds:
        print(f"    {event.kind} {event.seconds:.1f} s {event.text[:90]}", flush=True)


def errors(ours: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Largest error and relative L2, in float64."""
    difference = ours.astype(np.float64) - reference.astype(np.float64)
    return float(np.abs(difference).max()), float(
        np.linalg.norm(difference) / np.linalg.norm(reference.astype(np.float64))
    )


def compile_here(
    checkpoint: Path, output: Path, target: str, prompt_slots: int | None, steps: int | None = None
) -> None:
    options = CompileOptions(
        checkpoint=checkpoint,
        output=output,
        targets=(target,),
        precision=Precision.BF16,
        prompt_slots=prompt_slots,
        steps=steps,
        golden=Golden.FLOAT32,
    )
    compile_checkpoint(options, quiet)


def check_fixture(name: str, folder: Path, work: Path, target: str, table: Table) -> None:
    """All cases of an oracle fixture against float64, within twice the official bf16 error."""
    meta = json.loads((folder / "meta.json").read_text())
    data = TensorFile.open(folder / "io.safetensors")
    layout = "lerobot" if (folder / "lerobot").is_dir() else "openpi"
    for case in meta["cases"]:
        label, steps = case["name"], case["num_steps"]
        bundle = work / f"{name}_{steps}.policy"
        if not bundle.exists():
            compile_here(folder / layout, bundle, target, meta["dims"]["max_token_len"], steps)
        with Policy.load(bundle, device="cuda:0", debug=True) as policy:
            tensors = fixture_inputs(data, label, layout)
            wanted = ("actions", "image_emb", "v_t", "k.0", "v.0", "k.1", "v.1")
            got = policy.run(tensors, wanted)
            compare_fixture(f"{name}/{label}", got, data, label, layout, table)
            again = policy.run(tensors)
            same = np.array_equal(again["actions"], got["actions"])
            table.add(f"{name}/{label} twice", "same bits" if same else "differ", same)


def fixture_inputs(data: TensorFile, case: str, layout: str) -> dict[str, np.ndarray]:
    pictures = data.read(f"{case}/in/images_u8").astype(np.float32) / np.float32(255)
    images = (pictures * np.float32(2) - np.float32(1)).transpose(0, 3, 1, 2)
    mask = data.read(f"{case}/in/{'camera_present' if layout == 'lerobot' else 'image_mask'}")
    if layout == "lerobot":  # present cameras first, then filler
        order = np.argsort(~mask, kind="stable")
        images, mask = images[order], mask[order]
        images = np.where(mask[:, None, None, None], images, np.float32(-1))
    return {
        "images": np.ascontiguousarray(images)[None],
        "image_mask": mask[None],
        "tokens": data.read(f"{case}/in/tokens").astype(np.int32)[None],
        "token_mask": data.read(f"{case}/in/token_mask")[None],
        "noise": data.read(f"{case}/in/noise")[None],
    }


def compare_fixture(
    label: str, got: dict[str, np.ndarray], data: TensorFile, case: str, layout: str, table: Table
) -> None:
    source = f"{case}/ref64/" if layout == "openpi" else f"{case}/out_float32/"
    names = set(data.names)
    for name, ours in got.items():
        key = source + name if source + name in names else f"{case}/out/{name}"
        if key not in names:
            continue
        reference, ours = data.read(key), ours[0]
        if name[:2] in ("k.", "v."):
            valid = data.read(f"{case}/out/prefix_pad_mask") if layout == "openpi" else None
            if valid is None:
                continue
            reference, ours = reference[:, valid], ours[:, valid]
        largest, relative = errors(ours, reference)
        limit = BF16_LIMITS[name.split(".")[0]]
        table.add(
            f"{label} {name}",
            f"max {largest:.2e} rel {relative:.2e} (limit {limit[0]:.1e} {limit[1]:.1e})",
            largest <= limit[0] and relative <= limit[1],
        )


def check_trained(work: Path, target: str, table: Table) -> None:
    """40 recorded observations of the trained policy, raw pictures to robot units."""
    bundle = work / "trained.policy"
    compile_here(TRAINED / "openpi", bundle, target, 48)
    demos = np.load(TRAINED / "demos.npz", allow_pickle=False)
    ours = []
    with Policy.load(bundle, device="cuda:0") as policy:
        for index in range(len(demos["state"])):
            front, wrist = demos["images"][index]
            observation = {
                "images": {"base_0_rgb": front, "left_wrist_0_rgb": wrist},
                "state": demos["state"][index],
                "prompt": str(demos["prompt"][index]),
            }
            ours.append(policy.infer(observation, noise=demos["noise"][index]))
        golden = check_golden(policy)
    table.add("trained policy golden", str(golden.first_failure or "all within"), golden.passed)
    results, reference = np.stack(ours), demos["robot_ref64"]
    unstable = np.abs(demos["robot_f32"] - reference).max(axis=(1, 2)) > UNSTABLE
    largest, relative = errors(results[~unstable], reference[~unstable])
    passed = largest <= 2 * 4.5e-2 and relative <= 2 * 2.3e-3
    count = int((~unstable).sum())
    table.add(
        f"trained policy, {count} observations", f"max {largest:.2e} rel {relative:.2e}", passed
    )
    for index in np.flatnonzero(unstable):
        text = f"max {np.abs(results[index] - reference[index]).max():.2e}"
        table.add(f"trained policy, unstable observation {index}", text)


def check_full(work: Path, target: str, table: Table, args: argparse.Namespace) -> None:
    """The full-size synthetic checkpoint: compile, load, golden, lengths, repeat, time."""
    checkpoint, bundle = work / "full", work / "full.policy"
    start = time.perf_counter()
    options = SynthesisOptions(layout="openpi", size="full", seed=SEED, output=checkpoint)
    synthesise(options, quiet)
    table.add("synth full size", f"{time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    compile_here(checkpoint, bundle, target, 200)
    table.add("compile full size", f"{time.perf_counter() - start:.1f} s")
    check_full_bundle("built here", bundle, table, args)
    if args.carried is not None:
        for weights in bundle.glob("weights-*.safetensors"):
            shutil.copy(weights, args.carried / weights.name)
        check_carried(args.carried, bundle, table, args)


def check_carried(carried: Path, built: Path, table: Table, args: argparse.Namespace) -> None:
    """Kernels, plan and graph of a machine without a GPU, with the weights made here.

    The carried bundle has no golden vectors, for size: it is held against those of the one built
    here.
    """
    inputs, outputs = read_golden(Bundle.open(built))
    limits = Bundle.open(built).manifest.tolerances
    label = "kernels from the CPU machine"
    start = time.perf_counter()
    with Policy.load(carried, device="cuda:0") as policy:
        got = policy.run_for_comparison(inputs, tuple(outputs))
        table.add(f"{label}: load and first run", f"{time.perf_counter() - start:.2f} s")
        rows = [compare(name, got[name], array, limits[name]) for name, array in outputs.items()]
        worst = max(rows, key=lambda row: row.relative_l2 / row.limit.relative_l2)
        passed = all(row.passed for row in rows)
        table.add(f"{label}: golden, {len(rows)} outputs", str(worst)[:90], passed)
    time_bundle(label, carried, table, args)


def check_full_bundle(label: str, bundle: Path, table: Table, args: argparse.Namespace) -> None:
    for path in bundle.glob("weights-*"):  # into the page cache
        path.read_bytes()
    start = time.perf_counter()
    with Policy.load(bundle, device="cuda:0") as policy:
        loaded = time.perf_counter() - start
        tensors = full_inputs(policy, 200)
        policy.run(tensors)
        first = time.perf_counter() - start
        table.add(
            f"{label}: load to first action", f"{loaded:.2f} + {first - loaded:.3f} s", first <= 6.0
        )
        golden = check_golden(policy)
        worst = max(golden.comparisons, key=lambda item: item.relative_l2 / item.limit.relative_l2)
        table.add(
            f"{label}: golden, {len(golden.comparisons)} outputs", str(worst)[:90], golden.passed
        )
        check_lengths(label, policy, table)
    time_bundle(label, bundle, table, args)


def time_bundle(label: str, bundle: Path, table: Table, args: argparse.Namespace) -> None:
    """Latency at the full prompt and at a quarter of it, with receipts."""
    for valid in (200, 50):
        options = BenchOptions(
            device="cuda:0", calls=args.count, prompt_valid=valid, load=valid == 200
        )
        receipt = bench_bundle(bundle, options)
        write_receipt(args.out / f"full_{label.split()[0]}_prompt_{valid}.json", receipt)
        for timing in receipt.timings:
            text = f"p50 {timing.p50_us / 1e3:.3f} p99 {timing.p99_us / 1e3:.3f} ms"
            limit = timing.p50_us <= 20e3 if timing.boundary == "run" else None
            table.add(f"{label}: prompt {valid}, {timing.boundary}", text, limit)


def check_batches(work: Path, target: str, table: Table, args: argparse.Namespace) -> None:
    """Buckets 8 and 32 beside 1, sharing weights: samples a second on the full prompt."""
    bundle = work / "batches.policy"
    start = time.perf_counter()
    options = CompileOptions(
        checkpoint=work / "full",
        output=bundle,
        targets=(target,),
        batch=(1, 8, 32),
        golden=Golden.NONE,
    )
    compile_checkpoint(options, quiet)
    table.add("compile buckets 1, 8, 32", f"{time.perf_counter() - start:.1f} s")
    for batch, least in ((8, 105.0), (32, 120.0)):
        bench = BenchOptions(device="cuda:0", calls=20, prompt_valid=200, batch=batch)
        receipt = bench_bundle(bundle, bench)
        write_receipt(args.out / f"full_batch_{batch}.json", receipt)
        for timing in receipt.timings:
            rate = batch / timing.p50_us * 1e6
            text = f"T p50 {timing.p50_us / 1e3:.2f} ms, Q {rate:.1f} samples/s"
            passed = rate >= least if timing.boundary == "run" else None
            table.add(f"batch {batch}, {timing.boundary}", text, passed)


def full_inputs(policy: Policy, valid: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    kinds = policy.signature.inputs
    slots = kinds["tokens"].shape[1]
    shape = kinds["images"].shape
    pixels = random.integers(0, 256, shape, np.uint8).astype(np.float32)
    return {
        "images": pixels / np.float32(127.5) - np.float32(1),
        "image_mask": np.ones(kinds["image_mask"].shape, np.bool_),
        "tokens": random.integers(1, 500, (1, slots)).astype(np.int32),
        "token_mask": (np.arange(slots) < valid)[None],
        "noise": random.standard_normal(kinds["noise"].shape).astype(np.float32),
    }


def check_lengths(label: str, policy: Policy, table: Table) -> None:
    """Prompt lengths in turn on one captured graph: each gives its own bits again."""
    first = {n: policy.run(full_inputs(policy, n))["actions"] for n in (3, 40, 200)}
    again = {n: policy.run(full_inputs(policy, n))["actions"] for n in (200, 3, 40)}
    same = all(np.array_equal(first[n], again[n]) for n in first)
    differ = not np.array_equal(first[3], first[200])
    table.add(
        f"{label}: prompt lengths 3, 40, 200",
        "same bits again" if same else "differ",
        same and differ,
    )


def attempt(what: str, check: Callable[[], None], table: Table) -> None:
    """Run one part; a failure is a row, the other parts still run."""
    try:
        check()
    except Exception as error:  # noqa: BLE001  (the lease is short: report and go on)
        traceback.print_exc()
        table.add(what, f"{type(error).__name__}: {error}"[:200], False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--oracles", type=Path)
    parser.add_argument("--carried", type=Path)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--work", type=Path, default=Path("/tmp/acceptance"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--parts", nargs="+", default=["trained", "fixtures", "full"])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    table = Table(args.out)
    if "trained" in args.parts:
        attempt("trained", lambda: check_trained(args.work, args.target, table), table)
    if "fixtures" in args.parts:
        for name in ("pi05_bf16", "pi05_fp32", "pi05_lerobot"):
            folder = args.oracles / name
            attempt(
                name,
                lambda n=name, f=folder: check_fixture(n, f, args.work, args.target, table),
                table,
            )
    if "full" in args.parts:
        attempt("full size", lambda: check_full(args.work, args.target, table, args), table)
    if "batches" in args.parts:
        attempt("batches", lambda: check_batches(args.work, args.target, table, args), table)
    table.print()


if __name__ == "__main__":
    main()
