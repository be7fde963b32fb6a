"""A small bundle, made by hand: graph, plan of three kernels, weights, processing, golden vectors.

    lang_emb = embedding(tokens, @table);  hidden = noise @w^T;  actions = noise + hidden
    doubled = 2 * hidden (report stage)

The kernels are names only; `emulated_kernels.py` runs them on the null driver.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.attributes import (
    EmbeddingAttributes,
    LinearAttributes,
    NoAttributes,
    PatchifyAttributes,
    ScalarAttributes,
)
from policyc.compiler.ir.graph import Graph, Input, Node, Rate, Stage, Value
from policyc.compiler.ir.tensor_file import TensorFile, write_tensors
from policyc.compiler.ir.text import print_graph
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.runtime_min.manifest import (
    FileEntry,
    Manifest,
    Target,
    Tolerance,
    WeightEntry,
    manifest_text,
)
from policyc.runtime_min.plan import (
    Argument,
    Bucket,
    Buffer,
    BufferArgument,
    DescriptorArgument,
    FloatArgument,
    IntegerArgument,
    Kernel,
    Launch,
    NullArgument,
    Parameter,
    Plan,
    WeightArgument,
    plan_text,
)

VIEWS, SLOTS, HORIZON, WIDTH, EMBEDDING, VOCABULARY = 2, 64, 3, 4, 8, 512
ROBOT_WIDTH = 2
BUCKETS = (1, 2)
CAPABILITY = 90
F32, BF16, I32, BOOL = DType.F32, DType.BF16, DType.I32, DType.BOOL


def weights() -> dict[str, Array]:
    generator = np.random.default_rng(0)
    table = generator.standard_normal((VOCABULARY, EMBEDDING)).astype(BF16.numpy)
    return {"table": table, "w": generator.standard_normal((WIDTH, WIDTH)).astype(np.float32)}


def tensors(batch: int = 1, seed: int = 1) -> dict[str, Array]:
    """Valid inputs of the network."""
    generator = np.random.default_rng(seed)
    images = generator.uniform(-1, 1, (batch, VIEWS, 3, 4, 4)).astype(np.float32)
    return {
        "images": images,
        "image_mask": np.ones((batch, VIEWS), np.bool_),
        "tokens": generator.integers(0, VOCABULARY, (batch, SLOTS)).astype(np.int64),
        "token_mask": np.ones((batch, SLOTS), np.bool_),
        "noise": generator.standard_normal((batch, HORIZON, WIDTH)).astype(np.float32),
    }


def expected(inputs: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
    """What the policy computes, straight from the module's formula."""
    stored = weights()
    noise = np.asarray(inputs["noise"], np.float32)
    hidden = noise @ np.asarray(stored["w"], np.float32).T
    table = stored["table"].astype(np.float32)
    lang_emb = table[inputs["tokens"].astype(np.int64)]
    return {
        "lang_emb": lang_emb,
        "hidden": hidden,
        "actions": noise + hidden,
        "doubled": hidden * np.float32(2),
    }


def _value(name: str, dtype: DType, *shape: int) -> Value:
    return Value(name=name, type=TensorType(dtype, shape))


def graph(batch: int) -> Graph:
    inputs = (
        _value("images", F32, batch, VIEWS, 3, 4, 4),
        _value("image_mask", BOOL, batch, VIEWS),
        _value("tokens", I32, batch, SLOTS),
        _value("token_mask", BOOL, batch, SLOTS),
        _value("noise", F32, batch, HORIZON, WIDTH),
    )
    hidden = _value("hidden", F32, batch, HORIZON, WIDTH)
    prompt = (
        Node(
            op="embedding",
            inputs=("tokens", "@table"),
            outputs=(_value("lang_emb", BF16, batch, SLOTS, EMBEDDING),),
            attrs=EmbeddingAttributes(dtype=BF16),
        ),
        *(
            Node(
                op="count_true",
                inputs=(mask,),
                outputs=(_value(f"{mask}.count", I32, batch),),
                attrs=NoAttributes(),
            )
            for mask in ("token_mask", "image_mask")
        ),
        Node(
            op="patchify",
            inputs=("images",),
            outputs=(_value("patches", F32, batch, VIEWS, 4, 12),),
            attrs=PatchifyAttributes(patch=2, columns=12),
        ),
    )
    step = (
        Node(op="linear", inputs=("noise", "@w"), outputs=(hidden,), attrs=LinearAttributes()),
        Node(
            op="add",
            inputs=("noise", "hidden"),
            outputs=(_value("actions", F32, batch, HORIZON, WIDTH),),
            attrs=NoAttributes(),
        ),
    )
    report = Node(
        op="mul_scalar",
        inputs=("hidden",),
        outputs=(_value("doubled", F32, batch, HORIZON, WIDTH),),
        attrs=ScalarAttributes(value=2.0),
    )
    return Graph(
        inputs=tuple(Input(value=item, rate=Rate.PROMPT) for item in inputs),
        weights=(
            _value("@table", BF16, VOCABULARY, EMBEDDING),
            _value("@w", F32, WIDTH, WIDTH),
        ),
        stages=(
            Stage(name="prompt", rate=Rate.PROMPT, nodes=prompt),
            Stage(name="denoise", rate=Rate.STEP, nodes=step),
            Stage(name="report", rate=Rate.REPORT, nodes=(report,)),
        ),
        outputs=("actions",),
        named=("lang_emb", "hidden", "doubled"),
    )


