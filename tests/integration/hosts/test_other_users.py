"""Other users of a job's hosts are told nothing of it, and cannot disturb it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_ISDIR

import pytest
from beds.bed import Bed
from beds.host import Host
from conftest import ROOT, mpirun_of, wait_for

pytestmark = pytest.mark.mpi

# Writes what only its job should know, and waits.
PROGRAM = 'echo $TOKEN; echo "$POPDIST_CONTROL" >/tmp/control-$RANK; sleep 600'
# Sends each message that begins a connection, with the key, and prints what comes back.
CLIENT = """
import socket, sys
from poprun.wire import protocol
address, _, key = sys.argv[1].partition("/")
fields = {
    protocol.HELLO: (0, "h", 1, 1),
    protocol.FINALIZING: (0, b"\\1"),
    protocol.ALONE_IN_MPI: (0,),
    protocol.ATTACH: (0, 1),
    protocol.REMOTE_SHELL: ("h1", "touch /tmp/done-by-another"),
}
for kind, values in fields.items():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(200)
        sock.connect("\\0" + address[1:])
        texts = (v.encode() if isinstance(v, str) else v for v in values)
        try:
            sock.sendall(protocol.pack(kind, protocol.VERSION, key.encode(), *texts))
            print(kind, sock.recv(99))
        except (BrokenPipeError, ConnectionResetError):
            print(kind, b"")
"""


@contextmanager
def running_job(bed: Bed, mpi: str) -> Iterator[dict[Host, str]]:
    """Run a job of root's on h0 and h1; yield what each host's instance was told."""
    path = "local" if mpi == "local" else mpirun_of(mpi)
    job = bed.front.start(
        *("poprun", "--mpirun", path, "--host", "h0,h1", "-n", "2"),
        *("--mpi-global-args=-x TOKEN", "sh", "-c", PROGRAM),
        env={"TOKEN": "forwarded-secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    controls = {bed[f"h{n}"]: f"/tmp/control-{n}" for n in range(2)}

    def is_running() -> bool:
        assert job.poll() is None, job.communicate()
        paths = [host.path(file) for host, file in controls.items()]
        return all(path.exists() and path.read_text() for path in paths)

    wait_for(is_running, "the instances")
    yield {host: host.path(file).read_text() for host, file in controls.items()}
    for host, file in controls.items():
        host.path(file).unlink()
    assert job.poll() is None, "the job did not run on"
    job.terminate()
    out, err = job.communicate()
    assert out == "forwarded-secret\n" * 2
    assert "Stopped by SIGTERM" in err
    assert "Traceback" not in err


def test_another_user_with_the_key_is_refused_on_every_host(bed: Bed) -> None:
    with running_job(bed, "local") as controls:
        for host, control in controls.items():
            python = ("env", f"PYTHONPATH={ROOT}", "python3", "-c", CLIENT)
            replies = host.output(*python, control.strip(), user="ipuser")

            assert replies == "".join(f"{n} b''\n" for n in (1, 40, 41, 42, 43))

        assert not bed["h1"].path("/tmp/done-by-another").exists()


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4", "hydra", "local"])
def test_no_command_line_and_no_file_of_a_job_tells_its_secrets(
    bed: Bed, mpi: str
) -> None:
    with running_job(bed, mpi) as controls:
        for host, control in controls.items():
            _, _, key = control.strip().partition("/")
            command_lines = host.output("ps", "axww", "-o", "args", user="ipuser")
            places = ("/tmp", "/var/tmp", "/dev/shm", "/run")
            left = [path for place in places for path in host.path(place).iterdir()]
            modes = [path.stat().st_mode for path in left if "poprun" in path.name]

            assert "entry.py shim" in command_lines
            assert key not in command_lines
            assert "forwarded-secret" not in command_lines
            # What mpiruns make lies in the directory of the job.
            assert modes
            assert all(S_ISDIR(mode) and not mode & 0o077 for mode in modes)
            assert not [path for path in left if "ompi" in path.name]
