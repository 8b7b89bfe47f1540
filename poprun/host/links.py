"""The links to the hosts of an attempt: this machine's, and those over agents."""

import base64
import os
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Protocol

from popdist import environment as env
from poprun.helpers.helper_commands import PYTHON
from poprun.helpers.own_process import IN_SLURM
from poprun.host.host_link import HostLink
from poprun.host.local_host import LocalHost, newcomers_spec
from poprun.host.remote_host import RemoteHost
from poprun.host.remote_shells import RemoteShells
from poprun.host_specs import name_for_mpirun
from poprun.job.values import CommonJob, HostJob, Job
from poprun.plan.values import Plan
from poprun.reach.connections.agent_connection import AgentConnection
from poprun.reach.hosts import Preflights
from poprun.wire import protocol
from poprun.wire.channel import Channel

# The variables of mpirun that its daemons get: the job, poprun's socket, whether Slurm
# may signal them, and where they make files.
FOR_DAEMONS = (env.JOB_ID, env.CONTROL, IN_SLURM, "TMPDIR")


class Supervisors(Protocol):
    """The mpirun of a job, as the host that it runs on knows it."""

    def add_shim(self, shim: Channel, pid: int, start: int) -> None:
        """Take in a shim that has connected."""

    def start_shims(self) -> bool:
        """Start the shims again that were lost; return whether that is possible."""


def open_links(
    job: Job,
    plan: Plan,
    preflights: Preflights,
    mpirun: Supervisors,
    here: str,
    call: bytes = b"",
) -> list[HostLink]:
    """Return the link to each host of a job, which listens for shims from now on.

    The machine that poprun runs on has one in any case: mpirun runs there.

    Args:
        mpirun: Gets the shims of this host, and starts those again that are lost.
        here: The name of this host.
        call: The function of poprun.launch, nothing for a program.

    Raises:
        LaunchError: A host cannot run instances.
    """
    local: Sequence[int] = ()
    remote: list[RemoteHost] = []
    shells = RemoteShells(is_in_slurm=job.is_in_slurm, is_unique=not job.has_mpi)
    for index, host in enumerate(plan.request.hosts):
        connection = preflights[host].connection
        if connection is None:
            local = plan.topology.ranks_on(index)
            shells.local_name = name_for_mpirun(host)
        else:
            link = _remote_host(job, plan, index, connection, call)
            shells.hosts[name_for_mpirun(host)] = link.commands
            remote.append(link)
    handlers = {protocol.REMOTE_SHELL: shells.handler()} if remote else {}
    part = _part_of(job, plan, here, local, b"")
    specs = [job.specs[rank] for rank in local]
    own = LocalHost(
        part, specs, mpirun.add_shim, handlers, job.devices, mpirun.start_shims
    )
    own.listen()
    try:
        for link in remote:
            link.begin()
        for link in remote:
            link.listen()
    except BaseException:
        own.close()
        raise
    return [own, *remote]


def join_link(
    job: Job, plan: Plan, index: int, connection: AgentConnection, call: bytes
) -> RemoteHost:
    """Return the link to a host that joins a running attempt.

    Its agent gets ready while others run, and starts the shims, because mpirun cannot.

    Args:
        job: The job as this host gets it.
        index: The number of the host in the plan.
    """
    specs = [newcomers_spec(spec) for spec in job.specs]
    job = replace(job, specs=specs)
    link = _remote_host(job, plan, index, connection, call, joins=True)
    link.begin()
    return link


def _remote_host(
    job: Job,
    plan: Plan,
    index: int,
    connection: AgentConnection,
    call: bytes,
    *,
    joins: bool = False,
) -> RemoteHost:
    ranks = plan.topology.ranks_on(index)
    part = _part_of(job, plan, plan.request.hosts[index].name, ranks, call)
    specs = [job.specs[rank] for rank in ranks]
    shim = (*PYTHON, "shim", plan.attempt.name, env.CONTROL)
    shims = {rank: shlex.join((*shim, str(rank))).encode() for rank in ranks}
    return RemoteHost(connection, part, specs, job.devices, shims, joins=joins)


def _part_of(
    job: Job, plan: Plan, name: str, ranks: Sequence[int], call: bytes
) -> HostJob:
    """Return the part of a job that runs on one host."""
    common = {f.name: getattr(job, f.name) for f in fields(CommonJob)}
    has_cache = plan.request.cache_is_temporary
    devices = job.devices
    first = min(ranks, default=0)
    environment = job.mpirun_environment
    for_daemons = ((n, environment.get(os.fsencode(n))) for n in FOR_DAEMONS)
    # The guard there ends the processes with the mark. It may detect late that its part
    # of the job is over, when the host takes part again with another control socket.
    mark = f"{env.CONTROL}={job.control}"
    return HostJob(
        **common | {"mark": mark},
        merge_stderr=job.routes.merged,
        name=name,
        ranks=[*ranks],
        num_instances=len(job.specs),
        cache=(plan.request.cache_path or "") if has_cache else "",
        stdin_ranks=[rank for rank in ranks if job.stdin.is_sent_to(rank)],
        devices=None if devices is None else devices.of_instances(first, len(ranks)),
        environment={n: os.fsdecode(v) for n, v in for_daemons if v is not None},
        call=base64.b64encode(call).decode(),
    )
