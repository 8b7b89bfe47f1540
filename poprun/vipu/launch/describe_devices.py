"""The log lines, the sentence and the target options of a job's devices. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from poprun.vipu.leases import Grant
from poprun.vipu.rules import numbering, routing
from poprun.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Poplar's target options, by where they come from, and merged."""

    partition: Mapping[str, str]
    # None on a partition that is not reconfigurable: it has no parent device.
    device: Mapping[str, str] | None
    merged: Mapping[str, str]


def describe_grant(grant: Grant) -> str:
    """Return a sentence about the partition that a job would be granted."""
    partition = grant.partition
    origin = "It would be made" if grant.created else "It exists"
    parts = [counted(partition.size, "IPU"), counted(partition.num_ilds, "ILD")]
    if partition.reconfigurable:
        parts.append(f"the parent device {grant.parent.id}")
    return f"{origin}: {', '.join(parts)}."


def target_options(grant: Grant, environment: Mapping[str, str]) -> TargetOptions:
    """Return the target options of a job; the environment's count most."""
    partition, count = grant.partition, len(grant.children)
    reported = routing.partition_target_options(partition, count, grant.parent.num_ipus)
    device = None
    if partition.reconfigurable:
        device = routing.device_target_options(partition, grant.parent.num_ipus, count)
    # The options of the caller count most, the device's least.
    merged = {**(device or {}), **reported, **environment}
    return TargetOptions(partition=reported, device=device, merged=merged)


def parent_device_lines(grant: Grant, options: TargetOptions) -> list[tuple[str, str]]:
    """Return the lines about the parent device, each with its level, I or D.

    There are none on a partition that is not reconfigurable.
    """
    if options.device is None:
        return []
    parent, children = grant.parent, grant.children
    size = grant.partition.size
    number = size // parent.num_ipus  # attached or not
    lines = [("D", f"Found {number} devices with {parent.num_ipus} IPUs")]
    # It has the first device that is free, so all before it are in use.
    lines += [
        ("D", f"Failed to attach to device {busy}")
        for busy in range(numbering.first_device(size, parent.num_ipus), parent.id)
    ]
    lines.append(("D", f"Attached to device {parent.id}"))
    count, num_ipus = len(children), children[0].num_ipus
    if count > 1:
        expected = f"{count} children (expected {count})"
        line = f"Found {expected} of device {parent.id} with {num_ipus} IPUs each"
        lines.append(("D", line))
    lines.append(("I", f"Preparing parent device {parent.id}"))
    lines.append(("D", routing.describe_device(parent.id, options.device)))
    return lines
