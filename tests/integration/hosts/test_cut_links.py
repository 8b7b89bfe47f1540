"""What the kernel knows of a host that is cut off."""

import subprocess
from collections.abc import Callable

from beds.bed import Bed


def test_what_is_repeated_to_a_host_that_is_cut_off_is_counted(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    program = (
        "import socket, sys, time\n"
        "sock = socket.create_connection(('10.31.0.2', 22))\n"
        "print(sock.getsockname()[1], flush=True)\n"
        "sys.stdin.readline()\n"
        "sock.send(b'x')\n"
        "from poprun.reach.connections.silence import repeats\n"
        "own = f'10.31.0.1 {sock.getsockname()[1]}'\n"
        "while repeats(own, '10.31.0.2 22') < 2: time.sleep(0.05)\n"
        "print('repeated')\n"
    )
    process = bed.front.start(
        "python3", "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline()
    bed["h1"].link.cut()
    process.stdin.write(b"\n")
    process.stdin.flush()

    assert process.stdout.readline() == b"repeated\n"
    assert process.wait(200) == 0
