"""What the commands show of IPU-Machines and IPUs that are emulated. Pure."""

from poprun.vipu.model import IPUS_PER_MACHINE, Agent

# The serial number of the first machine of a cluster.
_FIRST_SERIAL = 8203921
EXPORTER_PORT = 2112


def agent_properties(agent: Agent) -> list[tuple[str, str]]:
    """Return the names and values that `get agent` shows."""
    return [
        ("Agent ID", agent.name),
        ("Host", agent.host),
        ("Port", str(agent.port)),
        ("Status", agent.status.value.capitalize()),
        ("Exporter", f"http://{agent.host}:{EXPORTER_PORT}/metrics"),
        ("Platform", "ipum-p2"),
        ("Manufacturer", "Graphcore"),
        ("Discovery Mode", "DM_GCDA"),
        ("Virm version", "master-1189-1493e2a"),
        ("Runtime version", "1.0.48"),
        ("Board serial number", f"{_serial(agent)}-0007"),
        ("Part number", "GC-ADA2-00-ES1 Rev. C"),
        ("GWSW Version", "2.0.5"),
        ("IPUoF server version", "v1.3.3"),
        ("Num of IPUs", str(IPUS_PER_MACHINE)),
    ]


IPU_HEADER = ("IPU", "PCI", "Device", "Firmware", "Architecture", "Num Tiles")


def ipu_rows() -> list[tuple[str, ...]]:
    """Return a row below `IPU_HEADER` for each IPU of a machine."""
    return [
        (str(ipu), f"{ipu + 1:04d}:00:00.0", "GC200", "2.4.4", "ipu2", "1472")
        for ipu in range(IPUS_PER_MACHINE)
    ]


def ipu_attributes(agent: Agent, ipu: int) -> list[tuple[str, str]]:
    """Return the attributes of an IPU, in the order of their names."""
    # Two IPUs share a board, and the links number them from the far end.
    return [
        ("board ipu index", str(ipu % 2 ^ 1)),
        ("board serial number", f"0024.{ipu // 2 + 2:04d}.{_serial(agent)}"),
        ("board type", "M2000"),
        ("clock", "1330MHz"),
        ("driver version", "1.0.58"),
        ("firmware major version", "2"),
        ("firmware minor version", "4"),
        ("firmware patch version", "4"),
        ("firmware version", "2.4.4"),
        # Memory of the host that IPUs exchange data with; emulated ones have none.
        ("hexopt active size (bytes)", "0"),
        ("hexopt total size (bytes)", "0"),
        ("ipu architecture", "ipu2"),
        ("num tiles", "1472"),
    ]


def _serial(agent: Agent) -> int:
    return _FIRST_SERIAL + (agent.machine or 0)
