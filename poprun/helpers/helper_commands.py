"""The beginning of a helper's command line."""

import os
import sys

ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "entry.py")
# Isolated, and without site-packages: see entry.py.
PYTHON = (sys.executable, "-I", "-S", ENTRY)

# mpirun calls the file REMOTE_SHELL like ssh, with a host and a command. The file finds
# this Python by the variable.
PYTHON_VARIABLE = "POPRUN_PYTHON"
REMOTE_SHELL = os.path.join(os.path.dirname(ENTRY), "remote_shell")
