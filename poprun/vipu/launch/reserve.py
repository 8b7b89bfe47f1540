"""Reserve the partition of a job, in the steps and with the log lines of PopRun.

A server keeps the rules of the original. In the inventory of this user a job that
names no partition always gets one, if there is room for it.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poprun.log import Log
from poprun.vipu import errors, model
from poprun.vipu.launch.values import PartitionOptions, compact_json
from poprun.vipu.leases import Acquisition, Grant
from poprun.vipu.model import PartitionRequest
from poprun.vipu.rules import existing, numbering, partition_rules, routing
from poprun.words import counted

if TYPE_CHECKING:
    from poprun.vipu.inventory.interface import Inventory

# A log line with its level, I or D.
Line = tuple[str, str]
# Between two looks at a partition that is on its way to a state.
POLL_S = 0.05
# Between two attempts to get a partition that is ACTIVE.
ATTEMPT_S = 0.5
# Between two attempts of the job that is next, and two looks of those behind it.
WAIT_POLL_S, QUEUE_POLL_S = 0.3, 1.0
# Errors that may not occur when the job asks again.
_TEMPORARY = (
    errors.InventoryBusyError,
    errors.ServerTimeoutError,
    errors.ServerUnreachableError,
)
# Why a job that names no partition does not get the only one there is.
_UNUSABLE = (errors.InUseError, errors.MismatchError, errors.NotActiveError)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job that needs a partition."""

    options: PartitionOptions
    num_replicas: int
    # The acquisition of a partition that is made for it alone.
    acquisition: Acquisition

    @property
    def num_ipus(self) -> int:
        return self.acquisition.num_children * self.acquisition.ipus_per_child

    def partition(self, name: str) -> PartitionRequest:
        """Return the partition that the job needs, as its options describe it.

        Raises:
            VipuRuleError: No partition is such.
        """
        options = self.options
        request = partition_rules.request_for_job(
            name,
            num_replicas=self.num_replicas,
            ipus_per_replica=self.num_ipus // self.num_replicas,
            num_instances=self.acquisition.num_children,
            num_ilds=options.num_ilds,
            strict=options.server is not None,
        )
        link, gateway = options.link_routing, options.gateway_routing
        sync = options.sync_type
        return replace(
            request,
            link_routing=model.LinkRouting.read(link) if link else None,
            gateway_routing=model.GatewayRouting.read(gateway) if gateway else None,
            sync_type=model.SyncType.read(sync) if sync else None,
            allocation=options.allocation,
            cluster=options.cluster,
            owner=self.acquisition.holder.user,
        )

    def may_use(self, partition: model.Partition) -> bool:
        """Return whether the job may use a partition that it does not name.

        A partition made for another job is removed with that job.
        """
        return (
            partition.lease is None
            and self.options.allocation in (None, partition.allocation)
            and self.options.cluster in (None, partition.cluster)
        )


def reserve(
    inventory: "Inventory",
    job: JobRequest,
    log: Log,
    show: Callable[[str], None] = lambda text: None,
) -> Grant:
    """Reserve the devices of a job, and make or change its partition if needed.

    Args:
        show: Is called with the reason after each attempt, while the job waits.

    Raises:
        VipuError: It cannot have them; the sentence says why, and what would help.
    """
    options = job.options
    inventory.ensure_cluster(job.num_ipus, options.num_ilds or 1)
    steps = _Steps(inventory, job, log)
    if options.wait_s is None:
        return steps.reserve()
    try:
        return steps.reserve_in_turn(options.wait_s, show)
    except BaseException:
        with suppress(errors.VipuError):
            inventory.release(job.acquisition.lease)
        raise


