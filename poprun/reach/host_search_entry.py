"""The entry point of the search for hosts: python -I host_search_entry.py POPRUN

A script, so that it finds its package by its own path.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/poprun/")[0])
    from poprun.reach import host_search as program

    program.main(int(sys.argv[1]), os.environ)
