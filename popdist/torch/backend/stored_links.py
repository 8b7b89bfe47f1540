"""How instances that no MPI connects find each other: by the store of their group."""

import json
import secrets
import socket
from contextlib import suppress
from time import sleep

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from popdist.engine.hosts.tcp.listener import TcpRoot, listen
from popdist.errors import ArenaError

# Where instance 0 listens, with the key of the links; an address of another host.
_ROOT, _OTHER = "popdist links", "popdist other host"
_PAUSE = 0.02


def root_in(store: Store, rank: int, host_index: int) -> TcpRoot:
    """Return where links begin, once instance 0 has stored it.

    An earlier attempt of the job may have stored another one, which this returns until
    instance 0 has stored its own.

    Args:
        store: The store of all instances, served by TCP, as with torchrun and env://.
        host_index: The number of this instance's host in the job.

    Raises:
        ArenaError: The store has ended.
    """
    try:
        towards_store = _own_address_towards(server_of(store))
        if rank == 0:
            return _announce(store, towards_store)
        if host_index:
            store.set(_OTHER, towards_store)
        address, port, key = json.loads(_wait_for(store, _ROOT))
    except dist.DistError as error:
        raise ArenaError(
            "The store by which instances on several hosts find each other cannot "
            f"be reached: {error}."
        ) from error
    return TcpRoot(address, port, bytes.fromhex(key))


def _announce(store: Store, address: str) -> TcpRoot:
    if address.startswith("127.") or address == "::1":
        # The store is here. An instance elsewhere tells where the network is.
        address = _own_address_towards(_wait_for(store, _OTHER))
    key = secrets.token_bytes(16)
    # It stays open, so that no other process gets the port.
    listener = listen((address, 0))
    port = listener.getsockname()[1]
    store.set(_ROOT, json.dumps([address, port, key.hex()]))
    return TcpRoot(address, port, key, listener)


def _wait_for(store: Store, key: str) -> str:
    while not store.check([key]):
        sleep(_PAUSE)
    value: bytes = store.get(key)
    return value.decode()


def server_of(store: Store) -> str:
    """Return the host that serves a store by TCP, "" for another kind of store."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""


def _own_address_towards(host: str) -> str:
    """Return this host's own address in connections to another host."""
    for family, kind, _, _, address in socket.getaddrinfo(
        host, 9, type=socket.SOCK_DGRAM
    ):
        with suppress(OSError), socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    return "127.0.0.1"
