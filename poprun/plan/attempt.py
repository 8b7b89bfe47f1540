"""An attempt to run a job: its number, and the names and the port that it alone has."""

import os

from poprun.record import Record


class Attempt(Record):
    """What no two attempts of a job share; the id of the job is the same for all."""

    number: int
    # Names its directories and its shims, for all to read.
    name: str
    # The address and the key of its control socket, and its arenas: secrets, which are
    # never in argv.
    control: str
    arena: str
    # A TCP port that no process listens on, for rank 0.
    master_port: int


def draw(identity: str, number: int, master_port: int) -> Attempt:
    """Return an attempt of a job with fresh names.

    Args:
        identity: The id of the job.
        number: 0 for the first attempt.
        master_port: A port that is free on the host of rank 0.
    """
    return Attempt(
        number=number,
        name=f"{identity}.{number}",
        control=f"@poprun-{os.urandom(8).hex()}/{os.urandom(16).hex()}",
        arena=os.urandom(16).hex(),
        master_port=master_port,
    )
