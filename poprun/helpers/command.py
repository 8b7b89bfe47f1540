"""How a helper is started: the first words of its command line."""

import os
import sys

ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "entry.py")
# Isolated, and without site-packages: see entry.py.
PYTHON = (sys.executable, "-I", "-S", ENTRY)

# A file that is called as ssh is, with a host and a command, and the variable by which
# it finds this Python.
PYTHON_VARIABLE = "POPRUN_PYTHON"
REMOTE_SHELL = os.path.join(os.path.dirname(ENTRY), "remote_shell")
