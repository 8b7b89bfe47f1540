"""The IPUoF configuration files in the home directory: written and removed.

The original's client of IPUs reads them; `vipu` writes one for each GCD of a partition
that it makes or changes.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from poprun.vipu.commands.views.ipuof_config import ipuof_config
from poprun.vipu.model import Agent, Partition

# In the home directory.
DIRECTORY = ".ipuof.conf.d"


def write_config_files(
    environ: Mapping[str, str], partition: Partition, agents: Sequence[Agent]
) -> None:
    """Write the files of a partition, and remove those of GCDs that it has not.

    Without a home directory there are none.

    Raises:
        OSError: They cannot be written.
    """
    if not (directory := _directory(environ)):
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    written = set()
    for gcd in range(partition.num_gcds):
        path = os.path.join(directory, f"{partition.name}_gcd{gcd}_ipuof.conf")
        new = f"{path}.new-{os.getpid()}"
        with open(new, "w", encoding="utf-8", opener=_opener) as file:
            json.dump(ipuof_config(partition, gcd, agents), file, indent=2)
            file.write("\n")
        os.replace(new, path)
        written.add(path)
    for path in set(_paths(directory, partition.name)) - written:
        os.unlink(path)


def remove_config_files(environ: Mapping[str, str], name: str) -> None:
    """Remove the files of a partition.

    Raises:
        OSError: They cannot be removed.
    """
    if directory := _directory(environ):
        for path in _paths(directory, name):
            os.unlink(path)


def _directory(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    return os.path.join(home, DIRECTORY) if os.path.isabs(home) else ""


def _paths(directory: str, name: str) -> list[str]:
    pattern = rf"{re.escape(name)}_gcd[0-9]+_ipuof\.conf"
    with suppress(FileNotFoundError):
        files = os.listdir(directory)
        return [os.path.join(directory, f) for f in files if re.fullmatch(pattern, f)]
    return []


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
