from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.errors import BundleError
from policyc.runtime_min.host_executor import HostExecutor, WeightCache
from policyc.runtime_min.signature import Signature
from tests.runtime_min.bundles import BUCKETS, expected, graph, tensors, weights

NAMES = ("actions", "lang_emb", "hidden", "doubled")


@pytest.fixture
def bundle(bundle_folder: Path) -> Bundle:
    return Bundle.open(bundle_folder)


@pytest.mark.parametrize("batch", BUCKETS)
def test_values(bundle: Bundle, batch: int) -> None:
    _, inputs = Signature.of(graph(1), BUCKETS).check_inputs(tensors(batch))
    values = HostExecutor(bundle).run(batch, inputs, NAMES)
    for name, array in expected(inputs).items():
        np.testing.assert_allclose(values[name].astype(np.float32), array, rtol=1e-6, atol=1e-6)


def test_weights_are_given_by_graph_name(bundle: Bundle) -> None:
    cache = WeightCache(bundle)
    np.testing.assert_array_equal(cache("@w"), weights()["w"])
    assert cache.cached_bytes == 0, "float32 weights are mapped, not copied"
    assert cache("@table").dtype == np.float32
    assert cache.cached_bytes == 512 * 8 * 4
    assert cache("@table") is cache("@table")


def test_a_table_that_would_fill_the_cache_stays_as_stored(bundle: Bundle) -> None:
    cache = WeightCache(bundle, capacity_bytes=4 * 512 * 8 * 4 - 1)
    assert cache("@table").dtype == weights()["table"].dtype
    assert cache.cached_bytes == 0


def test_the_least_recently_used_copy_is_dropped(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = weights()["table"]
    monkeypatch.setattr(Bundle, "map_weight", lambda self, name: table)
    size = table.size * 4
    cache = WeightCache(bundle, capacity_bytes=4 * size)
    first = cache("@0")
    for name in ("@1", "@2", "@3"):
        cache(name)
    assert cache("@0") is first
    second = cache("@1")
    cache("@4")
    assert cache.cached_bytes == 4 * size
    assert cache("@1") is second
    assert cache("@0") is first
    cache.clear()
    assert cache.cached_bytes == 0


def test_an_unknown_weight_lists_known_ones(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="no weight 'v' in the manifest; it has table, w"):
        WeightCache(bundle)("@v")
