"""The cable between a host and the switch: how slow it is, and whether it is cut."""

from beds.namespaces import Namespaces


class Link:
    def __init__(self, switch: Namespaces, port: str) -> None:
        self._switch = switch
        self.port = port

    def connect(self, host: Namespaces) -> None:
        """Put the cable's other end into a host, as eth0."""
        pid = host.pid_in_outer()
        self._switch.run(
            ["ip", "-batch", "-"],
            f"link add name {self.port} type veth peer name eth0 netns {pid}\n"
            f"link set dev {self.port} master switch up\n",
        )

    def cut(self) -> None:
        """Lose all packets from now on; the host does not notice it by itself."""
        self._set_state("disabled")

    def mend(self) -> None:
        self._set_state("forwarding")

    def _set_state(self, state: str) -> None:
        self._switch.run(["bridge", "link", "set", "dev", self.port, "state", state])
