"""The products that the sweep of the linear family measures: pi0.5's, by part of the model."""

from __future__ import annotations

from policyc.compiler.ir.types import DType
from tests.kernels.linear_cases import Product

GELU = "gelu_tanh"


def prefix(m: int, groups: int = 0, length: int = 0) -> tuple[Product, ...]:
    """The language model on m rows, of which each of the groups needs `length`."""

    def product(n: int, k: int, op: str = "linear", splits: int = 0) -> Product:
        return Product(
            m=m,
            n=n,
            k=k,
            op=op,
            activation=GELU if op == "gated_linear" else "none",
            splits=splits,
            groups=groups,
            length=length,
        )

    return (
        product(2560, 2048),
        product(2048, 2048),
        product(16384, 2048, "gated_linear"),
        product(2048, 16384),
        product(2048, 16384, "split_linear", 2),
    )


def vision(m: int) -> tuple[Product, ...]:
    """The image tower on m patches."""
    return (
        Product(m=m, n=3456, k=1152, bias=True),
        Product(m=m, n=1152, k=1152, bias=True),
        Product(m=m, n=4304, k=1152, bias=True, activation=GELU),
        Product(m=m, n=1152, k=4304, bias=True),
        Product(m=m, n=1152, k=4304, op="split_linear", splits=2),
    )


def expert(m: int) -> tuple[Product, ...]:
    """The action expert on m rows."""
    return (
        Product(m=m, n=2560, k=1024),
        Product(m=m, n=1024, k=2048, op="split_linear", splits=4),
        Product(m=m, n=4096, k=1024, op="gated_linear", activation=GELU),
        Product(m=m, n=1024, k=4096, op="split_linear", splits=4),
        Product(m=m, n=1024, k=4096, op="split_linear", splits=8),
    )


# Of products with one key the first decides the choice: the full prompt, the slowest case.
PRODUCTS = (
    *prefix(968),
    *prefix(968, groups=1, length=818)[:4],
    *vision(768),
    *expert(50),
    Product(m=50, n=1024, k=2048, op="split_linear", splits=2),
    Product(m=50, n=1024, k=2048, op="split_linear", splits=8),
    Product(m=768, n=1152, k=592, bias=True),
    Product(m=768, n=2048, k=1152, bias=True),
    Product(m=50, n=1024, k=32, dtype=DType.F32, bias=True),
    Product(m=50, n=32, k=1024, dtype=DType.F32, bias=True),
    Product(m=50, n=1024, k=2048),
    Product(m=768, n=1152, k=4304, op="split_linear", splits=3),
    Product(m=768, n=1152, k=4304, op="split_linear", splits=4),
    *expert(10),
    *prefix(712),
)

BATCHES = (
    *prefix(8 * 968),
    *prefix(32 * 968)[:4],
    *vision(8 * 768),
    *(p for m in (400, 1600) for p in (*expert(m)[:4], Product(m=m, n=1024, k=2048))),
    *(Product(m=m, n=1024, k=4096) for m in (400, 1600)),
)


def needed_rows(product: Product) -> int:
    """Rows that a launch has to compute."""
    return product.groups * product.length if product.groups else product.m
