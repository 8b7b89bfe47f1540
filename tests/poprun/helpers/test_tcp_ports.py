from pathlib import Path

import pytest

from poprun.helpers import tcp_ports
from poprun.helpers.tcp_ports import free_port


def test_the_free_port_is_none_that_the_kernel_assigns_by_itself() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as ports:
        first, _ = map(int, ports.read().split())
    drawn = {free_port() for _ in range(20)}

    assert all(10_000 <= port < first for port in drawn)
    assert len(drawn) > 1


@pytest.mark.parametrize("ports", ["", "1024\t65535\n"], ids=["unknown", "all"])
def test_the_free_port_may_be_any_where_the_kernel_assigns_all(
    ports: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ports").write_text(ports)
    monkeypatch.setattr(tcp_ports, "ASSIGNED_PORTS", str(tmp_path / "ports"))

    assert free_port() > 0
