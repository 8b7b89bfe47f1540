"""The cgroups, of either version, that limit this process, and their files."""

from collections.abc import Iterator


def folders(root: str, controllers: set[str]) -> Iterator[tuple[int, str]]:
    """Yield version and folder of each cgroup with one of these controllers."""
    mounts = list(_mounts(root, controllers))
    for line in lines(f"{root}/proc/self/cgroup"):
        _, listed, path = line.split(":", 2)
        for version, known, top, point in mounts:
            # Version 2 has one tree, and names no controllers.
            if known & set(listed.split(",")):
                yield from ((version, folder) for folder in _upwards(path, top, point))


def lines(path: str) -> list[str]:
    """Return a file's lines: none if it is not there, or not for us to read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        # No cgroups, or none of this version, or a sandbox around this process.
        return []


def _mounts(root: str, wanted: set[str]) -> Iterator[tuple[int, set[str], str, str]]:
    """Yield version, controllers, the topmost cgroup, and its mount point."""
    for line in lines(f"{root}/proc/self/mountinfo"):
        # ID, parent, device, root, mount point, ... - type, source, options
        mount, _, filesystem = line.partition(" - cgroup")
        if not filesystem:
            continue
        version, _, options = filesystem.split(" ", 2)
        top, point = mount.split(" ")[3:5]
        if version == "2":
            yield 2, {""}, top, root + point
        else:
            yield 1, wanted & set(options.split(",")), top, root + point


def _upwards(path: str, top: str, point: str) -> Iterator[str]:
    """Yield the folder of a cgroup and those above it, as far as they can be seen."""
    top = top.rstrip("/")
    # In a container the path may be one of the host, which is not mounted here: the
    # container's own cgroup is then the top.
    below = path[len(top) :] if f"{path}/".startswith(f"{top}/") else ""
    folder = point if "/.." in below else point + below.rstrip("/")
    while len(folder) > len(point):
        yield folder
        folder = folder.rpartition("/")[0]
    yield point
