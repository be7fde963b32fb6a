"""Checkpoint maps: which tensors a policy has, as data, and the engine that binds files to them.

A map lists rows. A row's name may hold a placeholder such as `{text.layers}`: it stands for a layer
index, and the number of layers is discovered from the names. A row's shape is a tuple of sizes,
each a product of integers and dimension names (`3`, `text.width`, `3*expert.width`); every
dimension is read from the tensors, and all tensors that mention it must agree.

Names in the files may differ from the map's in ways that are data too: a leading prefix, older
module paths, a tied tensor that is stored under its partner's name only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from policyc.compiler.ir.tensor_file import first_names
from policyc.compiler.ir.types import TensorType
from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.errors import CheckpointError

_PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")


class Kind(Enum):
    """What a row's tensor is to inference."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    UNUSED = "unused"
    """In some files and never needed: neither required nor read; its shape is not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tensor, or one a layer: name pattern, symbolic shape, kind."""

    name: str
    shape: tuple[str, ...] = ()
    kind: Kind = Kind.REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """Two names of one tensor: where `name` is not in the files, `stand_in` is used.

    Where both are there, `name` is used; in the layouts of `must_agree` their bytes must be equal.
    """

    name: str
    stand_in: str
    must_agree: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Tensors that this map is not for: a pattern to search in names, and what to say."""

    pattern: str
    message: str


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """All that is known about the tensors of a policy.

    Attributes:
        policy: its name, for messages.
        prefixes: leading parts that files may add to every name.
        renames: (older beginning, beginning in this map), for modules that moved.
        equal: pairs of dimensions that the computation needs to be equal.
    """

    policy: str
    rows: tuple[Row, ...]
    prefixes: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    ties: tuple[Tie, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    equal: tuple[tuple[str, str], ...] = ()

    @cached_property
    def patterns(self) -> tuple[tuple[re.Pattern[str], Row], ...]:
        """Each row with the expression that matches its names; a placeholder is the one group."""
        return tuple((re.compile(_expression(row.name)), row) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A checkpoint's tensors under the names of the map.

    Attributes:
        dims: every dimension and layer count of the map.
        tensors: name in the map -> name in the files, for every tensor that inference needs.
        unused: names in the files that are known and not needed.
        notes: lines for the user about rules that were applied.
    """

    dims: Mapping[str, int]
    tensors: Mapping[str, str]
    unused: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """A tensor of the files that a row describes."""

    name: str
    row: Row
    type: TensorType


def bind(checkpoint: Checkpoint, tensor_map: TensorMap) -> Binding:
    """Finds every tensor of the map in the checkpoint and every dimension in the shapes.

    Raises:
        CheckpointError: tensors missing, unknown, of another policy, or of shapes that do not fit.
    """
    folder = checkpoint.folder
    sources, notes = _canonical_names(checkpoint, tensor_map)
    for refusal in tensor_map.refusals:
        if hits := [name for name in sources if re.search(refusal.pattern, name)]:
            raise CheckpointError(
                f"{folder}: {refusal.message} Found {len(hits)} such tensors: {first_names(hits)}."
            )
    skipped: list[str] = []
    for tie in tensor_map.ties:
        note, dropped = _apply_tie(checkpoint, tie, sources)
        notes.append(note)
        skipped.extend(dropped)
    types = {name: checkpoint.tensors[source] for name, source in sources.items()}
    matches, unknown = _match(types, tensor_map)
    layers = _layer_counts(matches, folder=str(folder))
    _require_complete(matches, unknown, layers, checkpoint, tensor_map)
    used = [match for match in matches if match.row.kind is not Kind.UNUSED]
    dims = layers | _solve(used, folder=str(folder))
    _require_equal(dims, tensor_map.equal, folder=str(folder))
    unused = [sources[match.name] for match in matches if match.row.kind is Kind.UNUSED]
    return Binding(
        dims=dims,
        tensors={match.name: sources[match.name] for match in used},
        unused=tuple(sorted((*unused, *skipped))),
        notes=tuple(note for note in notes if note),
    )


