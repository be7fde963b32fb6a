"""Normalisation rules against written-out formulas, near-constant dimensions included."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.runtime_min.processing.normalize import Normalizer
from policyc.runtime_min.processing.schema import Normalization, Rule, Scaling

FIRST, SECOND = (-1.5, 0.25, 3.0), (2.0, 0.75, 8.0)
VALUES = np.array([[-2.0, 0.3, 5.5], [1.25, 0.0, 3.0]], np.float32)


def normalizer(scaling: Scaling, rule: Rule, second: tuple[float, ...] = SECOND) -> Normalizer:
    epsilon = 1e-6 if rule is Rule.OPENPI else 1e-8
    return Normalizer.of(
        Normalization(scaling=scaling, rule=rule, epsilon=epsilon, first=FIRST, second=second)
    )


def test_openpi_mean_std() -> None:
    """The epsilon is added both ways, in float64."""
    rule = normalizer(Scaling.MEAN_STD, Rule.OPENPI)
    first, second = np.array(FIRST), np.array(SECOND)
    normalized, robot = rule.normalize(VALUES), rule.unnormalize(VALUES)
    assert normalized.dtype == robot.dtype == np.float64
    np.testing.assert_array_equal(normalized, (VALUES - first) / (second + 1e-6))
    np.testing.assert_array_equal(robot, VALUES * (second + 1e-6) + first)


def test_openpi_quantile() -> None:
    rule = normalizer(Scaling.QUANTILE, Rule.OPENPI)
    first, second = np.array(FIRST), np.array(SECOND)
    expected = (VALUES - first) / (second - first + 1e-6) * 2 - 1
    np.testing.assert_array_equal(rule.normalize(VALUES), expected)
    # (x + 1) / 2 is a float32 array there, as the network's result is.
    half = ((VALUES + np.float32(1)) / np.float32(2)).astype(np.float64)
    robot = half * (second - first + 1e-6) + first
    np.testing.assert_array_equal(rule.unnormalize(VALUES), robot)


def test_lerobot_mean_std() -> None:
    """The epsilon is added when normalising only; all of it in float32."""
    rule = normalizer(Scaling.MEAN_STD, Rule.LEROBOT, (2.0, 0.0, 8.0))
    first, second = np.array(FIRST, np.float32), np.array((2.0, 0.0, 8.0), np.float32)
    normalized, robot = rule.normalize(VALUES), rule.unnormalize(VALUES)
    assert normalized.dtype == robot.dtype == np.float32
    expected = (VALUES - first) / (second + np.float32(1e-8))
    np.testing.assert_array_equal(normalized, expected)
    np.testing.assert_array_equal(robot, VALUES * second + first)


@pytest.mark.parametrize("scaling", [Scaling.QUANTILE, Scaling.MIN_MAX])
def test_lerobot_ranges(scaling: Scaling) -> None:
    """No epsilon unless the range is zero. Checked against float64: float32 rounds a few times."""
    rule = normalizer(scaling, Rule.LEROBOT)
    first, second = np.array(FIRST), np.array(SECOND)
    normalized, robot = rule.normalize(VALUES), rule.unnormalize(VALUES)
    assert normalized.dtype == robot.dtype == np.float32
    exact = 2 * (VALUES.astype(np.float64) - first) / (second - first) - 1
    np.testing.assert_allclose(normalized, exact, rtol=0, atol=5e-7)
    exact = (VALUES.astype(np.float64) + 1) / 2 * (second - first) + first
    np.testing.assert_allclose(robot, exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("rule", list(Rule))
def test_identity(rule: Rule) -> None:
    identity = Normalizer.of(
        Normalization(scaling=Scaling.IDENTITY, rule=rule, epsilon=0.0, first=(), second=())
    )
    np.testing.assert_array_equal(identity.normalize(VALUES), VALUES)
    np.testing.assert_array_equal(identity.unnormalize(VALUES), VALUES)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("scaling", [Scaling.QUANTILE, Scaling.MEAN_STD])
@pytest.mark.parametrize("spread", [0.0, 1e-9])
def test_near_constant_dimensions(rule: Rule, scaling: Scaling, spread: float) -> None:
    """Case 15: results are finite, and the constant survives encoding and decoding."""
    second = FIRST if scaling is Scaling.QUANTILE else (0.0,) * 3
    second = tuple(value + spread for value in second)
    constant = np.array(FIRST, np.float32)
    normalizing = normalizer(scaling, rule, second)
    encoded = normalizing.normalize(constant).astype(np.float32)
    decoded = normalizing.unnormalize(encoded)
    assert np.isfinite(encoded).all()
    np.testing.assert_allclose(decoded, constant, rtol=0, atol=1e-6)
    far = normalizing.normalize(constant + np.float32(1.0))
    assert np.isfinite(far.astype(np.float32)).all()
