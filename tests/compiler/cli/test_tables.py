from __future__ import annotations

from rich.console import Console

from policyc.compiler.bench import LoadTiming, Receipt, Setup, Timing
from policyc.compiler.cli.tables import megabytes, receipt_table, verification_table
from policyc.compiler.verify import Verification
from policyc.runtime_min.golden import Comparison, GoldenReport
from policyc.runtime_min.manifest import Tolerance

SETUP = Setup(
    policyc="0", bundle="b", manifest_sha256="0" * 64, policy="toy", device="cpu", hardware={},
    host={}, precision="bf16", options={}, views=1, horizon=1, prompt_slots=1, prompt_valid=1,
    batch=1, warmup=1, taken_at="now",
)  # fmt: skip


def rendered(table: object) -> str:
    console = Console(width=160, record=True)
    console.print(table)
    return console.export_text()


def test_latencies_are_in_milliseconds() -> None:
    timing = Timing(boundary="run", n=3, p50_us=1500.0, p95_us=2000.0, p99_us=2500.0, max_us=3000.0)
    load = LoadTiming(open_s=0.5, policy_load_s=2.0, first_call_s=0.004, median_call_s=0.003)
    text = rendered(receipt_table(Receipt(setup=SETUP, timings=(timing,), load=load)))
    for figure in ("1.500", "2.000", "2.500", "3.000", "load 2.000 s", "first call 4.000 ms"):
        assert figure in text


def test_a_failure_is_named() -> None:
    limit = Tolerance(max_abs=0.1, relative_l2=0.1, origin="a guess [sic]")
    item = Comparison(name="k.3", max_abs_error=0.5, relative_l2=0.01, cosine=1.0, limit=limit)
    report = GoldenReport(device="cpu", comparisons=(item,))
    text = rendered(verification_table(Verification(path="b", files=3, golden=report)))
    assert "FAILED" in text and "first value out of tolerance: k.3" in text and "[sic]" in text


def test_megabytes() -> None:
    assert megabytes(12_340_000) == "12.3 MB"
