"""How members find the store of rank 0."""

import os
import subprocess
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from popdist.engine.meet.pidfds import Pidfd
from popdist.errors import ArenaError, PeerLostError
from popdist.job import TorchPlace
from popdist.torch.backend import rendezvous

# A process that has a socket, and does not answer there.
SILENT = """
import signal, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
signal.pause()
"""


def test_a_rank_0_that_ends_while_others_connect_to_its_store_is_missed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SILENT], stdout=subprocess.PIPE, text=True
    ) as silent:
        assert silent.stdout is not None
        port = int(silent.stdout.readline())
        known = {0: Pidfd(silent.pid, os.pidfd_open(silent.pid))}
        end = threading.Timer(0.5, silent.kill)
        end.start()
        with pytest.raises(PeerLostError, match="Instance 0 ended before it could"):
            rendezvous._connected(
                TorchPlace(1, 2, "127.0.0.1", port), timedelta(seconds=1000), known
            )
        end.join()


def test_a_first_host_whose_name_has_no_address_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "host_numbers", lambda: (1,))
    world = SimpleNamespace(names=["nowhere.invalid"])
    monkeypatch.setattr(rendezvous, "started", lambda: world)

    with pytest.raises(ArenaError, match=r"instance 0 is called nowhere\.invalid, but"):
        rendezvous._first_host()
