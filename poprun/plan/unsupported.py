"""Refuses jobs that this version of poprun plans, and cannot start yet."""

import os
from collections.abc import Sequence

from poprun.errors import NotYetError
from poprun.options.settings import Settings
from poprun.plan.hosts import HostSpec, is_local


def refuse_unsupported(
    settings: Settings, hosts: Sequence[HostSpec], slurm_name: str = ""
) -> None:
    """Refuse a job that this version of poprun plans, and cannot start yet.

    Args:
        slurm_name: What Slurm calls this machine, if the job runs below it.

    Raises:
        NotYetError: The job has instances on other hosts, or of another user.
    """
    if not (settings.is_given("host") or settings.is_given("hostfile")):
        # Without either it is this machine, whatever Slurm calls it.
        return
    [first, *others] = hosts
    option = f"--host {','.join(map(str, hosts))}"
    if settings.is_given("hostfile"):
        option = f"--hostfile {settings['hostfile']}"
    if first.user is not None and not others:
        raise NotYetError(
            f"{option} asks for instances that run as the user {first.user}, and this "
            "version of poprun starts instances of its own user only. Leave "
            f"{first.user}@ out."
        )
    if others or not (first.name == slurm_name or _is_here(first)):
        raise NotYetError(
            f"{option} asks for instances on other machines, where this version of "
            f"poprun cannot start any yet. Leave {option.partition(' ')[0]} out to run "
            "them all here, or add --dry-run to see the plan."
        )


def _is_here(host: HostSpec) -> bool:
    # The names of this machine take a while to find, and are rarely needed.
    return is_local(host, [os.uname().nodename]) or is_local(host, own_names())


def own_names() -> list[str]:
    """Return the names and addresses of this machine."""
    import socket

    import psutil

    addresses = [
        address.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [os.uname().nodename, socket.getfqdn(), *addresses]
