"""What a bundle or a target is, as plain records for tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from policyc.profiles.loader import known_targets, load_profile
from policyc.runtime_min.bundle import PROCESSING_NAME, Bundle
from policyc.runtime_min.manifest import capability_text
from policyc.runtime_min.plan import Bucket, Plan
from policyc.runtime_min.processing import Processing

CPU_TARGET = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCount:
    """How often a kernel is launched in a stage of one inference."""

    stage: str
    kernel: str
    entry: str
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDescription:
    """The plan of one compute capability and batch size. `arenas`: rate -> bytes."""

    compute_capability: str
    batch: int
    launches: int
    arenas: Mapping[str, int]
    kernels: tuple[KernelCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotInterface:
    """What the robot hands in and gets, from the processing description."""

    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    state_width: int
    state_required: bool
    prompt_slots: int
    default_prompt: str | None
    action_names: tuple[str, ...]
    horizon: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleDescription:
    """A bundle. `sizes`: kind of file -> bytes; `robot` None: no processing description."""

    path: str
    policy: str
    precision: str
    format_version: int
    targets: Mapping[str, str]
    options: Mapping[str, object]
    sizes: Mapping[str, int]
    weights: int
    tolerances: Mapping[str, Mapping[str, object]]
    provenance: Mapping[str, object]
    robot: RobotInterface | None
    plans: tuple[PlanDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDescription:
    """A row of `policyc targets`; figures are those of the profile, None for the CPU."""

    name: str
    device: str
    compute_capability: str | None
    sm_count: int | None
    memory_bytes: int | None
    bandwidth_bytes_per_s: float | None
    measured_choices: int
    modelled_choices: int


def describe_bundle(bundle: Bundle) -> BundleDescription:
    """Reads manifest, plans and processing description of an opened bundle."""
    manifest = bundle.manifest
    return BundleDescription(
        path=str(bundle.folder),
        policy=manifest.policy,
        precision=manifest.precision,
        format_version=manifest.version,
        targets={
            target.name: capability_text(target.compute_capability) for target in manifest.targets
        },
        options=dict(manifest.options),
        sizes=_sizes(bundle),
        weights=len(manifest.weights),
        tolerances={name: asdict(limits) for name, limits in manifest.tolerances.items()},
        provenance=dict(manifest.provenance),
        robot=_robot(bundle),
        plans=tuple(
            described
            for capability in manifest.compute_capabilities
            for described in describe_plan(bundle.plan(capability))
        ),
    )


def describe_plan(plan: Plan) -> tuple[PlanDescription, ...]:
    """One description a batch size, ascending."""
    return tuple(
        PlanDescription(
            compute_capability=capability_text(plan.compute_capability),
            batch=batch,
            launches=len(bucket.launches),
            arenas=dict(bucket.arenas),
            kernels=_kernel_counts(plan, bucket),
        )
        for batch, bucket in sorted(plan.buckets.items())
    )


def describe_targets() -> tuple[TargetDescription, ...]:
    """Every profile, and the CPU, which takes no GPU code."""
    rows = [_cpu()]
    for name in known_targets():
        profile = load_profile(name)
        measured = sum(choice.how == "measured" for choice in profile.choices.values())
        rows.append(
            TargetDescription(
                name=name,
                device=profile.name,
                compute_capability=capability_text(profile.compute_capability),
                sm_count=profile.sm_count,
                memory_bytes=profile.memory_bytes,
                bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s,
                measured_choices=measured,
                modelled_choices=len(profile.choices) - measured,
            )
        )
    return tuple(rows)


def to_json(description: BundleDescription) -> dict[str, object]:
    """As plain values, keys as in the record."""
    return asdict(description)


def _cpu() -> TargetDescription:
    return TargetDescription(
        name=CPU_TARGET,
        device="any CPU: the numpy interpreter, no GPU code",
        compute_capability=None,
        sm_count=None,
        memory_bytes=None,
        bandwidth_bytes_per_s=None,
        measured_choices=0,
        modelled_choices=0,
    )


def _kernel_counts(plan: Plan, bucket: Bucket) -> tuple[KernelCount, ...]:
    """In order of first launch."""
    counts = Counter((launch.stage, launch.kernel) for launch in bucket.launches)
    return tuple(
        KernelCount(stage=stage, kernel=kernel, entry=plan.kernels[kernel].entry, launches=launches)
        for (stage, kernel), launches in counts.items()
    )


def _sizes(bundle: Bundle) -> dict[str, int]:
    """Bytes by the first part of the file name (`kernels`, `weights-00001.safetensors`)."""
    sizes: Counter[str] = Counter()
    for name, entry in bundle.manifest.files.items():
        sizes[name.split("/")[0]] += entry.size_bytes
    return dict(sorted(sizes.items()))


def _robot(bundle: Bundle) -> RobotInterface | None:
    if not bundle.has(PROCESSING_NAME):
        return None
    description = Processing.load(bundle.folder).description
    return RobotInterface(
        cameras=description.cameras.names,
        image_size=(description.cameras.height, description.cameras.width),
        state_width=description.state.width,
        state_required=description.state.required,
        prompt_slots=description.prompt.slots,
        default_prompt=description.prompt.default,
        action_names=description.actions.names,
        horizon=description.actions.horizon,
        notes=description.notes,
    )