def _parameters(*sizes: int) -> tuple[Parameter, ...]:
    parameters: list[Parameter] = []
    end = 0
    for size in sizes:
        offset = -(-end // min(size, 64)) * min(size, 64)
        parameters.append(Parameter(offset=offset, size=size))
        end = offset + size
    return tuple(parameters)


def kernels() -> dict[str, Kernel]:
    def kernel(entry: str, pdl: bool, *sizes: int) -> Kernel:
        return Kernel(
            file=f"kernels/{CAPABILITY}/{entry}.cubin",
            entry=entry,
            shared_bytes=60000 if pdl else 0,
            block_threads=128,
            cluster=2 if pdl else 1,
            pdl=pdl,
            params=_parameters(*sizes, 8, 8),
        )

    return {
        "embed": kernel("embed_rows", False, 8, 8, 8, 4),
        "linear": kernel("small_linear", True, 8, 8, 8, 4),
        "add": kernel("add_scaled", False, 128, *[4] * 2, *[8] * 2, 8, 8, 4),
    }


def bucket(batch: int) -> Bucket:
    rows = batch * HORIZON
    observation = {
        "images": Buffer(arena="observation", offset=0, dtype=F32, shape=(batch, VIEWS, 3, 4, 4)),
        "image_mask": Buffer(arena="observation", offset=1024, dtype=BOOL, shape=(batch, VIEWS)),
    }
    prompt = {
        "tokens": Buffer(arena="prompt", offset=0, dtype=I32, shape=(batch, SLOTS)),
        "token_mask": Buffer(arena="prompt", offset=1024, dtype=BOOL, shape=(batch, SLOTS)),
    }
    step = (batch, HORIZON, WIDTH)
    noise = Buffer(arena="step", offset=0, dtype=F32, shape=step)
    values = {
        "hidden": Buffer(arena="step", offset=256, dtype=F32, shape=step),
        "actions": Buffer(arena="step", offset=512, dtype=F32, shape=step),
        "lang_emb": Buffer(
            arena="prompt", offset=2048, dtype=BF16, shape=(batch, SLOTS, EMBEDDING)
        ),
    }
    return Bucket(
        arenas={"observation": 2048, "prompt": 4096, "step": 768},
        inputs={**observation, **prompt, "noise": noise},
        values=values,
        launches=_launches(batch, rows),
    )


def _launches(batch: int, rows: int) -> tuple[Launch, ...]:
    def step(offset: int) -> BufferArgument:
        return BufferArgument(arena="step", offset=offset)

    noise = DescriptorArgument(
        base=step(0),
        dtype=F32,
        shape=(rows, WIDTH),
        strides=(WIDTH, 1),
        box=(8, 4),
        swizzle=0,
        element_type=7,
    )
    nulls = (NullArgument(), NullArgument())
    arguments: dict[str, tuple[Argument, ...]] = {
        "embed": (
            BufferArgument(arena="prompt", offset=0),
            WeightArgument(weight="table", offset=0),
            BufferArgument(arena="prompt", offset=2048),
            IntegerArgument(value=batch * SLOTS),
        ),
        "linear": (
            step(0),
            WeightArgument(weight="w", offset=0),
            step(256),
            IntegerArgument(value=rows),
        ),
        "add": (noise, step(256), step(512), FloatArgument(value=1.0)),
    }
    stages = {"embed": "prompt", "linear": "denoise", "add": "denoise"}
    nodes = {"embed": "lang_emb", "linear": "hidden", "add": "actions"}
    return tuple(
        Launch(
            kernel=name,
            grid=(2, 1, 1),
            args=(*arguments[name], *nulls),
            node=nodes[name],
            stage=stages[name],
            origin=f"tests.{name}",
        )
        for name in arguments
    )


def plan(buckets: tuple[int, ...] = BUCKETS) -> Plan:
    return Plan(
        compute_capability=CAPABILITY,
        kernels=kernels(),
        buckets={batch: bucket(batch) for batch in buckets},
    )


def processing(tokenizer: str = "tokenizer.model") -> dict[str, object]:
    identity = {"kind": "identity", "rule": "openpi", "epsilon": 0.0, "statistics": {}}
    return {
        "format": 1,
        "cameras": {
            "slots": ["front", "wrist"],
            "camera_map": {},
            "height": 4,
            "width": 4,
            "resize": "openpi",
            "missing": "keep_slot",
        },
        "state": {"width": 2, "model_width": WIDTH, "required": False, "normalization": identity},
        "prompt": {
            "format": "plain",
            "cleaning": "strip",
            "slots": SLOTS,
            "tokenizer": {"kind": "sentencepiece", "file": tokenizer},
            "bos_id": 2,
            "default": None,
        },
        "actions": {
            "horizon": HORIZON,
            "model_width": WIDTH,
            "width": ROBOT_WIDTH,
            "normalization": identity,
            "delta_mask": None,
            "names": ["x", "y"],
        },
        "notes": [],
    }


def observation() -> dict[str, object]:
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    return {
        "images": {"front": picture, "wrist": picture[::-1].copy()},
        "state": np.zeros(2, np.float32),
        "prompt": "pick up the cup",
    }


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    entries = [
        (name, TensorType(DType.of(array.dtype), array.shape)) for name, array in arrays.items()
    ]
    write_tensors(path, entries, lambda name: arrays[name], {})


def _golden() -> dict[str, Array]:
    inputs = tensors(seed=3)
    pictures = np.random.default_rng(3).integers(0, 256, (1, VIEWS, 4, 4, 3)).astype(np.uint8)
    outputs = expected(inputs)
    del inputs["images"]
    stored = {"images_u8": pictures, **inputs}
    return {
        **{f"in/{name}": array for name, array in stored.items()},
        **{f"out/{name}": outputs[name] for name in ("lang_emb", "hidden", "actions")},
    }


def write_bundle(folder: Path, tokenizer: Path | None = None) -> Path:
    """Write the bundle to `folder`; with a tokenizer it gets a processing description."""
    for name in ("graph", "plan", f"kernels/{CAPABILITY}"):
        (folder / name).mkdir(parents=True)
    for batch in BUCKETS:
        (folder / f"graph/{batch}.ir").write_text(print_graph(graph(batch)))
    (folder / f"plan/{CAPABILITY}.json").write_text(plan_text(plan()))
    for kernel in kernels().values():
        (folder / kernel.file).write_bytes(b"machine code of " + kernel.entry.encode())
    _write_arrays(folder / "weights-00001.safetensors", weights())
    _write_arrays(folder / "golden.safetensors", _golden())
    if tokenizer is not None:
        (folder / "processing.json").write_text(json.dumps(processing()))
        (folder / "tokenizer.model").write_bytes(tokenizer.read_bytes())
    (folder / "manifest.json").write_text(manifest_text(manifest_of(folder)))
    return folder


def manifest_of(folder: Path) -> Manifest:
    """A manifest of what lies in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        str(path.relative_to(folder)): FileEntry(
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(), size_bytes=path.stat().st_size
        )
        for path in paths
        if path.name != "manifest.json"
    }
    file = TensorFile.open(folder / "weights-00001.safetensors")
    limit = Tolerance(max_abs=1e-5, relative_l2=1e-6, origin="float32 sums of 4 products")
    return Manifest(
        policy="toy",
        precision="f32",
        targets=(
            Target(name="h100", compute_capability=CAPABILITY, minimum_driver=12080),
            Target(name="h20", compute_capability=CAPABILITY, minimum_driver=12080),
        ),
        options={"batch_buckets": list(BUCKETS), "views": VIEWS},
        files=files,
        weights={
            name: WeightEntry(
                file="weights-00001.safetensors",
                dtype=file.entries[name].type.dtype,
                shape=file.entries[name].shape,
                offset=file.entries[name].begin,
            )
            for name in file.names
        },
        tolerances=dict.fromkeys(("lang_emb", "hidden", "actions"), limit),
    )


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Change a file and make the manifest agree with it."""
    (folder / name).write_bytes(data)
    (folder / "manifest.json").write_text(manifest_text(manifest_of(folder)))