def _canonical_names(
    checkpoint: Checkpoint, tensor_map: TensorMap
) -> tuple[dict[str, str], list[str]]:
    """Name as the map spells it -> name in the files, and notes; refuses a mix of spellings."""
    sources = {name: name for name in checkpoint.tensors}
    notes = []
    for prefix in tensor_map.prefixes:
        having = [name for name in sources if name.startswith(prefix)]
        if having:
            rest = [name for name in sources if not name.startswith(prefix)]
            _require_pure(checkpoint, f"with the prefix '{prefix}'", having, "without it", rest)
            sources = {name.removeprefix(prefix): source for name, source in sources.items()}
            notes.append(f"Tensor names carry the prefix '{prefix}'; it is left out.")
    old_starts = tuple(old for old, _ in tensor_map.renames)
    old = [name for name in sources if name.startswith(old_starts)] if old_starts else []
    if old:
        new_starts = tuple(new for _, new in tensor_map.renames)
        new = [name for name in sources if name.startswith(new_starts)]
        _require_pure(checkpoint, "under older module paths", old, "under present ones", new)
        sources = {_renamed(name, tensor_map): source for name, source in sources.items()}
        notes.append(f"{len(old)} tensors carry older module paths; they are renamed.")
    return sources, notes


def _require_pure(
    checkpoint: Checkpoint, what: str, first: list[str], other: str, second: list[str]
) -> None:
    if first and second:
        raise CheckpointError(
            f"{checkpoint.folder}: tensor names mix two layouts: {len(first)} {what} "
            f"({first_names(first)}), {len(second)} {other} ({first_names(second)}). "
            "Save the checkpoint again with one version of the framework."
        )


def _renamed(name: str, tensor_map: TensorMap) -> str:
    for old, new in tensor_map.renames:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _apply_tie(
    checkpoint: Checkpoint, tie: Tie, sources: dict[str, str]
) -> tuple[str, tuple[str, ...]]:
    """Leaves `tie.name` alone in `sources`; gives a note and the names in the files not read."""
    own, partner = sources.get(tie.name), sources.get(tie.stand_in)
    if own is None and partner is None:
        raise CheckpointError(
            f"{checkpoint.folder}: neither '{tie.name}' nor '{tie.stand_in}', which can stand in "
            "for it, is in the files. Save the checkpoint again with either of them."
        )
    if partner is None:
        return "", ()
    del sources[tie.stand_in]
    if own is None:
        sources[tie.name] = partner
        return f"'{tie.name}' is not in the files; its tied partner '{partner}' is used.", ()
    if checkpoint.layout in tie.must_agree and not checkpoint.same_bytes(own, partner):
        raise CheckpointError(
            f"{checkpoint.folder}: '{own}' and '{partner}' are one tied tensor in the "
            f"{checkpoint.layout} layout, but their values differ. Save the checkpoint again."
        )
    return f"'{own}' and '{partner}' are both in the files; '{own}' is used.", (partner,)


def _expression(pattern: str) -> str:
    """The regular expression of a row's name; an index has no leading zeros."""
    pieces = _PLACEHOLDER.split(pattern)
    assert len(pieces) <= 3, f"{pattern} has more than one placeholder"
    return r"(0|[1-9][0-9]{0,8})".join(re.escape(piece) for piece in pieces[::2]) + r"\Z"


def _placeholder(row: Row) -> str | None:
    found = _PLACEHOLDER.search(row.name)
    return found[1] if found else None


def _match(
    types: Mapping[str, TensorType], tensor_map: TensorMap
) -> tuple[list[_Match], list[str]]:
    """Tensors with their rows, in order of the map, and the names that no row describes."""
    matches: dict[str, _Match] = {}
    for pattern, row in tensor_map.patterns:
        for name in [name for name in types if pattern.match(name)]:
            assert name not in matches, f"two rows of the map describe {name}"
            matches[name] = _Match(name=name, row=row, type=types[name])
    return list(matches.values()), [name for name in types if name not in matches]


def _layer_index(match: _Match) -> int:
    found = re.match(_expression(match.row.name), match.name)
    assert found, f"{match.name} does not match its row"
    return int(found[1])


