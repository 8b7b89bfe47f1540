"""A shell on the first host of a bed: what `make hosts` runs.

Settings are variables, as in `make hosts HOSTS=3 RATE=1gbit DELAY_MS=2 LOSS=0.001`:

    HOSTS        how many hosts (2)
    ADDRESSES    theirs, with commas between
    SHARED_HOME  1: all hosts have the same HOME
    RATE         of each link, as tc's rates; DELAY_MS, LOSS: see Link.shape()
    SLURM_CPUS   how many CPUs Slurm has on each host (0: there is no Slurm)
    BED_USER     whose shell it is: root, or ipuser, who has no rights
"""

import os
import sys
from collections.abc import Mapping

from beds.bed import Bed
from beds.rights import reason_against_beds


def main(environ: Mapping[str, str]) -> int:
    slurm_cpus = int(environ.get("SLURM_CPUS", 0))
    if reason := reason_against_beds(slurm_cpus > 0):
        print(f"Cannot make hosts here: {reason}.", file=sys.stderr)
        return 1
    addresses = environ.get("ADDRESSES")
    with Bed(
        int(environ.get("HOSTS", 2)),
        addresses=addresses.split(",") if addresses else [],
        shared_home=environ.get("SHARED_HOME") == "1",
        slurm_cpus=slurm_cpus,
    ) as bed:
        bed.shape(
            environ.get("RATE", ""),
            float(environ.get("DELAY_MS", 0)),
            float(environ.get("LOSS", 0)),
        )
        for host in bed.hosts:
            print(f"{host.name}: {host.address}")
        print("Each has an sshd. They end with this shell.", flush=True)
        # script gives the shell a terminal whose foreground process group is its own.
        shell = ["script", "--quiet", "--return", "--command", "bash", "/dev/null"]
        user = environ.get("BED_USER", "root")
        return bed.front.start(*shell, user=user, stdin=None).wait()


if __name__ == "__main__":
    sys.exit(main(os.environ))
