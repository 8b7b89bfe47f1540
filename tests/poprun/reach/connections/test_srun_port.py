"""How an agent notices that the srun which has started it is gone."""

import socket
import time

from poprun.reach.connections import caller
from poprun.reach.connections.caller import SrunPort


def port_at(address: tuple[str, int]) -> SrunPort:
    return SrunPort(
        {"SLURM_SRUN_COMM_HOST": address[0], "SLURM_SRUN_COMM_PORT": str(address[1])}
    )


def is_gone(port: SrunPort) -> bool:
    """Look as often as an agent does in some seconds."""
    for _ in range(20):
        if port.is_gone():
            return True
        time.sleep(0.01)
    return False


def test_srun_is_not_gone_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_gone(port_at(server.getsockname()))


def test_srun_is_gone_when_nothing_listens_any_more() -> None:
    with socket.socket() as silent:
        # No other process gets the port meanwhile.
        silent.bind(("127.0.0.1", 0))

        assert is_gone(port_at(silent.getsockname()))


def test_srun_is_gone_with_its_host() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        socket.socket() as first,
        socket.socket() as second,
    ):
        # A full queue: the kernel answers no more.
        for filling in (first, second):
            filling.setblocking(False)
            filling.connect_ex(server.getsockname())
        port = port_at(server.getsockname())
        looks = [port.is_gone() for _ in range(caller.MOST_UNANSWERED + 1)]

    assert looks == [False] * caller.MOST_UNANSWERED + [True]


def test_without_a_port_nothing_can_be_said() -> None:
    assert not is_gone(SrunPort({}))
