"""The IPUoF configuration of a GCD: which IPUs its process has, and where. Pure."""

from collections.abc import Sequence
from typing import Any

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Partition
from poprun.vipu.rules.numbering import gcd_ipus, positions
from poprun.vipu.rules.routing import partition_target_options


def ipuof_config(
    partition: Partition, gcd: int, agents: Sequence[Agent]
) -> dict[str, Any]:
    """Return what an IPUoF configuration file says of a GCD, for JSON.

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
    all_positions = positions(partition)
    devices = []
    for number, index in enumerate(gcd_ipus(partition, gcd)):
        machine, ipu = divmod(all_positions[index], IPUS_PER_MACHINE)
        agent = by_machine[machine]
        devices.append(
            {
                "id": number,
                "ip": agent.host,
                "agent": agent.name,
                "gateway port": agent.port,
                "ipu": ipu,
            }
        )
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
