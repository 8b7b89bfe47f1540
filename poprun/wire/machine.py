"""The identity of the machine that this process runs on."""

import os

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NETWORK = "/proc/self/ns/net"


def machine_id() -> str:
    """Return the same text in all processes of one host, and in no others.

    Containers of one machine are different hosts if their networks are.
    """
    with open(_BOOT_ID, encoding="utf-8") as file:
        return f"{file.read().strip()} {os.readlink(_NETWORK)}"
