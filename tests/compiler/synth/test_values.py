from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from policyc.compiler.ir.types import DType
from policyc.compiler.synth import values
from policyc.compiler.synth.tensors import TensorSpec

WIDE = TensorSpec(name="wide", shape=(37, 41), spread=0.5, mean=2.0, dtype=DType.F32)


def test_quantiles_are_normal() -> None:
    quantiles = values.normal_quantiles()
    assert quantiles.shape == (65536,) and abs(quantiles.mean()) < 1e-12
    assert abs(quantiles.std() - 1) < 1e-12 and abs(quantiles[-1] - 4.3) < 0.1
    assert abs(float((quantiles**4).mean()) - 3) < 0.01  # the kurtosis of a normal distribution


def test_values_depend_on_seed_name_and_block() -> None:
    quantiles = values.normal_quantiles()
    base = values.random_block(WIDE, 0, 0, quantiles)
    assert np.array_equal(base, values.random_block(WIDE, 0, 0, quantiles))
    assert not np.array_equal(base, values.random_block(WIDE, 1, 0, quantiles))
    other = TensorSpec(name="other", shape=WIDE.shape, spread=0.5, mean=2.0, dtype=DType.F32)
    assert not np.array_equal(base, values.random_block(other, 0, 0, quantiles))
    assert abs(float(base.astype(float).mean()) - 2.0) < 0.05
    assert abs(float(base.astype(float).std()) - 0.5) < 0.03


def test_blocks_meet_without_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BLOCK_ELEMENTS", 100)
    scalar = TensorSpec(name="one", shape=(), spread=0.0, mean=1.5)
    values.write_random_tensors(
        tmp_path / "f",
        [WIDE, scalar, TensorSpec(name="last", shape=(250,), spread=1.0)],
        5,
        {"format": "pt"},
    )
    loaded = load_file(tmp_path / "f")
    quantiles = values.normal_quantiles()
    blocks = [values.random_block(WIDE, 5, block, quantiles) for block in range(16)]
    assert np.array_equal(loaded["wide"].ravel(), np.concatenate(blocks))
    assert float(loaded["one"]) == 1.5
    assert np.count_nonzero(loaded["last"].astype(np.float32)) > 240


def test_small_files_hold_exact_values(tmp_path: Path) -> None:
    array = np.array([[1.5, -2.0]], dtype=np.float32)
    values.write_arrays(tmp_path / "f", {"a": array, "b": array + 1})
    loaded = load_file(tmp_path / "f")
    assert np.array_equal(loaded["a"], array) and np.array_equal(loaded["b"], array + 1)
