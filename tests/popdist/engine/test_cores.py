from pathlib import Path

import pytest

from popdist.engine.cores import cores_of_cache, cores_of_cgroups

V2_MOUNT = "35 24 0:30 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "30 24 0:31 {top} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "31 24 0:32 {top} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "32 24 0:33 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "22 1 254:1 / / rw,relatime - ext4 /dev/root rw\n"
)
V1_GROUPS = "4:cpuset:{path}\n3:memory:/elsewhere\n2:cpu,cpuacct:{path}\n0::{path}\n"


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> str:
    """Write what the kernel would show of itself below `root`, and return it."""
    below = {f"sys/fs/cgroup{name}": text for name, text in files.items()}
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts} | below
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n")
    return str(root)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [("0-63", 64), ("5", 1), ("0-1,8-11,30", 7), ("", None)],
)
def test_the_cores_of_a_set_are_counted(
    tmp_path: Path, cores: str, expected: int | None
) -> None:
    files = {"/job/cpuset.cpus.effective": cores}
    root = machine(tmp_path / "2", "0::/job", V2_MOUNT.format(top="/"), files)
    assert cores_of_cgroups(root) == expected

    files = {"/cpuset/job/cpuset.effective_cpus": cores}
    groups, mounts = V1_GROUPS.format(path="/job"), V1_MOUNTS.format(top="/")
    assert cores_of_cgroups(machine(tmp_path / "1", groups, mounts, files)) == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("400000", 4), ("399999", 3), ("50000", 1), (None, None)],
)
def test_a_share_of_time_is_so_many_whole_cores_but_at_least_one(
    tmp_path: Path, quota: str | None, expected: int | None
) -> None:
    files = {"/job/cpu.max": f"{quota or 'max'} 100000"}
    root = machine(tmp_path / "2", "0::/job", V2_MOUNT.format(top="/"), files)
    assert cores_of_cgroups(root) == expected

    files = {
        "/cpu/job/cpu.cfs_quota_us": quota or "-1",
        "/cpu/job/cpu.cfs_period_us": "100000",
    }
    groups, mounts = V1_GROUPS.format(path="/job"), V1_MOUNTS.format(top="/")
    assert cores_of_cgroups(machine(tmp_path / "1", groups, mounts, files)) == expected


def test_the_tightest_of_all_cgroups_counts(tmp_path: Path) -> None:
    files = {
        "/job/cpu.max": "300000 100000",
        "/job/a/cpu.max": "max 100000",
        "/job/a/cpuset.cpus.effective": "0-7",
        "/job/a/b/cpu.max": "500000 100000",
    }

    root = machine(tmp_path, "0::/job/a/b", V2_MOUNT.format(top="/"), files)
    assert cores_of_cgroups(root) == 3


def test_in_a_container_the_mount_shows_its_own_cgroup(tmp_path: Path) -> None:
    groups, mounts = V1_GROUPS.format(path="/box/x"), V1_MOUNTS.format(top="/box/x")
    files = {"/cpuset/cpuset.effective_cpus": "2-3", "/cpu/cpu.cfs_quota_us": "900000"}

    assert cores_of_cgroups(machine(tmp_path, groups, mounts, files)) == 2


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert cores_of_cgroups(str(tmp_path)) is None
    assert cores_of_cgroups(machine(tmp_path, "0::/job", "", {})) is None


def test_unreadable_files_of_a_cgroup_set_no_limit(tmp_path: Path) -> None:
    files = {"/job/cpu.max": "300000 100000"}
    root = machine(tmp_path, "0::/job/a", V2_MOUNT.format(top="/"), files)
    # Not even root can read a folder as a file.
    (tmp_path / "sys/fs/cgroup/job/a/cpu.max").mkdir(parents=True)

    assert cores_of_cgroups(root) == 3


def processor(root: Path, core: int, files: dict[str, str]) -> str:
    """Write what the kernel shows of a core below `root`, and return that."""
    for name, text in files.items():
        path = root / f"sys/devices/system/cpu/cpu{core}" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{text}\n")
    return str(root)


def test_a_cores_last_cache_is_the_one_with_the_highest_index(tmp_path: Path) -> None:
    files = {
        "topology/package_cpus_list": "0-63",
        "cache/index0/shared_cpu_list": "5",
        "cache/index1/shared_cpu_list": "5,37",
        "cache/index2/shared_cpu_list": "4-7,36-39",
    }

    assert cores_of_cache(5, processor(tmp_path, 5, files)) == {
        *range(4, 8),
        *range(36, 40),
    }


def test_without_caches_the_cores_of_a_socket_are_taken(tmp_path: Path) -> None:
    root = processor(tmp_path, 9, {"topology/package_cpus_list": "8-15"})

    assert cores_of_cache(9, root) == set(range(8, 16))


def test_where_the_kernel_shows_neither_all_cores_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    assert cores_of_cache(1, str(tmp_path)) == {0, 1, 2, 3}
