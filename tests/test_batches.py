"""Batches of the trained policy on the CPU: the same chunks as single calls, padded or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.cli.archives import read_arrays
from policyc.compiler.demo import PROMPT_SLOTS, observation_of
from policyc.compiler.options import Golden
from policyc.runtime_min.policy import Policy
from tests.compiled import CompiledBundles

FLOAT32_TOLERANCE = 1e-4
"""Robot units. Other batch sizes sum products in another order; the official float32 code is within
2.5e-4 of float64 on this policy."""


@pytest.fixture(scope="module")
def policy(compiled: CompiledBundles, small_policy: Path) -> Iterator[Policy]:
    bundle = compiled(
        small_policy / "openpi",
        views=2,
        prompt_slots=PROMPT_SLOTS,
        batch=(1, 3),
        golden=Golden.NONE,
    )
    with Policy.load(bundle, "cpu") as policy:
        yield policy


@pytest.mark.slow
def test_batches_agree_with_single_calls(policy: Policy, small_policy: Path) -> None:
    demos = read_arrays(small_policy / "demos.npz")
    chosen = (0, 7, 23)
    observations = [observation_of(demos, index) for index in chosen]
    noise = demos["noise"][list(chosen)]
    single = np.stack(
        [policy.infer(item, noise=one) for item, one in zip(observations, noise, strict=True)]
    )
    whole = policy.infer_batch(observations, noise=noise)
    assert np.abs(whole - single).max() < FLOAT32_TOLERANCE
    padded = policy.infer_batch(observations[:2], noise=noise[:2])
    assert np.abs(padded - single[:2]).max() < FLOAT32_TOLERANCE
    assert np.array_equal(padded, policy.infer_batch(observations[:2], noise=noise[:2]))
    assert np.abs(single[0] - single[1]).max() > 100 * FLOAT32_TOLERANCE
