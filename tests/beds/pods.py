"""Pods on a host of a bed: namespaces inside its own, which a command enters.

The command runs a program in a pod as `kubectl exec` does. Pods have no network.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from beds.host import SYSTEM_PATH, Host
from beds.namespaces import Namespaces

FOLDER = "/run/pods"
SETUP = """
echo "$NAME" >/proc/sys/kernel/hostname
for place in /tmp /dev/shm /run; do mount -t tmpfs -o mode=1777 tmpfs $place; done
ip link set lo up
"""
ENTER = f"""#!/bin/sh
pid=$(cat {FOLDER}/$1) || exit 1
shift
exec nsenter --target=$pid --mount --uts --ipc --net --pid --wd=/ --
"""


@contextmanager
def pods(host: Host, *names: str, program: str) -> Iterator[str]:
    """Start pods; yield a command that runs a program in one of them.

    Args:
        program: The words by which the command runs its arguments.
    """
    with ExitStack() as stack:
        host.output("mkdir", FOLDER)
        stack.callback(host.output, "rm", "-r", FOLDER)
        for name in names:
            pod = Namespaces(host.namespaces)
            stack.callback(pod.kill)
            pod.run(["sh", "-ec", SETUP], env={"PATH": SYSTEM_PATH, "NAME": name})
            host.path(f"{FOLDER}/{name}").write_text(str(pod.pid_in_outer()))
        command = f"{FOLDER}/exec"
        host.path(command).write_text(f"{ENTER.rstrip()} {program}\n")
        host.output("chmod", "+x", command)
        yield command
