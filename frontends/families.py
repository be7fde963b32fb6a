"""The model families that can be compiled."""

from __future__ import annotations

from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.errors import CheckpointError
from policyc.frontends.pi05_policy import PI05
from policyc.frontends.policy import Family

FAMILIES: tuple[Family, ...] = (PI05,)


def family_of(checkpoint: Checkpoint) -> Family:
    """The family whose checkpoint this is; raises CheckpointError that lists the known ones."""
    for family in FAMILIES:
        if family.is_family_of(checkpoint):
            return family
    known = "; ".join(f"{item.name} ({item.description})" for item in FAMILIES)
    raise CheckpointError(
        f"{checkpoint.folder}: the checkpoint belongs to no known model family. Known: {known}. "
        "`policyc models` says what each needs."
    )
