"""What `vipu` and `vipu-admin` do with partitions."""

from typing import Any

import click

from poprun.texts.stdout import write
from poprun.vipu import model
from poprun.vipu.commands import config_files, nouns
from poprun.vipu.commands.nouns import Table, name_argument, options_of
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views import partition_views as views
from poprun.vipu.commands.views.ipuof_config import ipuof_config
from poprun.vipu.errors import NotActiveError
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.model import Partition
from poprun.vipu.requests import PartitionChange, PartitionRequest
from poprun.vipu.rules import partition_rules

_NAME = name_argument("partition")


def _list(session: Session, verbose: bool) -> None:
    holders = None
    with session.open() as inventory:
        partitions = inventory.list_partitions()
        if verbose or session.as_json:
            reservations = inventory.list_reservations()
            holders = views.holders_of(reservations)
        if session.as_json:
            by_name = views.by_partition(reservations)
            names = {
                cluster: views.names_by_machine(inventory.list_agents(cluster))
                for cluster in {partition.cluster for partition in partitions}
            }
    if session.as_json:
        session.write_json(
            [_value(p, by_name.get(p.name, ()), names[p.cluster]) for p in partitions]
        )
    else:
        is_admin = session.is_admin
        write(views.partition_table(partitions, for_admin=is_admin, holders=holders))


def _get(session: Session, name: str, gcd: int | None, ipuof_configs: bool) -> None:
    if gcd is not None and not ipuof_configs:
        raise click.UsageError("--gcd requires --ipuof-configs. Add it.")
    with session.open() as inventory:
        partition = inventory.get_partition(name)
        agents = inventory.list_agents(partition.cluster)
        if not ipuof_configs:
            reservations = inventory.list_reservations(name)
    names = views.names_by_machine(agents)
    if ipuof_configs:
        gcds = range(partition.num_gcds) if gcd is None else [gcd]
        configs = [ipuof_config(partition, number, agents) for number in gcds]
        session.write_json(configs if len(configs) > 1 else configs[0])
    elif session.as_json:
        session.write_json(_value(partition, reservations, names))
    else:
        write(views.partition_properties(partition, reservations, names))


def _value(*arguments: Any) -> dict[str, Any]:
    return {"partition": views.partition_value(*arguments)}


def _create(session: Session, /, name: str, size: int, **options: Any) -> None:
    server = session.find_server()
    options["num_gcds"] = options["num_gcds"] or options["num_ilds"] or 1
    owner = session.user(server)
    request = PartitionRequest(name=name, size=size, owner=owner, **options)
    partition_rules.check_alone(request, strict=False)
    with session.open(server) as inventory:
        if server is None and not (request.allocation or request.cluster):
            # As for a job: the first partition needs no administrator.
            inventory.ensure_cluster(size, request.num_ilds or 1)
        partition = inventory.create_partition(request)
        _write_config_files(session, inventory, partition)
    if request.sync_type not in (None, partition.sync_type):
        session.warn(
            f"Partition {name} is reconfigurable, so its sync type is "
            f"{partition.sync_type}, not {request.sync_type}."
        )
    _check_active(partition, "created")
    session.report_success("create", "partition", name)


def _update(session: Session, /, name: str, **options: Any) -> None:
    change = PartitionChange(**options)
    if change == PartitionChange():
        raise click.UsageError(
            "There is nothing to change. Give an option such as --size."
        )
    with session.open() as inventory:
        partition = inventory.update_partition(name, change)
        _write_config_files(session, inventory, partition)
    _check_active(partition, "updated")
    session.report_success("update", "partition", name)


def _write_config_files(
    session: Session, inventory: Inventory, partition: Partition
) -> None:
    agents = inventory.list_agents(partition.cluster)
    try:
        config_files.write_config_files(session.environ, partition, agents)
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
    if partition.state is not model.PartitionState.ACTIVE:
        raise NotActiveError(
            f"Partition {partition.name} was {done}, but its state is "
            f"{partition.state.name}, because {partition.reason}. When this is fixed, "
            f"run: vipu reset partition {partition.name}"
        )


def _reset(session: Session, inventory: Inventory, name: str) -> None:
    _check_active(inventory.reset_partition(name), "reset")


def _remove(session: Session, inventory: Inventory, name: str, *, force: bool) -> None:
    inventory.remove_partition(name, force=force)
    try:
        config_files.remove_config_files(session.environ, name)
    except OSError as error:
        session.warn(
            f"The IPUoF configuration files of {name} could not be removed: {error}."
        )


_RECONFIGURABLE_HELP = "Let processes attach to any part of the partition."
# What a partition is like, whether it is made or changed.
_PARTITION_OPTIONS: Table = {
    # It may be any number here: `rules` says which there are.
    "size": ("--size", "The number of IPUs, a power of two.", {"type": int}),
    "num_gcds": ("--num-gcds", "The number of GCDs."),
    "num_replicas": (
        "--gcd-sync-replicas --total-num-replicas",
        "The number of replicas that synchronise, in all GCDs.",
    ),
    "num_ilds": ("--num-ilds", "The number of ILDs."),
    "link_routing": ("--routing", "The routing over IPU-Links."),
    "gateway_routing": ("--gw-routing", "The routing over GW-Links."),
    "sync_type": ("--sync-type", ""),
}
_CREATE_OPTIONS: Table = {
    "reconfigurable": ("--reconfigurable", _RECONFIGURABLE_HELP),
    "allocation": ("--allocation", "Take its IPUs from this allocation."),
    "cluster": ("--cluster", "Take its IPUs from this cluster."),
    "place_index": (
        "--index",
        "The index among the cluster's places of this size. [default: the first free "
        "one]",
        {"type": click.IntRange(min=0)},
    ),
    **_PARTITION_OPTIONS,
}
_UPDATE_OPTIONS: Table = {
    "reconfigurable": (
        *("--reconfigurable/--not-reconfigurable", _RECONFIGURABLE_HELP),
        {"default": None},
    ),
    **_PARTITION_OPTIONS,
}
COMMANDS = (
    nouns.make_command(
        "list partitions",
        "List partitions.",
        _list,
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            help="Show who holds devices, and since when.",
        ),
    ),
    nouns.make_command(
        "get partition",
        "Show a partition and the holders of its devices.",
        _get,
        _NAME,
        click.option(
            "--gcd", type=click.IntRange(min=0), help="Only this GCD's IPUoF JSON."
        ),
        click.option(
            *("--ipuof-configs", "--ipu-configs", "ipuof_configs"),
            is_flag=True,
            help="Write the IPUoF configuration of each GCD as JSON.",
        ),
    ),
    nouns.make_command(
        "create partition",
        "Create a partition. It stays until it is removed.",
        _create,
        _NAME,
        *options_of(PartitionRequest, _CREATE_OPTIONS),
    ),
    nouns.make_command(
        "update partition",
        "Change a partition. Settings that are not given stay as they are.",
        _update,
        _NAME,
        *options_of(PartitionChange, _UPDATE_OPTIONS),
    ),
    nouns.change_command(
        "reset partition", "Configure the IPUs of partitions again.", perform=_reset
    ),
    nouns.change_command(
        "remove partition",
        "Remove partitions, and free their IPUs.",
        {"force": ("--force", "Remove it even if jobs hold its devices.")},
        perform=_remove,
    ),
)
