from pathlib import Path

import pytest

from popdist.engine.shm.memory_limits import commits_strictly, in_units, memory_left

V2_MOUNT = "35 24 0:30 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "30 24 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "31 24 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "22 1 254:1 / / rw,relatime - ext4 /dev/root rw\n"
)
STAT = "anon 5\ninactive_file 30\nactive_file 12\n"


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> str:
    """Write what the kernel would show of itself below `root`, and return it."""
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts} | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def version_2(folder: str, limit: object, usage: int, stat: str = "") -> dict[str, str]:
    folder = f"sys/fs/cgroup{folder}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": stat,
    }


def version_1(folder: str, limit: int, usage: int, stat: str = "") -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory{folder}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": stat,
    }


def test_the_memory_left_is_the_limit_without_the_usage(tmp_path: Path) -> None:
    files = version_2("/job", 1000, 300)

    root = machine(tmp_path, "0::/job\n", V2_MOUNT.format(top="/"), files)
    assert memory_left(root) == 700


def test_files_in_the_page_cache_make_room(tmp_path: Path) -> None:
    files = version_2("/job", 1000, 300, STAT)

    root = machine(tmp_path, "0::/job\n", V2_MOUNT.format(top="/"), files)
    assert memory_left(root) == 742


def test_a_cgroup_above_may_be_the_tighter_one(tmp_path: Path) -> None:
    files = {
        **version_2("/job", 1000, 900),
        **version_2("/job/a", "max", 5),
        **version_2("/job/a/b", 800, 5),
    }

    root = machine(tmp_path, "0::/job/a/b\n", V2_MOUNT.format(top="/"), files)
    assert memory_left(root) == 100


def test_in_a_container_the_mount_shows_its_own_cgroup(tmp_path: Path) -> None:
    mounts = V1_MOUNTS.format(top="/docker/abc")
    groups = "4:cpu:/docker/abc\n3:memory:/docker/abc/x\n0::/docker/abc\n"
    files = {**version_1("", 1000, 10), **version_1("/x", 1000, 600)}

    root = machine(tmp_path, groups, mounts, files)
    assert memory_left(root) == 400


@pytest.mark.parametrize("path", ["/elsewhere/abc", "/../abc", "/dockerized"])
def test_a_path_that_is_not_mounted_stands_for_the_top(
    tmp_path: Path, path: str
) -> None:
    top = "/" if ".." in path else "/docker"
    mounts = V1_MOUNTS.format(top=top)
    files = {**version_1("", 1000, 10), **version_1("/../abc", 5, 0)}

    root = machine(tmp_path, f"3:memory:{path}\n", mounts, files)
    assert memory_left(root) == 990


def test_version_1_counts_the_cache_of_the_cgroups_below(tmp_path: Path) -> None:
    stat = "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n"
    files = version_1("/job", 1000, 500, stat)

    root = machine(tmp_path, "3:memory:/job\n", V1_MOUNTS.format(top="/"), files)
    assert memory_left(root) == 620


def test_a_usage_beyond_the_limit_leaves_nothing(tmp_path: Path) -> None:
    files = version_2("/job", 1000, 1200)

    root = machine(tmp_path, "0::/job\n", V2_MOUNT.format(top="/"), files)
    assert memory_left(root) == 0


@pytest.mark.parametrize(
    ("groups", "mounts", "files"),
    [
        pytest.param("", "", {}, id="no-cgroups"),
        pytest.param("0::/\n", V2_MOUNT.format(top="/"), {}, id="uppermost"),
        pytest.param(
            "0::/job\n",
            V2_MOUNT.format(top="/"),
            version_2("/job", "max", 10),
            id="no-limit-in-version-2",
        ),
        pytest.param(
            "3:memory:/job\n",
            V1_MOUNTS.format(top="/"),
            version_1("/job", 9223372036854771712, 10),
            id="no-limit-in-version-1",
        ),
        pytest.param(
            "3:cpu:/job\n",
            V1_MOUNTS.format(top="/"),
            version_1("/job", 1000, 10),
            id="a-controller-that-is-not-memory",
        ),
    ],
)
def test_without_a_limit_there_is_no_number(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str]
) -> None:
    assert memory_left(machine(tmp_path, groups, mounts, files)) is None


def test_without_proc_there_is_no_number(tmp_path: Path) -> None:
    assert memory_left(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("mode", "strict"), [("0\n", False), ("1\n", False), ("2\n", True), (None, False)]
)
def test_a_kernel_may_count_every_page_that_it_has_promised(
    tmp_path: Path, mode: str | None, strict: bool
) -> None:
    files = {} if mode is None else {"proc/sys/vm/overcommit_memory": mode}

    assert commits_strictly(machine(tmp_path, "", "", files)) == strict


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (3 << 20, "3 MiB"),
        (1 << 36, "64 GiB"),
    ],
)
def test_sizes_are_written_for_people(nbytes: int, words: str) -> None:
    assert in_units(nbytes) == words
