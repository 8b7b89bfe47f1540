"""The links to the hosts of an attempt: this machine's, and those over agents."""

import base64
import os
from collections.abc import Callable, Sequence

from popdist import environment as env
from poprun.helpers.own_process import IN_SLURM
from poprun.host.host_link import HostLink
from poprun.host.local_host import LocalHost
from poprun.host.remote_host import RemoteHost
from poprun.host.remote_shells import RemoteShells
from poprun.host_specs import name_for_mpirun
from poprun.job.values import HostJob, Job
from poprun.plan.values import Plan
from poprun.reach.hosts import Preflights
from poprun.wire import protocol
from poprun.wire.channel import Channel

# The variables of mpirun that its daemons get: the job, poprun's socket, whether Slurm
# may signal them, and where they make files.
FOR_DAEMONS = (env.JOB_ID, env.CONTROL, IN_SLURM, "TMPDIR")


def open_links(
    job: Job,
    plan: Plan,
    preflights: Preflights,
    add_shim: Callable[[Channel, int, int], None],
    here: str,
    call: bytes = b"",
) -> list[HostLink]:
    """Return the link to each host of a job, which listens for shims from now on.

    The machine that poprun runs on has one in any case: mpirun runs there.

    Args:
        add_shim: Is called with the connection, pid and start time of each shim of
            this host.
        here: The name of this host.
        call: The function of poprun.launch, nothing for a program.

    Raises:
        LaunchError: A host cannot run instances.
    """
    request = plan.request
    ranks: dict[int, list[int]] = {}
    for assignment in plan.assignments:
        ranks.setdefault(plan.topology.host_of(assignment.rank), []).append(
            assignment.rank
        )
    local: list[int] = []
    remote: list[RemoteHost] = []
    shells = RemoteShells(is_in_slurm=job.is_in_slurm)
    for index, host in enumerate(request.hosts):
        preflight = preflights[host]
        if preflight.connection is None:
            local = ranks[index]
            shells.local_name = name_for_mpirun(host)
            continue
        link = RemoteHost(
            preflight.connection,
            _host_job(job, plan, host.name, ranks[index], call),
            [job.specs[rank] for rank in ranks[index]],
            shells.write,
            job.devices,
        )
        shells.hosts[name_for_mpirun(host)] = link
        remote.append(link)
    handlers = {protocol.REMOTE_SHELL: shells.handler()} if remote else {}
    specs = [job.specs[rank] for rank in local]
    own = LocalHost(
        _host_job(job, plan, here, local, b""), specs, add_shim, handlers, job.devices
    )
    own.listen()
    for link in remote:
        link.begin()
    for link in remote:
        link.listen()
    return [own, *remote]


def _host_job(
    job: Job, plan: Plan, name: str, ranks: Sequence[int], call: bytes
) -> HostJob:
    has_cache = plan.request.cache_is_temporary
    devices = job.devices
    first = min(ranks, default=0)
    environment = job.mpirun_environment
    for_daemons = ((n, environment.get(os.fsencode(n))) for n in FOR_DAEMONS)
    return HostJob(
        name=name,
        ranks=ranks,
        num_instances=len(job.specs),
        control=job.control,
        mark=job.mark,
        directory=job.directory,
        ended_file=job.ended_file,
        cache=(plan.request.cache_path or "") if has_cache else "",
        merge_stderr=job.routes.merged,
        has_mpi=job.has_mpi,
        grace=job.grace,
        leftovers=job.leftovers,
        stdin_ranks=[rank for rank in ranks if job.stdin.is_sent_to(rank)],
        devices=None if devices is None else devices.of_instances(first, len(ranks)),
        environment={n: os.fsdecode(v) for n, v in for_daemons if v is not None},
        is_traced=job.is_traced,
        call=base64.b64encode(call).decode(),
    )
