"""The entry point of the programs beside a job.

    python -I -S entry.py shim ATTEMPT VARIABLE RANK
    python -I -S entry.py guard DESCRIPTOR POPRUN INODE
    python -I -S entry.py local COMMAND... : COMMAND...
    python -I -S entry.py remote-shell VARIABLE HOST COMMAND...

Isolated and without site-packages, so that they start in milliseconds, and variables
and files of the user do not affect them. It is a script, so that the list of processes
shows the kind of helper. The rest is in modules, which are compiled once and cached.
"""

import os
import sys

MODULES = {
    "shim": "shim",
    "guard": "guard",
    "local": "local_launcher",
    "remote-shell": "remote_shell",
}

if __name__ == "__main__":
    # The folder that holds poprun, after the standard library.
    sys.path.append(__file__.rpartition("/poprun/")[0])
    role, *arguments = sys.argv[1:]
    if role not in MODULES:
        sys.exit(f"poprun has no helper {role!r}.")
    __import__(f"poprun.helpers.{MODULES[role]}", fromlist=["main"]).main(arguments)
    # At once: what Python does at its end takes a sixth of a shim's time.
    os._exit(0)
