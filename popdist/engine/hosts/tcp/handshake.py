"""Both ends of a new connection prove that they know the key of the job.

From then on the kernel checks whether the other host answers.
"""

import os
import socket
from _blake2 import blake2b
from collections.abc import Callable
from hmac import compare_digest
from struct import Struct
from time import monotonic

# After so long without an answer, a host is taken for dead: see SILENT_MS in tcp.c.
SILENT_SECONDS = 5
# The kernel asks over an idle connection every second whether the other one answers.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENT_SECONDS - 1),
)
# How long a connecting process may take for its proof: anyone may connect.
_PROOF_SECONDS = 10.0
# How often a wait for the other end checks whether it is over.
_CHECK_SECONDS = 0.2
# Sent by the connecting end: its number, a nonce and its proof.
_HELLO = Struct("<I16s32s")
_NONCE_BYTES, _PROOF_BYTES = 16, 32


class StrangerError(Exception):
    """The other end of a connection does not prove that it belongs to the job."""


def greet(
    connection: socket.socket,
    key: bytes,
    own: int,
    to: int,
    is_over: Callable[[], bool],
) -> None:
    """Prove to a listening instance which one this is, and let it prove the same.

    This blocks while the process of the other end is stopped.

    Args:
        is_over: Returns whether to wait no longer.

    Raises:
        StrangerError: The other end is another instance, or has another key.
        OSError: The connection has ended.
        TimeoutError: The wait is over.
    """
    _keep_alive(connection)
    theirs = _receive(connection, _NONCE_BYTES, is_over)
    nonce = os.urandom(_NONCE_BYTES)
    proof = _proof(key, b"connects", theirs, nonce, own, to)
    connection.sendall(_HELLO.pack(own, nonce, proof))
    expected = _proof(key, b"listens", theirs, nonce, own, to)
    if not compare_digest(_receive(connection, _PROOF_BYTES, is_over), expected):
        raise StrangerError


def examine(
    connection: socket.socket, key: bytes, own: int, size: int
) -> tuple[int, bytes]:
    """Return the number of the instance that has connected, and the proof to send it.

    Raises:
        StrangerError: The other end has another key.
        OSError: The connection has ended, or the proof takes too long.
    """
    _keep_alive(connection)
    until = monotonic() + _PROOF_SECONDS
    nonce = os.urandom(_NONCE_BYTES)
    connection.sendall(nonce)
    hello = _receive(connection, _HELLO.size, lambda: monotonic() > until)
    number, theirs, proof = _HELLO.unpack(hello)
    expected = _proof(key, b"connects", nonce, theirs, number, own)
    if number >= size or not compare_digest(proof, expected):
        raise StrangerError
    return int(number), _proof(key, b"listens", nonce, theirs, number, own)


def _keep_alive(connection: socket.socket) -> None:
    for level, option, value in _KEEPALIVE:
        connection.setsockopt(level, option, value)


def _proof(
    key: bytes, role: bytes, first: bytes, second: bytes, connects: int, listens: int
) -> bytes:
    text = b"%s %d %d " % (role, connects, listens) + first + second
    # The key may be longer than blake2b takes.
    hashed = blake2b(key, digest_size=_PROOF_BYTES).digest()
    return blake2b(text, key=hashed, digest_size=_PROOF_BYTES).digest()


def _receive(
    connection: socket.socket, nbytes: int, is_over: Callable[[], bool]
) -> bytes:
    connection.settimeout(_CHECK_SECONDS)
    data = b""
    while len(data) < nbytes:
        try:
            received = connection.recv(nbytes - len(data))
        except TimeoutError as error:
            # With a number, it is the kernel's: the other host does not answer.
            if error.errno or is_over():
                raise
            continue
        if not received:
            raise ConnectionResetError
        data += received
    return data
