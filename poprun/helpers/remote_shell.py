"""Runs a command on another host of the job: mpirun calls this instead of ssh.

    remote_shell HOST COMMAND...

poprun has a connection to each host already. This sends the command there by way of
poprun, writes what it writes, and ends as it ends.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import sys

from poprun.helpers import own_process, processes
from poprun.wire import protocol
from poprun.wire.channel import Channel, connect


def main(arguments: list[str]) -> None:
    variable, *arguments = arguments
    # ssh takes options before the name of the host; mpiruns pass -x and the like.
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    host, *command = arguments
    sigterm = own_process.receive_sigterm()
    try:
        sock, key = connect(os.environb[os.fsencode(variable)])
    except OSError as error:
        sys.exit(f"Cannot reach poprun, which runs commands on hosts: {error}")
    channel = Channel(sock)
    text = b" ".join(map(os.fsencode, command))
    fields = protocol.VERSION, key, os.fsencode(host), text
    channel.tell(protocol.REMOTE_SHELL, *fields)
    poll = processes.poll_on(channel.fileno(), sigterm)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == sigterm and not own_process.read_sigterm(
                sigterm, os.environ
            ):
                sys.exit(128 + _signal.SIGTERM)
        channel.flush()
        messages = channel.receive()
        if messages is None:
            sys.exit(f"The connection to the host {host} has ended.")
        for kind, received in messages:
            if kind == protocol.SHELL_HERE:
                run_here(text, is_in_slurm=received[0] == b"1")
            elif kind == protocol.SHELL_OUTPUT:
                os.write(1 if received[0] == b"1" else 2, received[1])
            elif kind == protocol.SHELL_ENDED:
                os._exit(int(received[0]))


def run_here(text: bytes, *, is_in_slurm: bool) -> None:
    """Become a shell that runs the command on this host."""
    if not is_in_slurm:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGTERM,))
    argv = processes.shell(text, keeps_mask=is_in_slurm)
    os.execv(argv[0], argv)
