"""--sync: the folder of a program is copied to hosts that do not share it."""

from collections.abc import Callable

import pytest
from beds.bed import Bed
from beds.host import Host

pytestmark = pytest.mark.mpi

Make = Callable[..., Bed]
JOB = ("poprun", "--mpirun", "local", "--host", "h0,h1,h2", "-n", "3")
FOLDER = "/root/my job"
MAKE_FOLDER = f"""
rm -rf '{FOLDER}'
mkdir -p '{FOLDER}/part' '{FOLDER}/.git' '{FOLDER}/env' '{FOLDER}/part/__pycache__'
cd '{FOLDER}'
echo 'import part.text; print(part.text.WORD)' >train.py
echo 'WORD = "copied"' >part/text.py
ln -s part/text.py link
ln -s /nothing/there dangling
mkfifo pipe
touch .git/HEAD env/pyvenv.cfg part/__pycache__/old part/secret
echo '- secret' >part/.rsync-filter
"""
LIST = "find . | sort"


def shell(host: Host, script: str, cwd: str = FOLDER) -> str:
    return host.output("sh", "-ec", script, cwd=cwd)


@pytest.fixture
def homes(own_homes: Bed) -> Bed:
    """Three hosts, of which only the first has the folder."""
    shell(own_homes.front, MAKE_FOLDER, cwd="/")
    for name in ("h1", "h2"):
        shell(own_homes[name], f"rm -rf '{FOLDER}'", cwd="/")
    return own_homes


def test_a_folder_is_copied_without_what_belongs_to_one_host(homes: Bed) -> None:
    words = (*JOB, "--sync", ".", "-v", "python3", "-B", "train.py")

    first = homes.front.run(*words, cwd=FOLDER)
    shell(homes["h1"], "echo kept >result; rm part/text.py")
    shell(homes.front, "echo 'WORD = \"new\"' >part/text.py; rm link")
    second = homes.front.run(*words, cwd=FOLDER)

    assert (first.returncode, first.stdout) == (0, "copied\n" * 3), first
    assert f"Copying the folder {FOLDER} to h1, h2\n" in first.stderr
    assert (second.returncode, second.stdout) == (0, "new\n" * 3), second
    there = ". ./dangling ./link ./part ./part/.rsync-filter ./part/text.py ./train.py"
    assert shell(homes["h2"], LIST).split() == there.split()
    # Nothing is deleted.
    assert shell(homes["h1"], LIST).split() == sorted([*there.split(), "./result"])
    assert shell(homes["h1"], "readlink link dangling") == (
        "part/text.py\n/nothing/there\n"
    )


def test_a_folder_that_hosts_share_is_not_copied(make_bed: Make) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    shell(bed.front, MAKE_FOLDER, cwd="/")

    ran = bed.front.run(*JOB, "--sync", ".", "-v", "python3", "train.py", cwd=FOLDER)

    assert (ran.returncode, ran.stdout) == (0, "copied\n" * 3)
    assert "Copying" not in ran.stderr
    assert ".poprun" not in shell(bed.front, "ls -a")


def test_files_that_are_removed_meanwhile_are_no_failure(homes: Bed) -> None:
    script = '#!/bin/sh\\n/usr/bin/rsync "$@"; exit 24\\n'
    shell(homes.front, f"mkdir -p /root/bin; printf '{script}' >/root/bin/rsync")
    shell(homes.front, "chmod +x /root/bin/rsync")
    words = 'export PATH="/root/bin:$PATH"; exec "$@"'

    ran = homes.front.run(
        *("sh", "-c", words, "sh", *JOB, "--sync=.", "python3", "train.py"), cwd=FOLDER
    )
    shell(homes.front, "rm -r /root/bin")

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "copied\n" * 3, "")


def test_a_restart_keeps_what_instances_have_written(homes: Bed) -> None:
    shell(homes.front, "echo old >state")
    program = (
        'if [ "$POPDIST_RESTART_COUNT" = 1 ]; then echo $RANK $(cat state); exit; fi; '
        "[ $RANK = 1 ] || exec sleep 600; echo new >state; exit 1"
    )

    ran = homes.front.run(
        *(*JOB, "--sync=.", "--max-restarts=1", "sh", "-c", program), cwd=FOLDER
    )

    assert ran.returncode == 0, ran
    assert sorted(ran.stdout.splitlines()) == ["0 old", "1 new", "2 old"]


@pytest.mark.parametrize(
    ("mistake", "correction", "sentences"),
    [
        pytest.param(
            "mount --bind /dev/null /usr/bin/rsync",
            "umount /usr/bin/rsync",
            "The host h2 has no rsync, which --sync needs. Install it there "
            "with: apt install rsync\n",
            id="no-rsync",
        ),
        pytest.param(
            f"touch '{FOLDER}'",
            f"rm '{FOLDER}'",
            f"The folder {FOLDER} cannot be copied to the host h2. It says: 'mkdir: "
            f"cannot create directory '{FOLDER}': File exists'. See: ssh h2 true\n",
            id="no-directory",
        ),
    ],
)
def test_a_host_that_takes_no_folder_is_named(
    homes: Bed, mistake: str, correction: str, sentences: str
) -> None:
    shell(homes["h2"], mistake, cwd="/")
    try:
        ran = homes.front.run(*JOB, "--sync=.", "python3", "train.py", cwd=FOLDER)
    finally:
        shell(homes["h2"], correction, cwd="/")

    assert (ran.returncode, ran.stdout) == (125, "")
    assert ran.stderr.replace("\u2018", "'").replace("\u2019", "'") == (
        f"poprun: error: {sentences}"
    )


def test_what_may_not_be_read_or_written_is_named_with_its_host(homes: Bed) -> None:
    job = "/home/ipuser/job"
    make = f"mkdir -p {job}; cd {job}; touch secret; chmod 0 secret"
    homes.front.output("sh", "-ec", f"{make}; chown ipuser: .")
    words = ("poprun", "--mpirun", "local", "--host", "h0,h1", "-n", "2", "--sync=.")

    unreadable = homes.front.run(*words, "true", user="ipuser", cwd=job)
    homes.front.output("rm", f"{job}/secret")
    homes["h1"].output("sh", "-ec", f"chown root: {job}; chmod 700 {job}")
    unwritable = homes.front.run(*words, "true", user="ipuser", cwd=job)
    for host in (homes.front, homes["h1"]):
        host.output("rm", "-r", job)

    assert (unreadable.returncode, unwritable.returncode) == (125, 125)
    assert unreadable.stderr.endswith(
        "The file is on this host: make it readable, or remove it.\n"
    )
    assert "Permission denied" in unwritable.stderr
    assert unwritable.stderr.endswith(f"See: ssh h1 ls -ld {job}\n")


def test_a_script_that_a_host_lacks_is_reported_with_the_ways_to_copy_it(
    homes: Bed,
) -> None:
    for name in ("h1", "h2"):
        shell(homes[name], f"mkdir -p '{FOLDER}'", cwd="/")

    ran = homes.front.run(*JOB, "--grace=0", "python3", "train.py", cwd=FOLDER)

    assert ran.returncode == 2
    cause = ran.stderr.splitlines()[-1]
    assert cause.endswith(
        f"can't open file '{FOLDER}/train.py': [Errno 2] No such file or "
        f"directory. It must also be on {cause.split()[5]}: put it in a "
        "directory that the hosts share, or let --sync DIR copy its folder."
    )
