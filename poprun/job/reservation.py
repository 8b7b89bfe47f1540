"""Reserve the IPUs of a job before it starts, and have them released when it ends.

Request -> the granted partition, and its holder. A job that asks for no
IPUs and can get no inventory runs without them.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from poprun.helpers.end_actions import EndActions, RunCommand, run_command
from poprun.job.values import Job, Resource
from poprun.log import Log
from poprun.output.phase_line import PhaseLine
from poprun.plan import partition
from poprun.plan.values import HostServers, PartitionVariables, Request
from poprun.users import user_name
from poprun.vipu import liveness
from poprun.vipu.errors import (
    InventoryBusyError,
    InventoryError,
    NoSpaceError,
    ServerError,
    UnknownNameError,
    VipuError,
)
from poprun.vipu.inventory.location import VARIABLE
from poprun.vipu.launch import reserve as launch_reserve
from poprun.vipu.launch.held_devices import HeldDevices
from poprun.vipu.launch.reserve import (
    JobRequest,
    describe_devices,
    describe_grant,
)
from poprun.vipu.launch.values import PartitionOptions
from poprun.vipu.leases import PARENT, Acquisition, Grant, Holder
from poprun.vipu.model import Cluster
from poprun.vipu.opening import open_inventory

if TYPE_CHECKING:
    from poprun.vipu.inventory.interface import Inventory

RELEASE = os.path.join(
    os.path.abspath(__file__).rpartition("/job/")[0], "vipu", "release.py"
)
# The caller's variables that the command to release a lease needs.
FOR_RELEASE = ("HOME", "PATH", "SSL_CERT_FILE", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
# By these, or by a configuration file, it finds the access key for a server.
CLI_VARIABLES = "VIPU_CLI_"
# How long a job that runs may wait for an answer, in seconds.
SOON_S = 2
# How long it may take besides what it waits for the inventory.
RELEASE_START_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReservation:
    """The IPUs of a job; nothing if it runs without."""

    partition: PartitionVariables | None = None
    devices: HeldDevices | None = None
    # The same as a resource of the job.
    resource: Resource | None = None
    # The log lines about its devices, each with its level, I or D.
    lines: tuple[tuple[str, str], ...] = ()

    def with_devices(self, job: Job) -> Job:
        """Return a job with its devices, which are released when it ends."""
        resources = filter(None, [self.resource])
        return replace(
            job, job_resources=[*job.job_resources, *resources], devices=self.devices
        )

    def cancel(self, tell_guard: Callable[[bytes], None]) -> None:
        """Release the IPUs of a job that does not start after all."""
        if self.resource and self.resource.undo and self.resource.undo():
            tell_guard(EndActions().withdraw(self.resource.end_action))


class _Waiting:
    """Says what a job waits for: a line for each change."""

    def __init__(self, log: Log, phase_line: PhaseLine) -> None:
        self._log = log
        self._phase_line = phase_line
        self._last = ""

    def show(self, why: str) -> None:
        if why != self._last:
            self._log.say(f"waiting for IPUs: {why}")
            self._last = why
        self._phase_line.show("waiting for IPUs")


def reserve(
    request: Request,
    environ: Mapping[str, str],
    tell_guard: Callable[[bytes], None],
    guard_pid: int,
    log: Log,
    phase_line: PhaseLine,
) -> DeviceReservation:
    """Reserve the IPUs that a job asks for.

    Args:
        tell_guard: Sends a message to the guard, which releases them if poprun dies.

    Raises:
        VipuError: It cannot have them.
    """
    options = request.partition_options
    if options is None:
        return DeviceReservation()
    phase_line.show("allocating the partition")
    try:
        return _reserve(
            request, options, environ, tell_guard, guard_pid, log, phase_line
        )
    except InventoryError as error:
        if isinstance(error, InventoryBusyError) and options.server is None:
            error.add_note("Use --vipu-server-timeout to wait longer.")
        if request.needs_ipus or options.server is not None:
            error.add_note("Use --offline-mode=yes to run the job without IPUs.")
            raise
        log.warn(f"The job runs in offline mode, without IPUs. {error}")
        return DeviceReservation()
    except NoSpaceError as error:
        _add_ways_out(error, request, options)
        raise


def _add_ways_out(
    error: NoSpaceError, request: Request, options: PartitionOptions
) -> None:
    """Add hints to the error of a job for which too few IPUs are free."""
    if options.wait_s is None:
        error.add_note("Use --wait-for-ipus to wait until they are free.")
    places = "--vipu-cluster and --vipu-allocation say where a partition is created"
    existing = ", and --vipu-partition can name one that exists"
    error.add_note(f"{places}{existing if options.name is None else ''}.")
    if not request.needs_ipus:
        error.add_note("Add --offline-mode=yes to run without IPUs.")


def find_host_servers(
    options: PartitionOptions, environ: Mapping[str, str], num_ipus: int
) -> HostServers | None:
    """Return the host servers of the cluster that a job gets its IPUs from.

    None if the cluster names none, or is not known before the job has its IPUs.
    """
    try:
        with closing(_open(options, environ, is_copy=True)) as inventory:
            cluster = _cluster_of(inventory, options, num_ipus)
    except VipuError:
        return None  # `reserve` reports it
    if cluster is None or not cluster.hosts:
        return None
    return HostServers(
        names=cluster.hosts, ipus_per_host=cluster.size // len(cluster.hosts)
    )


def _cluster_of(
    inventory: "Inventory", options: PartitionOptions, num_ipus: int
) -> Cluster | None:
    if options.name is not None:
        with suppress(UnknownNameError):
            partition = inventory.get_partition(options.name)
            return inventory.get_cluster(partition.cluster)
    if options.cluster is not None:
        return inventory.get_cluster(options.cluster)
    if options.allocation is not None:
        allocation = inventory.get_allocation(options.allocation)
        return inventory.get_cluster(allocation.cluster)
    large = [each for each in inventory.list_clusters() if each.size >= num_ipus]
    return large[0] if len(large) == 1 else None


def preview(
    request: Request, environ: Mapping[str, str]
) -> tuple[PartitionVariables | None, str]:
    """Return the partition that a job would get now, and a sentence about it.

    Nothing is reserved or changed. If the job would get none, the partition is the one
    that it asks for.
    """
    options = request.partition_options
    if options is None:
        return None, ""
    expected = partition.expected_variables(options, request.identity)
    try:
        with closing(_open(options, environ, is_copy=True)) as inventory:
            grant = launch_reserve.preview(inventory, _job_request(request, options))
    except (InventoryError, ServerError) as error:
        if request.needs_ipus or options.server is not None:
            return expected, f"V-IPU cannot be queried: {error}"
        return None, f"The job would run in offline mode, without IPUs. {error}"
    except VipuError as error:
        return expected, f"The request would be refused now: {error}"
    granted, _ = _describe(grant, request, options)
    return granted, describe_grant(grant)


def refusal_of_more(request: Request, environ: Mapping[str, str]) -> str:
    """Return why a job cannot have the IPUs of a request besides those it holds.

    It is asked while the job runs, so V-IPU has to answer soon.
    """
    options = request.partition_options
    if options is None:
        return ""
    if options.name is not None:
        return f"its partition {options.name} has the size that it has"
    options = replace(options, timeout_s=min(options.timeout_s, SOON_S))
    try:
        with closing(_open(options, environ, is_copy=True)) as inventory:
            launch_reserve.preview(inventory, _job_request(request, options))
    except VipuError as error:
        return str(error)
    return ""


def _reserve(
    request: Request,
    options: PartitionOptions,
    environ: Mapping[str, str],
    tell_guard: Callable[[bytes], None],
    guard_pid: int,
    log: Log,
    phase_line: PhaseLine,
) -> DeviceReservation:
    _log_server(options, log)
    open_again = partial(_open, options, environ)
    inventory = open_again()
    job = _job_request(request, options)
    end_action = _end_action(job, inventory.location, environ)
    # Before anything is reserved: poprun may be killed at any time.
    tell_guard(EndActions().register(end_action))
    try:
        show = _Waiting(log, phase_line).show
        grant = launch_reserve.reserve(inventory, job, log, show)
    except BaseException:
        inventory.close()
        tell_guard(EndActions().withdraw(end_action))
        raise
    devices = HeldDevices(open_again, grant, options.timeout_s)
    # They are reserved already: there is nothing to make.
    resource = Resource(make=lambda: None, end_action=end_action, undo=devices.release)
    reservation = DeviceReservation(devices=devices, resource=resource)
    try:
        # The supervisor replaces a guard that has died.
        with suppress(ProcessLookupError):
            inventory.attach(grant.lease.id, PARENT, liveness.identify(guard_pid))
        inventory.close()
        granted, lines = _describe(grant, request, options)
    except BaseException:
        reservation.cancel(tell_guard)
        raise
    return replace(reservation, partition=granted, lines=lines)


def _log_server(options: PartitionOptions, log: Log) -> None:
    server = options.server
    if server is not None and server.origin != "option":
        # A path is the configuration file of the vipu command.
        origin = "'vipu'" if "/" in server.origin else server.origin
        log.info(f"V-IPU server address picked up from {origin}: {server}")


def _open(
    options: PartitionOptions, environ: Mapping[str, str], *, is_copy: bool = False
) -> "Inventory":
    # After a power cut no job holds anything, whatever the disk has.
    return open_inventory(
        options.server, environ, options.timeout_s, syncs=False, is_copy=is_copy
    )


def _job_request(request: Request, options: PartitionOptions) -> JobRequest:
    server, topology = options.server, request.topology
    # A server with access keys lets each user act in the name of the key's owner only.
    user = (server.user if server else "") or user_name()
    host = os.uname().nodename
    acquisition = Acquisition(
        holder=Holder(
            user=user, job=request.identity, host=host, process=liveness.identify()
        ),
        partition=partition.own_name(request.identity, request.partition_number),
        num_children=topology.num_instances,
        ipus_per_child=topology.ipus_per_instance,
        remove=options.remove,
        lease=os.urandom(16).hex(),
        spans_hosts=request.names_hosts,
    )
    return JobRequest(
        options=options, num_replicas=topology.num_replicas, acquisition=acquisition
    )


def _describe(
    grant: Grant, request: Request, options: PartitionOptions
) -> tuple[PartitionVariables, tuple[tuple[str, str], ...]]:
    """Return what instances are told of a partition, and the log lines about it."""
    target_options, lines = describe_devices(grant, request.target_options)
    own = grant.partition
    granted = replace(
        partition.expected_variables(options, request.identity),
        name=own.name,
        node_device=grant.parent.id if own.reconfigurable else None,
        target_options=target_options,
        num_ilds=own.num_ilds,
    )
    return granted, tuple(lines)


def _end_action(
    job: JobRequest, location: str, environ: Mapping[str, str]
) -> RunCommand:
    lease, server = job.acquisition.lease, job.options.server
    timeout_s = job.options.timeout_s
    argv = [sys.executable, "-I", RELEASE, lease, str(timeout_s)]
    needed = {
        name: value
        for name, value in environ.items()
        if name in FOR_RELEASE or name.startswith(CLI_VARIABLES)
    }
    if server is None:
        needed[VARIABLE] = location
    else:
        argv += [server.host, str(server.port)]
    return run_command(
        purpose=f"release the IPUs of lease {lease}",
        argv=[os.fsencode(word) for word in argv],
        environment=[os.fsencode(f"{name}={value}") for name, value in needed.items()],
        timeout_s=timeout_s + RELEASE_START_S,
    )
