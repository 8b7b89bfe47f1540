"""The IPUoF configuration of each GCD: its IPUs and where they are, and its file.

The original's client of IPUs reads the files, in the home directory.
"""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Partition
from poprun.vipu.rules.numbering import positions
from poprun.vipu.rules.routing import partition_target_options

# In the home directory.
DIRECTORY = ".ipuof.conf.d"


def config_of(
    partition: Partition, gcd: int, agents: Sequence[Agent]
) -> dict[str, Any]:
    """Return the IPUoF configuration of a GCD, for JSON.

    Args:
        partition: The partition.
        gcd: The number of the GCD in it.
        agents: The IPU-Machines of its cluster.

    Raises:
        VipuRuleError: The partition has no such GCD.
    """
    if not 0 <= gcd < partition.num_gcds:
        raise VipuRuleError(
            f"Partition {partition.name} has no GCD {gcd}. Give one from 0 to "
            f"{partition.num_gcds - 1} with --gcd."
        )
    by_machine = {agent.machine: agent for agent in agents}
    first = gcd * partition.gcd_size
    devices: list[dict[str, Any]] = []
    for position in positions(partition)[first : first + partition.gcd_size]:
        machine, ipu = divmod(position, IPUS_PER_MACHINE)
        agent = by_machine[machine]
        device = {"id": len(devices), "ip": agent.host, "agent": agent.name}
        devices.append(device | {"gateway port": agent.port, "ipu": ipu})
    return {
        "name": f"{partition.name}_gcd{gcd}",
        "attributes": {
            "Partition Id": partition.name,
            "GCD Id": str(gcd),
            "GCD Count": str(partition.num_gcds),
            "Replica Count": str(partition.num_replicas),
            "Reconfigurable": str(partition.reconfigurable).lower(),
            "Sync Type": f"ST_{partition.sync_type.name}",
            **partition_target_options(partition, partition.num_gcds),
        },
        "devices": devices,
    }


def write_files(
    environ: Mapping[str, str], partition: Partition, agents: Sequence[Agent]
) -> None:
    """Write the files of a partition, and remove the files of GCDs that are gone.

    Without a home directory there are none.

    Raises:
        OSError: They cannot be written.
    """
    if (directory := _directory(environ)) is None:
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = set()
    for gcd in range(partition.num_gcds):
        path = directory / f"{partition.name}_gcd{gcd}_ipuof.conf"
        new = path.with_suffix(f".new-{os.getpid()}")
        new.touch(mode=0o600)
        text = json.dumps(config_of(partition, gcd, agents), indent=2)
        new.write_text(f"{text}\n", encoding="utf-8")
        new.replace(path)
        written.add(path)
    remove_files(environ, partition.name, kept=written)


def remove_files(
    environ: Mapping[str, str], name: str, kept: Collection[Path] = ()
) -> None:
    """Remove the files of a partition.

    Raises:
        OSError: They cannot be removed.
    """
    directory = _directory(environ)
    pattern = rf"{re.escape(name)}_gcd[0-9]+_ipuof\.conf"
    for path in directory.glob("*.conf") if directory else ():
        if re.fullmatch(pattern, path.name) and path not in kept:
            path.unlink()


def _directory(environ: Mapping[str, str]) -> Path | None:
    home = Path(environ.get("HOME", ""))
    return home / DIRECTORY if home.is_absolute() else None
