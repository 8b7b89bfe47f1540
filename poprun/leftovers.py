"""What a job leaves on disk and in shared memory: its own, and never a neighbour's.

Everything lies below directories that were made for this job alone, so removing it
needs no guess about whose a file is.
"""

import os


def remove(paths: list[bytes]) -> None:
    """Remove files, and directories with all that is in them."""
    for path in paths:
        _remove(path)


def _remove(path: bytes) -> None:
    # Links are removed and never followed. What cannot be removed stays: at the end
    # of a job there is nobody to tell, and the guard must go on to the next.
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            with os.scandir(path) as entries:
                inside = [entry.path for entry in entries]
            for entry in inside:
                _remove(entry)
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return
