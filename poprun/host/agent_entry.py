"""The entry point of the agent: python -I -S agent_entry.py

Isolated and without site-packages, as poprun's helpers: it needs nothing of them.
"""

import gc
import sys

if __name__ == "__main__":
    # Modules are no garbage, and looking for garbage takes 5 % of a start.
    gc.set_threshold(100_000)
    sys.path.append(__file__.rpartition("/poprun/")[0])
    from poprun.host import agent as program

    program.main()
