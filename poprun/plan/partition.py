"""The partition of a job: settings -> options for V-IPU, and instances' variables."""

import math
from collections.abc import Mapping, Sequence

from popdist import environment as env
from poprun.options.settings import Settings
from poprun.plan import slurm
from poprun.plan.values import FindHostServers, PartitionVariables
from poprun.vipu.client.server_address import find_server
from poprun.vipu.launch.values import PartitionOptions

# How many IPUs an IPU-Machine has.
SMALLEST_SHARE = 4


def read_options(
    settings: Settings, environ: Mapping[str, str]
) -> PartitionOptions | None:
    """Return the partition's options; None if the job is to run without IPUs.

    Raises:
        VipuRuleError: The configuration names a server that cannot be.
    """
    if settings.offline:
        return None
    options = {"api-host": "vipu-server-host", "api-port": "vipu-server-port"}
    given = {
        key: settings[name] for key, name in options.items() if settings.is_given(name)
    }
    return PartitionOptions(
        server=find_server(environ, given),
        timeout_s=settings["vipu-server-timeout"],
        name=settings["vipu-partition"] or environ.get(env.VIPU_API_PARTITION_ID),
        batch_names=slurm.partition_names(environ),
        attempts=settings["vipu-partition-attempts"],
        wait_s=_wait_s(settings["wait-for-ipus"]),
        update=settings["update-partition"],
        reset=settings["reset-partition"],
        remove=settings["remove-partition"],
        allocation=settings["vipu-allocation"],
        cluster=settings["vipu-cluster"],
        link_routing=settings["ipu-link-routing-type"],
        gateway_routing=settings["gw-link-routing-type"],
        sync_type=settings["sync-type"],
        num_ilds=settings["num-ilds"] if settings.is_given("num-ilds") else None,
    )


def _wait_s(wait: bool | float) -> float | None:
    if isinstance(wait, bool):
        return math.inf if wait else None
    return wait


def choose_host_servers(
    settings: Settings, environ: Mapping[str, str], find_servers: FindHostServers
) -> Sequence[str]:
    """Return the host servers that a job goes to if it is too large for one.

    The job gets the fewest servers with enough IPUs that can share its instances
    equally. If no number of servers has enough IPUs, it gets the largest number that
    can share the instances. A job that stays on this machine gets none.
    """
    instances = settings["num-instances"]
    num_ipus = settings["num-replicas"] * settings["ipus-per-replica"]
    # No host server is for less than an IPU-Machine, so small jobs need not ask.
    if instances == 1 or num_ipus <= SMALLEST_SHARE:
        return []
    options = read_options(settings, environ)
    servers = None if options is None else find_servers(options, environ, num_ipus)
    if servers is None or num_ipus <= servers.ipus_per_host:
        return []
    numbers = [n for n in range(2, len(servers.names) + 1) if instances % n == 0]
    enough = [n for n in numbers if n * servers.ipus_per_host >= num_ipus]
    return servers.names[: min(enough or numbers[-1:], default=0)]


def own_name(identity: str, number: int = 0) -> str:
    """Return the name of a partition of a job that names none.

    Args:
        number: How many such partitions the job has had before.
    """
    return f"poprun-{identity}{f'-{number}' if number else ''}"


def expected_variables(options: PartitionOptions, identity: str) -> PartitionVariables:
    """Return the facts of a partition that are known before it is granted."""
    name = options.name or own_name(identity)
    return PartitionVariables(options=options, name=name)