def preview(inventory: "Inventory", job: JobRequest) -> Grant:
    """Return what a job would be given now; a server is only asked what it would do.

    Args:
        inventory: A server's, or a copy of the embedded one, which is changed.

    Raises:
        VipuError: It would be given nothing.
    """
    job = replace(job, options=replace(job.options, wait_s=None, attempts=1))
    log = Log(0, lambda text: None)
    if job.options.server is None:
        return reserve(inventory, job, log)
    return _Steps(inventory, job, log, changes_nothing=True).reserve()


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps in which one job gets its devices."""

    inventory: "Inventory"
    job: JobRequest
    log: Log
    changes_nothing: bool = False

    def reserve_in_turn(self, wait_s: float, show: Callable[[str], None]) -> Grant:
        """Reserve the devices when they are free and no other job is before it.

        Raises:
            VipuError: The job cannot have them, or not in this time.
        """
        job, log, began = self.job, self.log, time.monotonic()
        has_waited = False
        name = job.options.name or job.acquisition.partition
        create = job.partition(name)
        acquisition = replace(job.acquisition, partition=name, create=create)
        while True:
            lines: list[str] = []
            reason, pause_s = "", WAIT_POLL_S
            try:
                turn = self.inventory.wait_in_queue(acquisition)
                reason = turn.reason
                if turn.is_next:
                    grant = replace(self, log=log.held_back(lines)).reserve()
                    log.write(lines)
                    return grant
                pause_s = QUEUE_POLL_S
            except (errors.InUseError, errors.NoSpaceError) as error:
                reason = reason or str(error)
            except _TEMPORARY as error:
                if not has_waited:
                    raise
                reason = str(error)  # it may come back
            has_waited = True
            if time.monotonic() - began >= wait_s:
                raise errors.InUseError(
                    f"The job has waited for its IPUs for the {wait_s:g} s of "
                    f"--wait-for-ipus. {reason}"
                )
            show(reason)
            time.sleep(min(pause_s, max(0.0, began + wait_s - time.monotonic())))

    def reserve(self) -> Grant:
        name = self.job.options.name
        if name is None:
            return self._reserve_unnamed()
        self._log_connection()
        try:
            partition = self.inventory.get_partition(name)
        except errors.UnknownNameError:
            return self._create(name)
        return self._use(partition)

    def _reserve_unnamed(self) -> Grant:
        server, batch_names = self.job.options.server, self.job.options.batch_names
        partitions = list(filter(self.job.may_use, self.inventory.list_partitions()))
        of_batch_job = [p for p in partitions if p.name in batch_names]
        reason = "is the only one available"
        belongs_to_batch_job = len(partitions) > 1 and len(of_batch_job) == 1
        if belongs_to_batch_job:
            partitions, reason = of_batch_job, "belongs to the Slurm job"
        elif len(partitions) > 1 and server is not None:
            names = ", ".join(p.name for p in partitions[:8])
            more = f" and {len(partitions) - 8} more" if len(partitions) > 8 else ""
            raise errors.VipuRuleError(
                f"There are {len(partitions)} partitions on the V-IPU server "
                f"{server}: {names}{more}. Name the one to use with --vipu-partition."
            )
        if len(partitions) != 1:
            self._log_connection()
            return self._create(self.job.acquisition.partition)
        [partition] = partitions
        self.log.info(f"Using V-IPU partition {partition.name} as it {reason}")
        self._log_connection()
        try:
            return self._use(partition)
        except _UNUSABLE as error:
            if belongs_to_batch_job or server is not None:
                raise
            refusal = error
        self.log.info(f"{refusal} The job gets a new partition.")
        try:
            return self._create(self.job.acquisition.partition)
        except errors.NoSpaceError as error:
            if self.job.options.wait_s is not None:
                raise  # there may be room later
            # Most likely the partition that does not do has the IPUs.
            refusal.add_note(f"The job cannot get a new partition either: {error}")
            raise refusal from None

    def _create(self, name: str) -> Grant:
        request = self.job.partition(name)
        needed = self.job.num_ipus
        if request.size > needed:
            self.log.info(
                f"The job needs {counted(needed, 'IPU')}, and its partition {name} has "
                f"{request.size}: the size of a partition is a power of two"
            )
        grant = self._acquire(name, request)
        self._log_final_state(grant.partition)
        return grant

    def _use(self, partition: model.Partition) -> Grant:
        name, options, log = partition.name, self.job.options, self.log
        log.debug(f"Status for partition {name}: OK (error 0)")
        log.info(
            f"Partition {name} already exists and is in state: {partition.state.in_api}"
        )
        request = self.job.partition(name)
        change = existing.find_change(partition, request, update=options.update)
        resets = options.reset
        if resets is None:
            resets = not partition.reconfigurable
        if self.changes_nothing:
            if change is not None:
                raise errors.VipuRuleError(
                    f"Partition {name} would be updated first, and only the server "
                    "can tell what it would be then."
                )
            return self._acquire(name, None)
        if change is not None:
            updated = self.inventory.update_partition(name, change)
            changes = existing.describe_update(partition, updated)
            log.info(f"Partition {name} was updated: {changes}")
            partition = updated
        if resets:
            partition = self.inventory.reset_partition(name)
        if change is not None or resets or _is_pending(partition):
            self._poll(partition)
        grant = self._acquire(name, None)
        if partition.reconfigurable:
            log.debug(f"The reconfigurable partition {name} is OK")
        return grant

    def _acquire(self, name: str, create: PartitionRequest | None) -> Grant:
        acquisition = replace(self.job.acquisition, partition=name, create=create)
        if self.changes_nothing:
            return self.inventory.try_acquire(acquisition)
        attempts = self.job.options.attempts
        attempt = 1
        while True:
            try:
                return self.inventory.acquire(acquisition)
            except errors.NotActiveError as error:
                if attempts == 1:
                    error.add_note("--vipu-partition-attempts=3 tries three times.")
                if attempt == attempts:
                    raise
                self.log.info(f"Attempt {attempt} of {attempts} failed: {error}")
            attempt += 1
            time.sleep(ATTEMPT_S)
            if create is None:
                self._poll(self.inventory.reset_partition(name))

    def _poll(self, partition: model.Partition) -> None:
        """Wait until a partition is in a final state, and log that."""
        limit = time.monotonic() + self.job.options.timeout_s
        while _is_pending(partition) and time.monotonic() < limit:
            time.sleep(POLL_S)
            partition = self.inventory.get_partition(partition.name)
        self._log_final_state(partition)

    def _log_final_state(self, partition: model.Partition) -> None:
        state = partition.state.in_api
        self.log.debug(f"Done polling, final state of {partition.name}: {state}")

    def _log_connection(self) -> None:
        if self.job.options.server is not None:
            self.log.debug(f"Connecting to {self.job.options.server}")


def _is_pending(partition: model.Partition) -> bool:
    return partition.state is model.PartitionState.PENDING


def describe_grant(grant: Grant) -> str:
    """Return a sentence about the partition that a job would be granted."""
    partition = grant.partition
    origin = "It would be made" if grant.created else "It exists"
    parts = [counted(partition.size, "IPU"), counted(partition.num_ilds, "ILD")]
    if partition.reconfigurable:
        parts.append(f"the parent device {grant.parent.id}")
    return f"{origin}: {', '.join(parts)}."


def describe_devices(
    grant: Grant, environment: Mapping[str, str]
) -> tuple[dict[str, str], list[Line]]:
    """Return Poplar's target options for a job, and the log lines about its devices.

    Args:
        environment: The target options of the caller's environment.
    """
    partition, count = grant.partition, len(grant.children)
    num_ipus = grant.parent.num_ipus
    reported = routing.partition_target_options(partition, count, num_ipus)
    lines = [
        ("D", f"Target options from environment: {compact_json(environment)}"),
        ("D", f"Target options from V-IPU partition: {compact_json(reported)}"),
    ]
    device: dict[str, str] = {}
    if partition.reconfigurable:  # no other has a parent device
        device = routing.device_target_options(partition, num_ipus, count)
        lines += _parent_device_lines(grant, device)
        text = compact_json(device)
        lines.append(("D", f"Target options from Poplar device: {text}"))
    # The options of the caller count most, the device's least.
    merged = {**device, **reported, **environment}
    lines.append(("D", f"Using target options: {compact_json(merged)}"))
    return merged, lines


def _parent_device_lines(grant: Grant, options: Mapping[str, str]) -> list[Line]:
    """Return the lines about the parent device with its target options."""
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
    lines.append(("D", routing.describe_device(parent.id, options)))
    return lines
