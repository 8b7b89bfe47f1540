from pathlib import Path

import pytest

from poprun.reach.own_host.cgroups import read_cpu_quota, read_text


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("1 0\n", None)],
)
def test_version_2_has_the_quota_in_one_file(
    tmp_path: Path, text: str, cpus: float | None
) -> None:
    put(tmp_path / "job/cpu.max", text)

    assert read_cpu_quota("0::/job\n", str(tmp_path)) == cpus


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("text", "cpus"), [("400000\n", 4.0), ("-1\n", None)])
def test_version_1_has_it_in_two(
    tmp_path: Path, folder: str, text: str, cpus: float | None
) -> None:
    put(tmp_path / folder / "job/cpu.cfs_quota_us", text)
    put(tmp_path / folder / "job/cpu.cfs_period_us", "100000\n")
    membership = "9:cpuset:/\n4:cpu,cpuacct:/job\n0::/x:y\n"

    assert read_cpu_quota(membership, str(tmp_path)) == cpus


def test_the_tightest_quota_counts_of_those_that_a_group_is_in(tmp_path: Path) -> None:
    put(tmp_path / "cpu.max", "max 100000\n")
    put(tmp_path / "pod/cpu.max", "200000 100000\n")
    put(tmp_path / "pod/job/cpu.max", "300000 100000\n")

    assert read_cpu_quota("0::/pod/job\n", str(tmp_path)) == 2.0


def test_a_container_may_see_its_own_group_as_the_uppermost(tmp_path: Path) -> None:
    put(tmp_path / "cpu.max", "50000 100000\n")

    assert read_cpu_quota("0::/docker/abc\n", str(tmp_path)) == 0.5


def test_this_process_is_asked_about_if_no_other_is() -> None:
    own = Path("/proc/self/cgroup").read_text()

    assert read_cpu_quota() == read_cpu_quota(own, "/sys/fs/cgroup")


def test_nothing_is_known_where_there_are_no_cgroups(tmp_path: Path) -> None:
    assert read_cpu_quota("", str(tmp_path)) is None
    assert read_cpu_quota("0::/job\n", str(tmp_path)) is None


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000])
def test_a_number_that_no_kernel_writes_is_no_quota(
    tmp_path: Path, number: str
) -> None:
    put(tmp_path / "job/cpu.max", f"{number} 1\n")

    assert read_cpu_quota("0::/job\n", str(tmp_path)) is None


def test_a_line_that_names_no_group_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "job/cpu.max", "50000 100000\n")

    assert read_cpu_quota("sandbox\n1:cpu\n0::/job\n", str(tmp_path)) == 0.5


def test_a_group_s_name_may_have_any_bytes(tmp_path: Path) -> None:
    put(tmp_path / "jöb/cpu.max", "50000 100000\n")
    membership = tmp_path / "cgroup"
    membership.write_bytes("0::/jöb\n".encode())

    assert read_cpu_quota(read_text(str(membership)), str(tmp_path)) == 0.5
