"""Release the lease of a job that has ended: the end action of its guard.

    python -I release.py LEASE TIMEOUT [HOST PORT]

It asks the server, or else the inventory that the environment names. It succeeds if
there is nothing to release. A script, so that it finds its package by its own path.

poprun itself has not released it, and may be gone: then instances on other hosts may
still run for a while, and keep the lease so long.
"""

import os
import sys

AFTERWARDS = "They are free as soon as the inventory sees that the job has ended."


def main(lease: str, timeout: str, host: str = "", port: str = "") -> None:
    """Release a lease, and exit with a sentence if that fails."""
    from poprun.vipu.client.server_address import find_server
    from poprun.vipu.errors import VipuError
    from poprun.vipu.leases import CUT_OFF_S
    from poprun.vipu.opening import open_inventory

    try:
        options = {"api-host": host, "api-port": port}
        address = find_server(os.environ, options) if host else None
        inventory = open_inventory(address, os.environ, float(timeout))
        inventory.release(lease, wait_s=CUT_OFF_S)
        inventory.close()
    except VipuError as error:
        sys.exit(f"{error} {AFTERWARDS}")


if __name__ == "__main__":
    # The folder that holds poprun, as helpers/entry.py has it.
    sys.path.append(os.path.abspath(__file__).rpartition("/poprun/")[0])
    main(*sys.argv[1:])
