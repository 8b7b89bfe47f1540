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

if __name__ == "__main__":
    # The folder that holds poprun, after the standard library.
    sys.path.append(__file__.rpartition("/poprun/")[0])
    role, *arguments = sys.argv[1:]
    if role == "shim":
        from poprun.helpers import shim

        # The attempt is there for readers of the list of processes.
        shim.main(variable=arguments[1], rank=int(arguments[2]))
        # At once: what Python does at its end takes a sixth of a shim's time.
        os._exit(0)
    elif role == "guard":
        from poprun.helpers import guard

        guard.main(*map(int, arguments))
    elif role == "local":
        from poprun.helpers import local_launcher

        local_launcher.main(arguments)
    elif role == "remote-shell":
        from poprun.helpers import remote_shell

        remote_shell.main(arguments[0], arguments[1:])
    else:
        sys.exit(f"poprun has no helper {role!r}.")
