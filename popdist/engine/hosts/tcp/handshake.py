"""Both ends of a new connection prove that they know the key of the job."""

import os
import socket
from _blake2 import blake2b
from hmac import compare_digest
from struct import Struct

# How long the other end may take for its proof.
_SECONDS = 10.0
# Sent by the connecting end: its number, a nonce and its proof.
_HELLO = Struct("<I16s32s")
_NONCE_BYTES, _PROOF_BYTES = 16, 32


class StrangerError(Exception):
    """The other end of a connection does not prove that it belongs to the job."""


def greet(connection: socket.socket, key: bytes, own: int, to: int) -> None:
    """Prove to a listening instance which one this is, and let it prove the same.

    Raises:
        StrangerError: The other end is another instance, or has another key.
        OSError: The connection has ended.
    """
    connection.settimeout(_SECONDS)
    theirs = _receive(connection, _NONCE_BYTES)
    nonce = os.urandom(_NONCE_BYTES)
    proof = _proof(key, b"connects", theirs, nonce, own, to)
    connection.sendall(_HELLO.pack(own, nonce, proof))
    expected = _proof(key, b"listens", theirs, nonce, own, to)
    if not compare_digest(_receive(connection, _PROOF_BYTES), expected):
        raise StrangerError


def answer(connection: socket.socket, key: bytes, own: int, size: int) -> int:
    """Return the number of the instance that has connected.

    Raises:
        StrangerError: The other end has another key.
        OSError: The connection has ended.
    """
    connection.settimeout(_SECONDS)
    nonce = os.urandom(_NONCE_BYTES)
    connection.sendall(nonce)
    number, theirs, proof = _HELLO.unpack(_receive(connection, _HELLO.size))
    expected = _proof(key, b"connects", nonce, theirs, number, own)
    if number >= size or not compare_digest(proof, expected):
        raise StrangerError
    connection.sendall(_proof(key, b"listens", nonce, theirs, number, own))
    return int(number)


def _proof(
    key: bytes, role: bytes, first: bytes, second: bytes, connects: int, listens: int
) -> bytes:
    text = b"%s %d %d " % (role, connects, listens) + first + second
    # The key may be longer than blake2b takes.
    hashed = blake2b(key, digest_size=_PROOF_BYTES).digest()
    return blake2b(text, key=hashed, digest_size=_PROOF_BYTES).digest()


def _receive(connection: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        part = connection.recv(nbytes - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data
