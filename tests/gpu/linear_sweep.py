"""Checks and times every candidate of the linear family at pi0.5's sizes, on the GPU at hand.

    python tests/gpu/linear_sweep.py --out FOLDER        # needs a GPU, torch and triton
    python tests/gpu/linear_sweep.py --dry-run           # compiles all candidates, on any machine

Each candidate is launched through Triton's JIT: once on fresh random operands against a float64
product, then in a CUDA graph over rotating copies of the weights, so that they come from DRAM as
they do in a policy. cuBLAS is timed in the same way. A candidate that fails is recorded and the
sweep goes on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TRITON_CACHE_DIR", "/tmp/policyc-linear-sweep")

from policyc.compiler.ir.types import DType  # noqa: E402
from policyc.kernels.linear_spec import LinearFamily  # noqa: E402
from policyc.kernels.spec import Candidate, KernelCall, Parameters  # noqa: E402
from tests.gpu.linear_products import BATCHES, PRODUCTS, needed_rows  # noqa: E402
from tests.kernels.cases import HOPPER, TestDevice  # noqa: E402
from tests.kernels.execution import bound_arguments, kernel_function  # noqa: E402
from tests.kernels.linear_cases import Product  # noqa: E402

FAMILY = LinearFamily()

MOST_CHECKED_ROWS = 1024

SAMPLE_US = 20_000
"""Time of one replay to aim for: long products are launched fewer times in it."""

COPIES_BYTES = 256 << 20
"""Weights in rotation: several times the largest L2, so that each launch reads DRAM."""


def tolerated_error(product: Product) -> float:
    """Relative L2 error allowed: bf16 results round to 2^-9; tensor cores truncate their sums."""
    if product.dtype is DType.F32:
        return 1e-5
    return 4e-3 if product.node.output.type.dtype is DType.BF16 else 1e-4


@dataclass(slots=True, kw_only=True)
class Measurement:
    """One candidate on one problem."""

    problem: str
    parameters: dict[str, int]
    expected_us: float
    microseconds: float | None = None
    spread: float | None = None
    max_error: float | None = None
    relative_error: float | None = None
    failure: str = ""


@dataclass(slots=True, kw_only=True)
class Row:
    """The outcome of one product: cuBLAS and all candidates."""

    product: Product
    cublas_us: float | None = None
    failure: str = ""
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def best(self) -> Measurement | None:
        timed = [m for m in self.measurements if m.microseconds is not None and not m.failure]
        return min(timed, key=lambda m: m.microseconds or 0.0, default=None)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def problem_key(product: Product) -> str:
    return FAMILY.problem(product.node, product.types).key


def candidates_of(product: Product, device: TestDevice, limit: int) -> list[Candidate]:
    """The `limit` cheapest candidates that can run; pointer tiles only where they may win."""
    found = FAMILY.candidates(product.node, product.types, device)
    usable = [c for c in found if not c.rejected]
    mapped = [c for c in usable if dict(c.parameters)["maps"]]
    few = [c for c in usable if not dict(c.parameters)["maps"]]
    few.sort(key=lambda c: (c.cost, c.parameters))
    chosen = (mapped + few[: 4 if mapped else len(few)]) if product.m <= 64 else (mapped or usable)
    return sorted(chosen, key=lambda c: (c.cost, c.parameters))[:limit]


# Compiling, in worker processes without a GPU.


class CompileOnlyDriver:
    """Stands in for Triton's driver where kernels are compiled and never launched."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def options_of(call: KernelCall) -> dict[str, Any]:
    options: dict[str, Any] = {"num_warps": call.num_warps, "num_stages": call.num_stages}
    return {**options, "enable_fp_fusion": True, "launch_pdl": call.pdl}


