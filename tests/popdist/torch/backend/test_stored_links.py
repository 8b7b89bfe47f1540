"""Where instance 0 listens for links, told by a store of torch."""

import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch.distributed as dist

from popdist.engine.hosts.tcp.links import TcpLinks
from popdist.engine.hosts.tcp.listener import TcpRoot
from popdist.torch.backend.stored_links import root_in, server_of


def test_links_begin_at_the_address_in_the_store_however_late_it_comes() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = dist.PrefixStore("group", server)
    has_looked = Event()

    # An earlier attempt has ended: nothing listens there.
    with ThreadPoolExecutor(3) as threads:
        stale = threads.submit(root_in, store, 0, 0)
        found = root_in(store, 1, 1)
        listener = stale.result().listener
        assert listener is not None
        assert found[:3] == stale.result()[:3]
        # Until it ends, no other process gets its port.
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(("127.0.0.1", found.port))
        listener.close()

        def look_up() -> TcpRoot:
            has_looked.set()
            return root_in(store, 1, 1)

        other = threads.submit(TcpLinks, 1, 2, found, look_up)
        has_looked.wait()
        second = root_in(store, 0, 0)
        root = threads.submit(TcpLinks, 0, 2, second)
        gathering = threads.submit(lambda: root.result().gather(b"0"))
        assert other.result().gather(b"1") == [b"0", b"1"]
        assert gathering.result() == [b"0", b"1"]
    assert second.key != found.key


@pytest.mark.parametrize("kind", ["file", "hash"])
def test_a_store_that_no_host_serves_tells_nothing(kind: str, tmp_path: object) -> None:
    store = dist.HashStore() if kind == "hash" else dist.FileStore(f"{tmp_path}/s", 1)

    assert server_of(dist.PrefixStore("group", store)) == ""
