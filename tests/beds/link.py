"""The cable between a host and the switch: how slow it is, and whether it is cut."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from beds.namespaces import Namespaces

RELAY = Path(__file__).with_name("relay.py")
# Enough for a packet of 64 KiB, which the sender leaves undivided, at any rate.
BURST = "128kb"
QUEUE = "50ms"


class Link:
    """One end is `eth0` in the host, the other a port of the switch."""

    def __init__(self, switch: Namespaces, host: Namespaces, number: int) -> None:
        self._switch = switch
        self._host = host
        self._end = f"port{number}"
        # What stands between the cable and the switch while packets are delayed.
        self._relay: subprocess.Popen[bytes] | None = None
        self._inner, self._outer = f"inner{number}", f"outer{number}"
        pid = host.pid_in_outer()
        # A host that is started again keeps its address: others remember that for a
        # minute.
        mac = f"02:00:00:00:00:{number:02x}"
        self._change_switch(
            f"link add name {self._end} type veth "
            f"peer name eth0 address {mac} netns {pid}",
            f"link set dev {self._end} master switch up",
        )

    def cut(self) -> None:
        """Lose all packets from now on; neither end notices it by itself."""
        self._set_state("disabled")

    def mend(self) -> None:
        self._set_state("forwarding")

    def remove(self) -> None:
        """Remove the port of a host that has ended, if the kernel has not done so."""
        with suppress(AssertionError):
            self._stop_relay()
        with suppress(AssertionError):
            self._change_switch(f"link del dev {self._end}")

    def shape(self, rate: str = "", delay_ms: float = 0, loss: float = 0) -> None:
        """Limit the rate of each direction; delay and lose packets from the host.

        A packet from host to host is delayed once where all links are shaped, as with
        `tc qdisc add dev eth0 root netem` on each. `rate` is tc's (1gbit), `loss` a
        share of the frames that the sender hands to eth0, which are up to 64 KiB long.
        Without arguments the link is as fast as can be again.
        """
        for namespaces, device in ((self._host, "eth0"), (self._switch, self._end)):
            words = ["tc", "qdisc", "replace", "dev", device, "root"]
            limit = ["tbf", "rate", rate, "burst", BURST, "latency", QUEUE]
            namespaces.run([*words, *(limit if rate else ["noqueue"])])
        self._stop_relay()
        if delay_ms or loss:
            self._start_relay(delay_ms, loss)

    def _start_relay(self, delay_ms: float, loss: float) -> None:
        self._change_switch(
            f"link add name {self._inner} type veth peer name {self._outer}",
            f"link set dev {self._outer} master switch up",
            f"link set dev {self._inner} up",
            f"link set dev {self._end} nomaster",
        )
        words = [self._end, self._inner, str(delay_ms), str(loss)]
        self._relay = self._switch.start(
            [sys.executable, "-I", "-S", str(RELAY), *words], stdout=subprocess.PIPE
        )
        assert self._relay.stdout
        assert self._relay.stdout.readline() == b"relaying\n"

    def _stop_relay(self) -> None:
        if self._relay:
            self._relay.kill()
            self._relay.communicate()
            self._relay = None
            self._change_switch(
                f"link del dev {self._inner}",
                f"link set dev {self._end} master switch",
            )

    def _set_state(self, state: str) -> None:
        port = self._outer if self._relay else self._end
        self._switch.run(["bridge", "link", "set", "dev", port, "state", state])

    def _change_switch(self, *commands: str) -> None:
        self._switch.run(["ip", "-batch", "-"], "\n".join(commands) + "\n")
