"""The commands of `vipu` and `vipu-admin` for partitions."""

from typing import Any

import click

from poprun.vipu import model
from poprun.vipu.commands import ipuof_config, views
from poprun.vipu.commands.command_line import INDEX, NAME, command, option
from poprun.vipu.commands.session import Session
from poprun.vipu.errors import NotActiveError
from poprun.vipu.model import (
    Partition,
    PartitionChange,
    PartitionRequest,
    PartitionState,
)
from poprun.vipu.rules import partition_rules

_RECONFIGURABLE_HELP = "Let processes attach to any part of the partition."
_INDEX_HELP = (
    "The index among the cluster's places of this size. [default: the first free one]"
)
# `rules` says which numbers are sizes.
_SIZE = "--size", {"type": int, "metavar": "N"}, "The number of IPUs, a power of two."
_SETTINGS = (
    option("--num-gcds", int, "The number of GCDs."),
    option(
        "--gcd-sync-replicas --total-num-replicas num_replicas",
        int,
        "The number of replicas that synchronise, in all GCDs.",
    ),
    option("--num-ilds", int, "The number of ILDs."),
    option("--routing link_routing", model.LinkRouting, "The routing over IPU-Links."),
    option(
        "--gw-routing gateway_routing",
        model.GatewayRouting,
        "The routing over GW-Links.",
    ),
    option("--sync-type", model.SyncType),
)


@command(
    "list partitions",
    option("-v --verbose", bool, "Show who holds devices, and since when."),
)
def list_partitions(session: Session, verbose: bool) -> object:
    """List partitions."""
    partitions, is_admin = session.inventory.list_partitions(), session.is_admin
    if verbose or session.as_json:
        shown = views.read_partitions(session.inventory, partitions)
    else:
        shown = list(map(views.PartitionUse, partitions))
    if session.as_json:
        return list(map(views.partition_json, shown))
    return views.partition_list(shown, for_admin=is_admin, with_holders=verbose)


@command(
    "get partition",
    option("--gcd", INDEX, "Only this GCD's IPUoF JSON."),
    option(
        "--ipuof-configs --ipu-configs ipuof_configs",
        bool,
        "Write the IPUoF configuration of each GCD as JSON.",
    ),
)
def get_partition(
    session: Session, name: str, gcd: int | None, ipuof_configs: bool
) -> object:
    """Show a partition and the holders of its devices."""
    if gcd is not None and not ipuof_configs:
        raise click.UsageError("--gcd requires --ipuof-configs. Add it.")
    partition = session.inventory.get_partition(name)
    if ipuof_configs:
        agents = session.inventory.list_agents(partition.cluster)
        gcds = range(partition.num_gcds) if gcd is None else [gcd]
        configs = [ipuof_config.config_of(partition, n, agents) for n in gcds]
        return configs if len(configs) > 1 else configs[0]
    (use,) = views.read_partitions(session.inventory, [partition])
    return (views.partition_json if session.as_json else views.partition_text)(use)


@command(
    "create partition",
    option("--reconfigurable", bool, _RECONFIGURABLE_HELP),
    option("--allocation", NAME, "Take its IPUs from this allocation."),
    option("--cluster", NAME, "Take its IPUs from this cluster."),
    option("--index place_index", INDEX, _INDEX_HELP),
    option(*_SIZE, required=True),
    *_SETTINGS,
)
def create_partition(session: Session, name: str, size: int, **options: Any) -> None:
    """Create a partition. It stays until it is removed."""
    options["num_gcds"] = options["num_gcds"] or options["num_ilds"] or 1
    owner = session.user()
    request = PartitionRequest(name=name, size=size, owner=owner, **options)
    partition_rules.check_alone(request, strict=False)
    if not (request.allocation or request.cluster):
        # A job does the same: the first partition needs no administrator.
        session.inventory.ensure_cluster(size, request.num_ilds or 1)
    partition = session.inventory.create_partition(request)
    if request.sync_type not in (None, partition.sync_type):
        session.warn(
            f"Partition {name} is reconfigurable, so its sync type is "
            f"{partition.sync_type}, not {request.sync_type}."
        )
    _write_files(session, partition)
    _check_active(partition, "created")


@command(
    "update partition",
    option(
        "--reconfigurable/--not-reconfigurable", {"default": None}, _RECONFIGURABLE_HELP
    ),
    option(*_SIZE),
    *_SETTINGS,
)
def update_partition(session: Session, name: str, **options: Any) -> None:
    """Change a partition. Settings that are not given stay as they are."""
    change = PartitionChange(**options)
    if change == PartitionChange():
        raise click.UsageError(
            "There is nothing to change. Give an option such as --size."
        )
    partition = session.inventory.update_partition(name, change)
    _write_files(session, partition)
    _check_active(partition, "updated")


@command("reset partition")
def reset_partition(session: Session, name: str) -> None:
    """Configure the IPUs of partitions again."""
    _check_active(session.inventory.reset_partition(name), "reset")


@command(
    "remove partition",
    option("--force", bool, "Remove it even if jobs hold its devices."),
)
def remove_partition(session: Session, name: str, force: bool) -> None:
    """Remove partitions, and free their IPUs."""
    session.inventory.remove_partition(name, force=force)
    try:
        ipuof_config.remove_files(session.environ, name)
    except OSError as error:
        session.warn(
            f"The IPUoF configuration files of {name} could not be removed: {error}."
        )


def _write_files(session: Session, partition: Partition) -> None:
    agents = session.inventory.list_agents(partition.cluster)
    try:
        ipuof_config.write_files(session.environ, partition, agents)
    except OSError as error:
        # The partition can be used without them.
        session.warn(
            f"The IPUoF configuration files of partition {partition.name} cannot be "
            f"written: {error}."
        )


def _check_active(partition: Partition, done: str) -> None:
    """Check that a partition can be used after a change.

    Raises:
        NotActiveError: It cannot.
    """
    if partition.state is not PartitionState.ACTIVE:
        raise NotActiveError(
            f"Partition {partition.name} was {done}, but its state is "
            f"{partition.state.name}, because {partition.reason}. When this is fixed, "
            f"run: vipu reset partition {partition.name}"
        )


COMMANDS = (
    *(list_partitions, get_partition, create_partition),
    *(update_partition, reset_partition, remove_partition),
)
