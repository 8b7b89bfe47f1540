"""The directories that a job makes on a host, and what removes them."""

import os

from poprun.errors import LaunchError
from poprun.helpers.end_actions import RemovePath
from poprun.job.values import Resource


def directory_resource(path: str, *, exists: bool = False) -> Resource:
    """Return a directory as something that is made and removed."""

    def make() -> None:
        if exists:
            return
        try:
            os.mkdir(path, mode=0o700)
        except OSError as error:
            raise LaunchError(
                f"The job's directory {path} cannot be made: {error.strerror}. Set "
                "TMPDIR to a directory with room for files."
            ) from None

    return Resource(make=make, end_action=RemovePath(os.fsencode(path)))
