from pathlib import Path

import pytest

from poprun.helpers import tcp_ports
from poprun.helpers.tcp_ports import free_ports


def test_no_free_port_is_one_that_the_kernel_assigns_by_itself() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as ports:
        first, _ = map(int, ports.read().split())
    drawn = free_ports(20)

    assert all(10_000 <= port < first for port in drawn)
    assert len(set(drawn)) == 20


@pytest.mark.parametrize("ports", ["", "1024\t65535\n"], ids=["unknown", "all"])
def test_free_ports_may_be_any_where_the_kernel_assigns_all(
    ports: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ports").write_text(ports)
    monkeypatch.setattr(tcp_ports, "ASSIGNED_PORTS", str(tmp_path / "ports"))

    assert all(port > 0 for port in free_ports(2))
