"""Reads the hosts that the user names: --host, --hostfile and Slurm -> hosts."""

from collections.abc import Mapping, Sequence

from poprun.errors import OptionError
from poprun.options.settings import Settings
from poprun.plan.hosts import SLURM_NODE_NAME, HostSpec, parse_hostfile, parse_hosts
from poprun.plan.instance_numbers import count_instances
from poprun.plan.topology import Topology

LONGEST_HOSTFILE = 1 << 20


def check_slots(hosts: Sequence[HostSpec], topology: Topology) -> None:
    """Check that each host has a slot for each of its instances."""
    share = topology.instances_per_host
    for host in hosts:
        if host.slots is not None and host.slots < share:
            raise OptionError(
                f"The host {host} has fewer slots than instances: each host gets "
                f"{count_instances(share)}. Give it {share} slots, or ask for fewer "
                "instances by --num-instances."
            )


def read_hosts(settings: Settings, environ: Mapping[str, str]) -> Sequence[HostSpec]:
    """Return the hosts of the job: this machine, if the user names none."""
    if settings["host"] is not None:
        return parse_hosts(settings["host"])
    if settings["hostfile"] is not None:
        path = settings["hostfile"]
        try:
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read(LONGEST_HOSTFILE + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise OptionError(
                f"--hostfile {path!r} cannot be read: {reason}."
            ) from None
        if len(text) > LONGEST_HOSTFILE:
            raise OptionError(
                f"--hostfile {path!r} has more than {LONGEST_HOSTFILE} characters, "
                "more than any list of hosts has. Name another file."
            )
        return parse_hostfile(text, path)
    # Below Slurm the node has a name that its users know it by.
    return [HostSpec(name=environ.get(SLURM_NODE_NAME) or "localhost")]