def compile_candidate(product: Product, parameters: Parameters, device: TestDevice) -> str:
    """Fill Triton's disk cache as the later launch will ask for it; the error, or nothing."""
    import torch
    from triton.runtime.driver import driver

    driver.set_active(CompileOnlyDriver(device.compute_capability))
    call = product.call(FAMILY, parameters, device)
    tensors = {v.base: torch.empty(0, dtype=torch_type(v.dtype)) for v in product.views}
    tensors |= {"out": torch.empty(0, dtype=torch_type(product.node.output.type.dtype))}
    try:
        kernel_function(call).warmup(
            **bound_arguments(call, tensors),
            **dict(call.constants),
            grid=call.grid,
            **options_of(call),
        )
    except Exception as error:  # noqa: BLE001  # every failure of the compiler is a result of the sweep
        return f"{type(error).__name__}: {str(error)[-300:]}"
    return ""


def torch_type(dtype: DType) -> Any:
    import torch

    return {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.I32: torch.int32}[dtype]


def compile_all(
    jobs: list[tuple[Product, Parameters]], device: TestDevice, workers: int
) -> dict[tuple[Product, Parameters], str]:
    """The compile error of each job, empty where there is none."""
    context = multiprocessing.get_context("spawn")
    errors: dict[tuple[Product, Parameters], str] = {}
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures: list[tuple[tuple[Product, Parameters], Future[str]]] = [
            (job, pool.submit(compile_candidate, *job, device)) for job in jobs
        ]
        for job, future in futures:
            try:
                errors[job] = future.result()
            except BrokenExecutor as error:
                errors[job] = f"the compiler aborted the process: {error}"
    return errors


# Measuring, on the GPU.


