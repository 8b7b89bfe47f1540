"""What the commands show of IPU-Machines and IPUs that are emulated. Pure."""

from typing import NamedTuple

from poprun.vipu.commands.views.text_tables import Columns
from poprun.vipu.model import IPUS_PER_MACHINE, Agent

# The serial number of the first machine of a cluster.
_FIRST_SERIAL = 8203921


class EmulatedIpu(NamedTuple):
    """An IPU, by its number in its IPU-Machine."""

    agent: Agent
    number: int


def ipus_of(agent: Agent) -> list[EmulatedIpu]:
    """Return the IPUs of an IPU-Machine."""
    return [EmulatedIpu(agent, number) for number in range(IPUS_PER_MACHINE)]


def _serial(agent: Agent) -> int:
    return _FIRST_SERIAL + (agent.machine or 0)


# Of an agent.
MACHINE: Columns = {
    "Agent ID": "name",
    "Host": "host",
    "Port": "port",
    "Status": lambda agent: agent.status.capitalize(),
    "Exporter": lambda agent: f"http://{agent.host}:2112/metrics",
    "Platform": lambda _: "ipum-p2",
    "Manufacturer": lambda _: "Graphcore",
    "Discovery Mode": lambda _: "DM_GCDA",
    "Virm version": lambda _: "master-1189-1493e2a",
    "Runtime version": lambda _: "1.0.48",
    "Board serial number": lambda agent: f"{_serial(agent)}-0007",
    "Part number": lambda _: "GC-ADA2-00-ES1 Rev. C",
    "GWSW Version": lambda _: "2.0.5",
    "IPUoF server version": lambda _: "v1.3.3",
    "Num of IPUs": lambda _: IPUS_PER_MACHINE,
}
IPUS: Columns = {
    "IPU": "number",
    "PCI": lambda ipu: f"{ipu.number + 1:04d}:00:00.0",
    "Device": lambda _: "GC200",
    "Firmware": lambda _: "2.4.4",
    "Architecture": lambda _: "ipu2",
    "Num Tiles": lambda _: "1472",
}
# Of an IPU, in the order of their names.
ATTRIBUTES: Columns = {
    # Two IPUs share a board, and the links number them from the far end.
    "board ipu index": lambda ipu: str(ipu.number % 2 ^ 1),
    "board serial number": lambda ipu: (
        f"0024.{ipu.number // 2 + 2:04d}.{_serial(ipu.agent)}"
    ),
    "board type": lambda _: "M2000",
    "clock": lambda _: "1330MHz",
    "driver version": lambda _: "1.0.58",
    "firmware major version": lambda _: "2",
    "firmware minor version": lambda _: "4",
    "firmware patch version": lambda _: "4",
    "firmware version": lambda _: "2.4.4",
    # Memory of the host that IPUs exchange data with; emulated ones have none.
    "hexopt active size (bytes)": lambda _: "0",
    "hexopt total size (bytes)": lambda _: "0",
    "ipu architecture": lambda _: "ipu2",
    "num tiles": lambda _: "1472",
}
