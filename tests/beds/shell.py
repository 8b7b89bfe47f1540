"""A shell on the first host of a bed: what `make hosts` runs."""

import argparse
import sys

from beds.bed import Bed
from beds.rights import reason_against_beds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--addresses", default="", help="separated by commas")
    parser.add_argument("--shared-home", action="store_true")
    parser.add_argument("--user", default="root", choices=["root", "ipuser"])
    args = parser.parse_args()
    if reason := reason_against_beds():
        print(f"Cannot make hosts here: {reason}.", file=sys.stderr)
        return 1
    addresses = args.addresses.split(",") if args.addresses else []
    with Bed(args.hosts, addresses=addresses, shared_home=args.shared_home) as bed:
        for host in bed.hosts:
            print(f"{host.name}: {host.address}")
        print("Each has an sshd; leaving this shell removes them.", flush=True)
        # script gives the shell a terminal whose foreground process group is its own.
        shell = ["script", "--quiet", "--return", "--command", "bash", "/dev/null"]
        return bed.front.start(*shell, user=args.user, stdin=None).wait()


if __name__ == "__main__":
    sys.exit(main())