def _layer_counts(matches: Iterable[_Match], folder: str) -> dict[str, int]:
    """Number of layers of each placeholder; the indices must run from 0 without a gap."""
    indices: dict[str, set[int]] = {}
    for match in matches:
        if count := _placeholder(match.row):
            indices.setdefault(count, set()).add(_layer_index(match))
    for count, found in indices.items():
        for expected, index in enumerate(sorted(found)):
            if index != expected:
                raise CheckpointError(
                    f"{folder}: {count}: layer {expected} is missing, but layer {index} is there "
                    f"({len(found)} layers found). Download or save the checkpoint again."
                )
    return {count: len(found) for count, found in indices.items()}


def _require_complete(
    matches: Iterable[_Match],
    unknown: list[str],
    layers: Mapping[str, int],
    checkpoint: Checkpoint,
    tensor_map: TensorMap,
) -> None:
    present = {match.name for match in matches}
    required = [row for row in tensor_map.rows if row.kind is Kind.REQUIRED]
    expected = [name for row in required for name in _instances(row, layers)]
    missing = [name for name in expected if name not in present]
    if not missing and not unknown:
        return
    found = []
    if missing:
        found.append(f"{len(missing)} of {len(expected)} missing: {first_names(missing)}")
    if unknown:
        found.append(f"{len(unknown)} that the policy does not know: {first_names(unknown)}")
    raise CheckpointError(
        f"{checkpoint.folder}: the tensors are not those of {tensor_map.policy}: "
        f"{'; '.join(found)}. Check that this is a {tensor_map.policy} checkpoint, saved whole; "
        "no tensor is ever left out silently."
    )


def _instances(row: Row, layers: Mapping[str, int]) -> list[str]:
    count = _placeholder(row)
    if count is None:
        return [row.name]
    # Without any layer, layer 0 is what is missing.
    indices = range(layers.get(count, 1))
    return [_PLACEHOLDER.sub(str(index), row.name) for index in indices]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """A known dimension and where it was read."""

    value: int
    where: str


def _solve(matches: Iterable[_Match], folder: str) -> dict[str, int]:
    """Value of every dimension in the shapes, plain names before products."""
    known: dict[str, _Size] = {}
    axes = []
    for match in matches:
        where = f"'{match.name}' {match.type}"
        if not match.type.dtype.is_float:
            raise CheckpointError(
                f"{folder}: {where}: expected floating point values. Quantised checkpoints are not "
                "read; give the original and let the compiler quantise it."
            )
        if match.type.rank != len(match.row.shape) or 0 in match.type.shape:
            shape = ", ".join(match.row.shape)
            raise CheckpointError(f"{folder}: {where}: expected a shape [{shape}], no size 0.")
        for axis, symbol in enumerate(match.row.shape):
            axes.append((symbol, match.type.shape[axis], f"axis {axis} of {where}"))
    for symbol, size, where in sorted(axes, key=lambda item: "*" in item[0]):
        _unify(symbol, _Size(value=size, where=where), known, folder)
    return {name: size.value for name, size in sorted(known.items())}


def _unify(symbol: str, found: _Size, known: dict[str, _Size], folder: str) -> None:
    """Checks one size against its symbolic form, or learns the one dimension not yet known."""
    factors = symbol.split("*")
    names = [factor for factor in factors if not factor.isdecimal()]
    unknown = [name for name in names if name not in known]
    constant = math.prod(int(factor) for factor in factors if factor.isdecimal())
    product = constant * math.prod(known[name].value for name in names if name in known)
    assert len(unknown) <= 1, f"{symbol} has more than one dimension that no plain shape gives"
    if unknown and found.value % product == 0:
        known[unknown[0]] = _Size(value=found.value // product, where=found.where)
        return
    if not unknown and found.value == product:
        return
    expected = str(product) if symbol == str(product) else f"{symbol} = {product}"
    if unknown:
        expected = f"a multiple of {product}"
    elif names:
        expected += f" ({names[0]} is {known[names[0]].value} by {known[names[0]].where})"
    raise CheckpointError(
        f"{folder}: {found.where} is {found.value}, expected {expected}. "
        "The tensors do not belong to one model; save the checkpoint again."
    )


def _require_equal(
    dims: Mapping[str, int], pairs: tuple[tuple[str, str], ...], folder: str
) -> None:
    for first, second in pairs:
        if dims[first] != dims[second]:
            raise CheckpointError(
                f"{folder}: {first} is {dims[first]} but {second} is {dims[second]}; this policy "
                "needs them equal. The tensors do not belong to one model."
            )
