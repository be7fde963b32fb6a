"""Operations that adapters need and PyTorch has no call for, each with its eager reference.

`torch.export` keeps them whole, and the importer maps them to rows of the op table. They are
registered under `torch.ops.policyc` when this module is imported, which PyTorch offers no way
around.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("policyc::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    length: Tensor | None = None,
    second_k: Tensor | None = None,
    second_v: Tensor | None = None,
) -> Tensor:
    """Softmax attention over one or two segments of keys.

    Args:
        q: [B, T, H, D].
        k, v: [B, S, Hk, D]; head h of q reads head h // (H / Hk).
        scale: factor on the logits.
        length: i32 [B]; keys at or beyond it do not exist. All of them do if absent.
        second_k, second_v: [B, S2, Hk, D], seen whole, after the first segment.

    Returns:
        [B, T, H, D]; zeros for a query that has no key.
    """
    valid = torch.ones(k.shape[:2], dtype=torch.bool)
    if length is not None:
        valid = torch.arange(k.shape[1]) < length[:, None]
    if second_k is not None and second_v is not None:
        valid = torch.cat([valid, torch.ones(second_k.shape[:2], dtype=torch.bool)], dim=1)
        k, v = torch.cat([k, second_k], dim=1), torch.cat([v, second_v], dim=1)
    group = q.shape[2] // k.shape[2]
    keys = k.repeat_interleave(group, dim=2)
    values = v.repeat_interleave(group, dim=2)
    logits = torch.einsum("bthd,bshd->bhts", q, keys) * scale
    logits = logits.masked_fill(~valid[:, None, None, :], -torch.inf)
    weights = torch.softmax(logits, dim=-1).nan_to_num(0.0)
    return torch.einsum("bhts,bshd->bthd", weights, values).contiguous()


@attention.register_fake
def _(q, k, v, scale, length=None, second_k=None, second_v=None):  # type: ignore[no-untyped-def]
    return torch.empty_like(q)


@torch.library.custom_op("policyc::rope", mutates_args=())
def rope(x: Tensor, cos: Tensor, sin: Tensor, start: Tensor | None = None) -> Tensor:
    """Rotary position embedding with half-split pairs (i, i + D/2).

    Args:
        x: [B, T, H, D].
        cos, sin: [P, D/2], a row a position.
        start: i32 [B], the position of row 0; 0 if absent.
    """
    offset = torch.zeros(x.shape[0], dtype=torch.int64) if start is None else start.long()
    index = offset[:, None] + torch.arange(x.shape[1])
    c, s = cos[index][:, :, None, :].to(x.dtype), sin[index][:, :, None, :].to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


@rope.register_fake
def _(x, cos, sin, start=None):  # type: ignore[no-untyped-def]
    return torch.empty_like(x)


@torch.library.custom_op("policyc::compact_rows", mutates_args=())
def compact_rows(x: Tensor, mask: Tensor) -> Tensor:
    """Valid rows first, in order; the rest zeros. x [B, S, D], mask bool [B, S]."""
    order = torch.argsort((~mask).to(torch.int8), dim=1, stable=True)
    rows = torch.take_along_dim(x, order[:, :, None], dim=1)
    kept = torch.take_along_dim(mask, order, dim=1)
    return rows * kept[:, :, None].to(x.dtype)


@compact_rows.register_fake
def _(x, mask):  # type: ignore[no-untyped-def]
    return torch.empty_like(x)


@torch.library.custom_op("policyc::scatter_rows", mutates_args=())
def scatter_rows(x: Tensor, mask: Tensor) -> Tensor:
    """The inverse of compact_rows: row i returns to the i-th valid position, others are zeros."""
    index = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
    rows = torch.take_along_dim(x, index[:, :, None], dim=1)
    return rows * mask[:, :, None].to(x.dtype)


@scatter_rows.register_fake
def _(x, mask):  # type: ignore[no-untyped-def]
    return torch.empty_like(x)


@torch.library.custom_op("policyc::count_true", mutates_args=())
def count_true(mask: Tensor) -> Tensor:
    """Valid rows of each sample: bool [B, S] -> i32 [B]."""
    return mask.sum(dim=1).to(torch.int32)


@count_true.register_fake
def _(mask):  # type: ignore[no-untyped-def]
    return mask.new_empty(mask.shape[:1], dtype=torch.int32)


@torch.library.custom_op("policyc::table_row", mutates_args=())
def table_row(table: Tensor, index: Tensor) -> Tensor:
    """Row `index` (i32 []) of a table [N, ..], kept as a first axis of size 1."""
    return table[int(index)][None].clone()


@table_row.register_fake
def _(table, index):  # type: ignore[no-untyped-def]
    return table.new_empty((1, *table.shape[1:]))


@torch.library.custom_op("policyc::patchify", mutates_args=())
def patchify(images: Tensor, patch: int) -> Tensor:
    """Non-overlapping patches as rows.

    Args:
        images: [B, C, channels, H, W].
        patch: side of a patch in pixels; divides H and W.

    Returns:
        [B, C, (H/p) * (W/p), channels * p * p], columns in the order (channel, row, column).
    """
    b, c, channels, height, width = images.shape
    p = patch
    x = images.reshape(b, c, channels, height // p, p, width // p, p)
    x = x.permute(0, 1, 3, 5, 2, 4, 6)
    return x.reshape(b, c, (height // p) * (width // p), channels * p * p).contiguous()


@patchify.register_fake
def _(images, patch):  # type: ignore[no-untyped-def]
    b, c, channels, height, width = images.shape
    count = (height // patch) * (width // patch)
    return images.new_empty((b, c, count, channels * patch * patch))
