"""Reserve the partition of a job, in the steps and with the log lines of PopRun.

A server keeps the rules of the original. In the inventory of this user a job that
names no partition always gets one, if there is room for it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from poprun.log import Log
from poprun.vipu.errors import (
    InUseError,
    InventoryBusyError,
    MismatchError,
    NoSpaceError,
    NotActiveError,
    ServerTimeoutError,
    ServerUnreachableError,
    UnknownNameError,
    VipuError,
    VipuRuleError,
)
from poprun.vipu.launch.values import JobShape, PartitionOptions
from poprun.vipu.leases import Grant, Holder
from poprun.vipu.model import (
    GatewayRouting,
    LinkRouting,
    Partition,
    PartitionState,
    SyncType,
)
from poprun.vipu.requests import Acquisition, PartitionRequest
from poprun.vipu.rules import existing, partition_rules
from poprun.vipu.rules.partition_rules import counted

if TYPE_CHECKING:
    from poprun.vipu.inventory.interface import Inventory

# Between two looks at a partition that is on its way to a state.
POLL_S = 0.05
# Between two attempts to get a partition that is ACTIVE.
ATTEMPT_S = 0.5
# Between two attempts of the job that is next, and two looks of those behind it.
WAIT_POLL_S, QUEUE_POLL_S = 0.3, 1.0


class Asked(NamedTuple):
    """A job that asks for a partition."""

    options: PartitionOptions
    shape: JobShape
    holder: Holder
    # The id that its lease will have.
    lease: str
    # What its partition is named if it gets one of its own.
    own_name: str


def reserve(
    inventory: "Inventory",
    asked: Asked,
    log: Log,
    show: Callable[[str], None] = lambda text: None,
) -> Grant:
    """Reserve the devices of a job, and make or change its partition if needed.

    Args:
        show: Is called with why the job waits, each time that it is still so.

    Raises:
        VipuError: It cannot have them; the sentence says why, and what would help.
    """
    options = asked.options
    if options.server is None:
        ilds = options.num_ilds or 1
        inventory.ensure_cluster(asked.shape.num_ipus, ilds)
    if options.wait_s is None:
        return _reserve_now(inventory, asked, log)
    try:
        return _reserve_in_turn(inventory, asked, options.wait_s, log, show)
    except BaseException:
        with suppress(VipuError):
            inventory.release(asked.lease)
        raise


def _reserve_in_turn(
    inventory: "Inventory",
    asked: Asked,
    wait_s: float,
    log: Log,
    show: Callable[[str], None],
) -> Grant:
    """Reserve the devices of a job when they are free and no other job is before it.

    Raises:
        VipuError: It cannot have them, or not in this time.
    """
    began = time.monotonic()
    has_waited = False
    name = asked.options.name or asked.own_name
    acquisition = _acquisition(asked, name, make_request(asked, name))
    while True:
        lines: list[str] = []
        why, pause_s = "", WAIT_POLL_S
        try:
            turn = inventory.wait_in_queue(acquisition)
            why = turn.reason
            if turn.is_next:
                grant = _reserve_now(inventory, asked, log.held_back(lines))
                log.write(lines)
                return grant
            pause_s = QUEUE_POLL_S
        except (InUseError, NoSpaceError) as error:
            why = why or str(error)
        except (
            InventoryBusyError,
            ServerTimeoutError,
            ServerUnreachableError,
        ) as error:
            if not has_waited:
                raise
            why = str(error)  # it may come back
        has_waited = True
        if time.monotonic() - began >= wait_s:
            raise InUseError(
                f"The job has waited for its IPUs for the {wait_s:g} s of "
                f"--wait-for-ipus. {why}"
            )
        show(why)
        time.sleep(min(pause_s, max(0.0, began + wait_s - time.monotonic())))


def _reserve_now(inventory: "Inventory", asked: Asked, log: Log) -> Grant:
    options = asked.options
    if options.name is None:
        return _reserve_unnamed(inventory, asked, log)
    _log_connection(options, log)
    try:
        partition = inventory.get_partition(options.name)
    except UnknownNameError:
        return _create(inventory, asked, options.name, log)
    return _use(inventory, asked, partition, log)


def make_request(asked: Asked, name: str) -> PartitionRequest:
    """Return the partition that a job needs, as its options describe it.

    Raises:
        VipuRuleError: No partition is such.
    """
    options, shape = asked.options, asked.shape
    request = partition_rules.request_for_job(
        name,
        num_replicas=shape.num_replicas,
        ipus_per_replica=shape.ipus_per_replica,
        num_instances=shape.num_instances,
        num_ilds=options.num_ilds,
        strict=options.server is not None,
    )
    link, gateway, sync = (
        options.link_routing,
        options.gateway_routing,
        options.sync_type,
    )
    return request._replace(
        link_routing=None if link is None else LinkRouting.read(link),
        gateway_routing=None if gateway is None else GatewayRouting.read(gateway),
        sync_type=None if sync is None else SyncType.read(sync),
        allocation=options.allocation,
        cluster=options.cluster,
        owner=asked.holder.user,
    )


def _reserve_unnamed(inventory: "Inventory", asked: Asked, log: Log) -> Grant:
    options = asked.options
    partitions = [p for p in inventory.list_partitions() if _is_usable(p, options)]
    if len(partitions) > 1 and options.server is not None:
        names = ", ".join(p.name for p in partitions[:8])
        more = f" and {len(partitions) - 8} more" if len(partitions) > 8 else ""
        raise VipuRuleError(
            f"There are {len(partitions)} partitions on the V-IPU server "
            f"{options.server}: {names}{more}. Name the one to use with "
            "--vipu-partition."
        )
    if len(partitions) != 1:
        _log_connection(options, log)
        return _create(inventory, asked, asked.own_name, log)
    [partition] = partitions
    name = partition.name
    log.info(f"Using V-IPU partition {name} as it is the only one available")
    _log_connection(options, log)
    try:
        return _use(inventory, asked, partition, log)
    except (InUseError, MismatchError, NotActiveError) as error:
        if options.server is not None:
            raise
        log.info(f"{error} The job gets a partition of its own.")
        return _create_instead(inventory, asked, error, log)


def _create_instead(
    inventory: "Inventory", asked: Asked, reason: VipuError, log: Log
) -> Grant:
    try:
        return _create(inventory, asked, asked.own_name, log)
    except NoSpaceError as full:
        if asked.options.wait_s is not None:
            raise  # there may be room later
        # Most likely the partition that does not do has the IPUs.
        reason.add_note(f"The job gets no partition of its own either: {full}")
        raise reason from None


def _is_usable(partition: Partition, options: PartitionOptions) -> bool:
    """Return whether a job may use a partition that it does not name.

    One that was made for another job goes with that.
    """
    return (
        partition.lease is None
        and options.allocation in (None, partition.allocation)
        and options.cluster in (None, partition.cluster)
    )


def _create(inventory: "Inventory", asked: Asked, name: str, log: Log) -> Grant:
    request = make_request(asked, name)
    needed = asked.shape.num_ipus
    if request.size > needed:
        log.info(
            f"The job needs {counted(needed, 'IPU')}, and its partition {name} "
            f"has {request.size}: a partition has a power of two of them"
        )
    grant = _acquire(inventory, asked, name, request, log)
    _log_final_state(grant.partition, log)
    return grant


def _use(inventory: "Inventory", asked: Asked, partition: Partition, log: Log) -> Grant:
    name, options = partition.name, asked.options
    log.debug(f"Status for partition {name}: OK (error 0)")
    log.info(
        f"Partition {name} already exists and is in state: {partition.state.in_api}"
    )
    request = make_request(asked, name)
    todo = existing.prepare(
        partition, request, update=options.update, reset=options.reset
    )
    if todo.change is not None:
        updated = inventory.update_partition(name, todo.change)
        changes = existing.describe_update(partition, updated)
        log.info(f"Partition {name} was updated: {changes}")
        partition = updated
    if todo.reset:
        partition = inventory.reset_partition(name)
    if todo.change is not None or todo.reset or not _is_final(partition):
        partition = _poll(inventory, partition, options.timeout_s)
        _log_final_state(partition, log)
    grant = _acquire(inventory, asked, name, None, log)
    if partition.reconfigurable:
        log.debug(f"The reconfigurable partition {name} is OK")
    return grant


def _acquire(
    inventory: "Inventory",
    asked: Asked,
    name: str,
    create: PartitionRequest | None,
    log: Log,
) -> Grant:
    options = asked.options
    acquisition = _acquisition(asked, name, create)
    attempt = 1
    while True:
        try:
            return inventory.acquire(acquisition)
        except NotActiveError as error:
            if attempt >= options.attempts:
                if options.attempts == 1:
                    error.add_note("--vipu-partition-attempts=3 tries three times.")
                raise
            log.info(f"Attempt {attempt} of {options.attempts} failed: {error}")
        attempt += 1
        time.sleep(ATTEMPT_S)
        if create is None:
            partition = inventory.reset_partition(name)
            _log_final_state(_poll(inventory, partition, options.timeout_s), log)


def _acquisition(
    asked: Asked, name: str, create: PartitionRequest | None
) -> Acquisition:
    return Acquisition(
        holder=asked.holder,
        partition=name,
        num_children=asked.shape.num_instances,
        ipus_per_child=asked.shape.ipus_per_instance,
        create=create,
        remove=asked.options.remove,
        lease=asked.lease,
    )


def _poll(inventory: "Inventory", partition: Partition, timeout_s: float) -> Partition:
    limit = time.monotonic() + timeout_s
    while not _is_final(partition) and time.monotonic() < limit:
        time.sleep(POLL_S)
        partition = inventory.get_partition(partition.name)
    return partition


def _is_final(partition: Partition) -> bool:
    return partition.state is not PartitionState.PENDING


def _log_final_state(partition: Partition, log: Log) -> None:
    state = partition.state.in_api
    log.debug(f"Done polling, final state of {partition.name}: {state}")


def _log_connection(options: PartitionOptions, log: Log) -> None:
    if options.server is not None:
        log.debug(f"Connecting to {options.server}")