@dataclass(slots=True, kw_only=True)
class Bench:
    """Operands of one product on the GPU: weights in several copies, everything random."""

    product: Product
    tensors: list[dict[str, Any]]

    @classmethod
    def make(cls, product: Product) -> Bench:
        import torch

        operands = dict(product.operands)
        w = operands.pop("@w")
        copies = min(max(8, -(-COPIES_BYTES // w.size_bytes)), 64)
        shared: dict[str, Any] = {}
        if operands.pop("length", None):
            lengths = [product.length] * product.groups
            shared["length"] = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        shared |= {n: random_tensor(t.shape, t.dtype, 1.0) for n, t in operands.items()}
        result = product.node.output.type
        outs = [
            torch.empty(result.shape, dtype=torch_type(result.dtype), device="cuda") for _ in "ab"
        ]
        tensors = [
            {
                **shared,
                "@w": random_tensor(w.shape, w.dtype, w.shape[1] ** -0.5),
                "out": outs[i % 2],
            }
            for i in range(copies)
        ]
        return cls(product=product, tensors=tensors)

    def checked_rows(self) -> Any:
        """Needed rows, at most some thousand of them."""
        import torch

        rows = torch.arange(self.product.m, device="cuda")
        if self.product.groups:
            rows = rows[rows % (self.product.m // self.product.groups) < self.product.length]
        return rows[:: -(-len(rows) // MOST_CHECKED_ROWS)]

    def reference(self, tensors: dict[str, Any], rows: Any) -> Any:
        """These rows of the product in float64."""
        import torch

        product = self.product
        x, w = tensors["x"][rows].double(), tensors["@w"].double()
        if product.op == "split_linear":
            from policyc.compiler.ir.splits import split_ranges

            ranges = split_ranges(product.k, product.splits)
            return torch.stack([x[:, a:b] @ w[:, a:b].T for a, b in ranges])
        y = x @ w.T
        if product.bias:
            y = y + tensors["@bias"].double()
        if product.op == "gated_linear":
            return activate(y[:, 0::2], product.activation) * y[:, 1::2]
        return activate(y, product.activation)

    def cublas(self, tensors: dict[str, Any]) -> Callable[[], object]:
        """torch's own linear of the needed rows: bias in their type, no activation, no gate."""
        import torch

        bias = tensors["@bias"].to(tensors["x"].dtype) if self.product.bias else None
        x, w = tensors["x"][: needed_rows(self.product)], tensors["@w"]
        out = torch.empty((x.shape[0], w.shape[0]), dtype=x.dtype, device="cuda")
        if bias is None:
            return lambda: torch.mm(x, w.T, out=out)
        return lambda: torch.addmm(bias, x, w.T, out=out)


def random_tensor(shape: tuple[int, ...], dtype: DType, size: float) -> Any:
    import torch

    values = torch.empty(shape, dtype=torch.float32, device="cuda").normal_(std=size)
    return values.to(torch_type(dtype))


def activate(x: Any, activation: str) -> Any:
    import torch

    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return torch.nn.functional.silu(x) if activation == "silu" else x


def launcher(call: KernelCall, tensors: dict[str, Any]) -> Callable[[], None]:
    """A launch with everything bound, so that a capture is quick."""
    flat = {name: tensor.view(-1) for name, tensor in tensors.items()}
    arguments = bound_arguments(call, flat)
    constants, options = dict(call.constants), options_of(call)
    kernel = kernel_function(call)[call.grid]
    return lambda: kernel(**arguments, **constants, **options)


def time_us(launches: Sequence[Callable[[], object]], expected_us: float) -> tuple[float, float]:
    """Median and spread (largest - smallest) of one launch in a replayed graph, in microseconds."""
    import torch

    launches = launches[: max(4, int(SAMPLE_US / expected_us))]
    repeats = max(1, min(-(-32 // len(launches)), int(SAMPLE_US / expected_us)))
    launches[0]()  # what loads lazily must have been loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for launch in launches:
                launch()
    samples = []
    for index in range(9):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in "ab")  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        if index >= 2:
            samples.append(start.elapsed_time(stop) * 1000 / (repeats * len(launches)))
    return statistics.median(samples), max(samples) - min(samples)


def errors_of(bench: Bench, call: KernelCall, index: int) -> tuple[float, float]:
    """Largest absolute and relative L2 error against float64, on a fresh x."""
    import torch

    tensors = dict(bench.tensors[index % len(bench.tensors)])
    rows = bench.checked_rows()
    needed = torch.randn_like(tensors["x"])
    tensors["x"] = needed
    if bench.product.groups:
        # What nobody needs is poisoned: it must not spoil the rest.
        group = bench.product.m // bench.product.groups
        position = torch.arange(bench.product.m, device="cuda") % group
        needed[position >= bench.product.length] = float("nan")
    tensors["out"].fill_(float("nan"))
    launcher(call, tensors)()
    expected = bench.reference(tensors, rows)
    difference = tensors["out"].index_select(-2, rows).double() - expected
    worst = float(difference.abs().max())
    return worst, float(difference.norm() / expected.norm())


def measure(bench: Bench, candidate: Candidate, device: TestDevice, index: int) -> Measurement:
    """Check, then time, one candidate."""
    product = bench.product
    result = Measurement(
        problem=problem_key(product),
        parameters=dict(candidate.parameters),
        expected_us=candidate.cost,
    )
    call = product.call(FAMILY, candidate.parameters, device)
    try:
        result.max_error, result.relative_error = errors_of(bench, call, index)
        if not result.relative_error <= tolerated_error(product):
            result.failure = f"wrong: relative L2 error {result.relative_error:.2e}"
            return result
        launches = [launcher(call, tensors) for tensors in bench.tensors]
        result.microseconds, result.spread = time_us(launches, candidate.cost)
    except Exception as error:  # noqa: BLE001  # a failing candidate is a result of the sweep
        if "illegal" in str(error) or "unspecified launch" in str(error):
            raise  # the context is lost: nothing after this could be trusted
        result.failure = f"{type(error).__name__}: {str(error)[-300:]}"
    return result


def sweep(
    plan: list[tuple[Product, list[Candidate]]],
    errors: dict[tuple[Product, Parameters], str],
    device: TestDevice,
    seconds: float,
) -> Iterator[Row]:
    """One row a product, within the time; what does not fit is left out and said."""
    import torch

    end = time.monotonic() + seconds
    for index, (product, candidates) in enumerate(plan):
        share = (end - time.monotonic()) / (len(plan) - index)
        stop = time.monotonic() + 2 * share
        row = Row(product=product)
        bench = Bench.make(product)
        cublas = [bench.cublas(tensors) for tensors in bench.tensors]
        row.cublas_us, _ = time_us(cublas, candidates[0].cost)
        for number, candidate in enumerate(candidates):
            if time.monotonic() > min(stop, end):
                row.failure = f"out of time after {number} of {len(candidates)} candidates"
                break
            if error := errors.get((product, candidate.parameters), ""):
                row.measurements.append(
                    Measurement(
                        problem=problem_key(product),
                        parameters=dict(candidate.parameters),
                        expected_us=candidate.cost,
                        failure=error,
                    )
                )
                continue
            row.measurements.append(measure(bench, candidate, device, number))
        del bench
        torch.cuda.empty_cache()
        yield row


# Reporting.


def short(parameters: dict[str, int]) -> str:
    """`128x128+32x64 w8 s4 P1 store pre` for a reader."""
    p = parameters
    side = f"+{p['side_n']}" if p["side_n"] else ""
    words = [
        f"{p['block_m']}x{p['block_n']}{side}x{p['block_k']} w{p['num_warps']} s{p['num_stages']}"
    ]
    words += [] if p["maps"] else ["ptr"]
    words += [f"persistent{p['persistent']}"] if p["persistent"] else []
    words += ["store"] if p["store_map"] else []
    words += [name for name in ("resident", "summed") if p[name]]
    return " ".join(words + ["", "pre", "bulk"][p["prefetch"] :][:1]).rstrip()


def table_line(row: Row) -> str:
    best = row.best
    name = f"{problem_key(row.product)} (m={needed_rows(row.product)}/{row.product.m})"
    if best is None or best.microseconds is None or row.cublas_us is None:
        return f"{name:62} no candidate ran; {row.failure}"
    x, w, *_ = row.product.types
    flop = 2 * needed_rows(row.product) * w.element_count
    read = x.size_bytes + w.size_bytes + row.product.node.output.type.size_bytes
    us = best.microseconds
    ratio = row.cublas_us / us
    figures = (
        f"{us:8.2f} {row.cublas_us:8.2f} {ratio:5.2f} {flop / us / 1e6:6.0f} {read / us / 1e3:6.0f}"
    )
    return f"{name:62} {short(best.parameters):36} {figures} {row.failure}"


def detail_lines(row: Row, count: int = 6) -> list[str]:
    rows = f"m={needed_rows(row.product)}/{row.product.m}"
    lines = [f"## {problem_key(row.product)} {rows}: cuBLAS {row.cublas_us:.2f} us"]
    timed = [m for m in row.measurements if m.microseconds is not None]
    timed.sort(key=lambda m: m.microseconds or 0.0)
    for m in timed[:count]:
        lines.append(
            f"  {m.microseconds:8.2f} +- {m.spread:.2f} us, model {m.expected_us:7.2f}  "
            f"{short(m.parameters):36} max {m.max_error:.1e} rel {m.relative_error:.1e}"
        )
    lines += [f"  FAILED {short(m.parameters)}: {m.failure}" for m in row.measurements if m.failure]
    return lines


def write_results(folder: Path, rows: list[Row], facts: dict[str, str]) -> None:
    """`linear_choices.toml` with the winners, `linear_measurements.json` with everything."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["[measured]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())]
    winners: dict[str, Measurement] = {}
    for row in rows:
        best = row.best
        if best is not None:
            winners.setdefault(best.problem, best)
    for key, best in winners.items():
        parameters = ", ".join(f"{name} = {value}" for name, value in best.parameters.items())
        lines += [
            "",
            "[[choice]]",
            f"problem = {json.dumps(key)}",
            f"parameters = {{{parameters}}}",
            f"microseconds = {best.microseconds:.3f}",
            f"spread = {best.spread:.3f}",
            'how = "measured"',
        ]
    (folder / "linear_choices.toml").write_text("\n".join(lines) + "\n")
    everything = {
        "facts": facts,
        "products": [
            {
                "problem": problem_key(row.product),
                "m": row.product.m,
                "needed_rows": needed_rows(row.product),
                "cublas_us": row.cublas_us,
                "measurements": [asdict(m) for m in row.measurements],
            }
            for row in rows
        ],
    }
    (folder / "linear_measurements.json").write_text(json.dumps(everything, indent=1) + "\n")


def facts_of_machine() -> dict[str, str]:
    """What a measurement has to say of its machine; clocks are read while the GPU multiplies."""
    import subprocess

    import torch
    import triton

    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,clocks.sm,clocks.mem",
        "--format=csv,noheader",
    ]
    x = torch.randn((8192, 8192), dtype=torch.bfloat16, device="cuda")
    for _ in range(2000):  # about 3 s of work, queued at once
        torch.mm(x, x, out=torch.empty_like(x))
    text = subprocess.run(query, check=False, capture_output=True, text=True).stdout
    torch.cuda.synchronize()
    driver, sm, memory = (part.strip() for part in (text.splitlines() or ["?,?,?"])[0].split(","))
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "driver": driver,
        "clocks": f"{sm} SM, {memory} memory under load",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "method": "median of 7 graph replays, rotating weights, dependent launch",
    }


def device_at_hand() -> TestDevice:
    import torch
    from triton.runtime.driver import driver

    facts = torch.cuda.get_device_properties(0)
    capability = facts.major * 10 + facts.minor
    return TestDevice(
        compute_capability=capability,
        sm_count=facts.multi_processor_count,
        shared_bytes_per_block=driver.active.utils.get_device_properties(0)["max_shared_mem"],
        has_dependent_launch=capability >= 90,
        has_tensor_maps=capability >= 90,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("linear_sweep"), help="folder for the results"
    )
    parser.add_argument("--limit", type=int, default=20, help="most candidates a product")
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="time for measuring, compiling left out"
    )
    parser.add_argument("--only", default="", help="only products whose key contains this text")
    parser.add_argument("--batches", action="store_true", help="the sizes of larger batches")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 16))
    parser.add_argument("--dry-run", action="store_true", help="compile for 9.0, launch nothing")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    device = HOPPER if arguments.dry_run else device_at_hand()
    products = [
        p for p in (BATCHES if arguments.batches else PRODUCTS) if arguments.only in problem_key(p)
    ]
    plan = [(p, candidates_of(p, device, arguments.limit)) for p in products]
    jobs = [(p, c.parameters) for p, candidates in plan for c in candidates]
    started = time.monotonic()
    errors = compile_all(jobs, device, arguments.workers)
    failed = {job: error for job, error in errors.items() if error}
    say(f"{len(jobs)} kernels compiled in {time.monotonic() - started:.0f} s, {len(failed)} failed")
    for (product, parameters), error in failed.items():
        say(f"  {problem_key(product)} {short(dict(parameters))}: {error}")
    if arguments.dry_run:
        for product, candidates in plan:
            best = ", ".join(f"{short(dict(c.parameters))} {c.cost:.1f}" for c in candidates[:3])
            say(f"{problem_key(product):60} {len(candidates):3} candidates; model prefers {best}")
        return 1 if failed else 0
    rows: list[Row] = []
    facts = facts_of_machine()
    try:
        for row in sweep(plan, errors, device, arguments.seconds):
            rows.append(row)
            say("\n".join(detail_lines(row)))
            write_results(arguments.out, rows, facts)
    finally:
        # What was measured before the GPU was lost is still worth reading.
        say(f"\n{'problem':62} {'best':36} {'us':>8} {'cuBLAS':>8} ratio TFLOP/s GB/s")
        say("\n".join(table_line(row) for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
