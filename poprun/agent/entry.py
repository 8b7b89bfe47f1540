"""The entry point of the agent: python -I -S entry.py

Isolated and without site-packages, as poprun's helpers: it needs nothing of them.
"""

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/poprun/")[0])
    from poprun.agent import program

    program.main()
