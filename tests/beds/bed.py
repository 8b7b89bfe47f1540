"""Several hosts on one machine: namespaces on a bridge, each with an sshd.

    with Bed(hosts=2) as bed:
        ran = bed.front.run("ssh", "h1", "hostname")
        assert ran.stdout == "h1\n"

In a test take the fixture `bed` (three hosts that tests share, HOME shared between
them, nothing may be left on them) or `make_bed` (a bed of the test's own, to break).
`Host` has `run`, `start`, `path`, `pause`, `kill`, `power_off`; `host.link` has `cut`,
`mend` and `shape`; `bed.power_on` starts a host again that was killed. The first host
is the front; all see the checkout at its path.

The machine's root directory is read-only in a host; /tmp, /dev/shm, /run, /etc, /root
and /home are its own (HOME shared if asked for), and vanish with the bed.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from beds import slurm
from beds.host import SYSTEM_PATH, Host
from beds.link import Link
from beds.namespaces import Namespaces
from conftest import ROOT

SETUP = Path(__file__).with_name("setup_bed.sh").read_text()
# A host has directories of its own in place of these, or none.
COVERED = ("/tmp", "/var/tmp", "/var/log", "/dev/shm", "/run", "/root", "/home", "/mnt")


def kept() -> str:
    """Return the directories that hosts see as they are, wherever they lie."""
    pythons = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    hidden = [
        path
        for path in sorted(pythons)
        if not path.is_relative_to(ROOT)
        and any(path.is_relative_to(place) for place in COVERED)
    ]
    return " ".join(map(str, [ROOT, *hidden]))


class Bed:
    """Hosts with the names and addresses given, or h0, h1, ... and 10.31.0.1, ....

    Args:
        hosts: How many, where neither names nor addresses say it.
        names: Their names; each is also NAME.bed.
        addresses: IPv4; all of them belong to one subnet.
        aliases: More names of the last host.
        prefix: Length of the subnet's prefix.
        ipv6: Whether host number I has the address fd00::(I + 1), too.
        shared_home: Whether /root and /home are the same directories on all hosts.
        known_hosts: Whether all users know the key of all sshds.
        sshd: More lines for sshd_config.
        slurm_cpus: How many CPUs Slurm has on each host; 0: there is no Slurm.
    """

    def __init__(
        self,
        hosts: int = 2,
        *,
        names: Sequence[str] = (),
        addresses: Sequence[str] = (),
        aliases: Sequence[str] = (),
        prefix: int = 16,
        ipv6: bool = False,
        shared_home: bool = False,
        known_hosts: bool = True,
        sshd: Sequence[str] = (),
        slurm_cpus: int = 0,
    ) -> None:
        number = len(names or addresses) or hosts
        names = names or [f"h{i}" for i in range(number)]
        addresses = addresses or [f"10.31.0.{i + 1}" for i in range(number)]
        self.hosts: list[Host] = []
        self._has_slurm = slurm_cpus > 0
        self._switch = Namespaces()
        try:
            self._set_up_switch(
                [*names, *aliases],
                [*addresses, *([addresses[-1]] * len(aliases))],
                known_hosts,
                sshd,
            )
            for i, place in enumerate(zip(names, addresses, strict=True)):
                self.hosts.append(self._connected_host(i, *place))
            self._variables = [
                {
                    "ADDRESSES": " ".join(
                        [f"{address}/{prefix}", *[f"fd00::{i + 1:x}/64"] * ipv6]
                    ),
                    "OWN_HOME": "" if shared_home else "yes",
                    "KEPT": kept(),
                }
                for i, address in enumerate(addresses)
            ]
            with ThreadPoolExecutor(number) as pool:
                list(pool.map(Host.begin, self.hosts, self._variables))
            if slurm_cpus:
                slurm.start(self.hosts, slurm_cpus)
        except BaseException:
            self.close()
            raise

    def _set_up_switch(
        self,
        names: Sequence[str],
        addresses: Sequence[str],
        known_hosts: bool,
        sshd: Sequence[str],
    ) -> None:
        """Make the bridge, and the files that all hosts start with."""
        known = {*names, *(f"{name}.bed" for name in names), *addresses}
        environ = {
            "PATH": SYSTEM_PATH,
            "HOSTS": "\n".join(
                f"{address} {name}.bed {name}"
                for name, address in zip(names, addresses, strict=True)
            ),
            "KNOWN": ",".join(known) if known_hosts else "",
            "SSHD": "\n".join(sshd),
            "KEPT": kept(),
        }
        self._switch.run(["sh", "-e", "-c", SETUP], env=environ)

    def _connected_host(self, number: int, name: str, address: str) -> Host:
        namespaces = Namespaces(self._switch)
        link = Link(self._switch, namespaces, number)
        return Host(name, address, namespaces, link)

    def power_on(self, name: str, script: str = "") -> Host:
        """Start a host again that was killed; return it, with no process of before.

        Args:
            script: Commands of a shell that run there before its sshd does.
        """
        number = next(i for i, host in enumerate(self.hosts) if host.name == name)
        lost = self.hosts[number]
        lost.link.remove()
        host = self._connected_host(number, name, lost.address)
        self.hosts[number] = host
        host.begin(self._variables[number], script)
        return host

    def shape(self, rate: str = "", delay_ms: float = 0, loss: float = 0) -> None:
        """Shape all links, as Link.shape() does one."""
        for host in self.hosts:
            host.link.shape(rate, delay_ms, loss)

    @property
    def front(self) -> Host:
        """The host where users work."""
        return self.hosts[0]

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def assert_nothing_is_left(self, within: float = 100) -> None:
        """Fail if something stays that leftovers() sees."""
        limit = time.monotonic() + within
        while left := self.leftovers():
            assert time.monotonic() < limit, f"left after {within} s: {left}"
            time.sleep(0.02)

    def leftovers(self) -> list[str]:
        """Return what is left: processes, temporary files, Slurm's jobs."""
        jobs = slurm.jobs(self.front) if self._has_slurm else []
        return [
            *(f"Slurm's job {job}" for job in jobs),
            *(
                f"{host.name}: {leftover}"
                for host in self.hosts
                for leftover in (*host.processes(), *host.files())
            ),
        ]

    def clean(self) -> None:
        """Remove what jobs have left on any host."""
        if self._has_slurm:
            slurm.cancel_jobs(self.front)
        for host in self.hosts:
            host.clean()

    def close(self) -> None:
        """End all processes on all hosts, and remove all that the bed consists of."""
        for host in self.hosts:
            host.kill()
        self._switch.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
