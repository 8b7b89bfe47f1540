"""A real Slurm on the hosts of a bed: slurmctld on the first one, slurmd on all."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from beds.host import Host
from conftest import wait_for

SETUP = Path(__file__).with_name("setup_slurm.sh").read_text()
# Jobs share the machine's processors, and no plugin needs what namespaces lack.
CONFIGURATION = """
ClusterName=bed
SlurmctldHost={controller}({address})
SlurmUser=root
StateSaveLocation=/run/slurm/controller
SlurmdSpoolDir=/run/slurm/daemon
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=100
MessageTimeout=100
SchedulerParameters=permit_job_expansion
PartitionName=bed Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def start(hosts: Sequence[Host], cpus: int) -> None:
    """Start Slurm with as many CPUs on each host, whatever the machine has."""
    front = hosts[0]
    lines = [
        CONFIGURATION.format(controller=front.name, address=front.address),
        *(
            f"NodeName={host.name} NodeAddr={host.address} CPUs={cpus} State=UNKNOWN\n"
            for host in hosts
        ),
    ]
    key = os.urandom(32).hex()

    def start_daemons(host: Host) -> None:
        controller = "yes" if host is front else ""
        host.set_up(SETUP, {"KEY": key, "CONTROLLER": controller}, stdin="".join(lines))

    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(start_daemons, hosts))
    wait_for(
        lambda: idle_nodes(front) == sorted(host.name for host in hosts),
        "all nodes of Slurm",
    )
    # The daemons start processes of their own after they are in the background.
    for host in hosts:
        host.note_own()


def idle_nodes(host: Host) -> list[str]:
    ran = host.run("sinfo", "--noheader", "--Node", "--states=idle", "--format=%n")
    return sorted(ran.stdout.split())


def jobs(host: Host) -> list[str]:
    """Return the number and the name of each job that has not ended.

    One whose node is lost is completing for minutes, and counts as ended.
    """
    states = "--states=pending,configuring,running,suspended"
    return host.output("squeue", "--noheader", states, "--format=%i %j").splitlines()


def add_nodes(host: Host, job_id: str, nodes: str) -> None:
    """Give a running job more nodes, by a job of their own that hands them over."""
    allocation = ("salloc", "--quiet", f"--nodelist={nodes}")
    hand_over = "scontrol update JobId=$SLURM_JOB_ID NumNodes=0"
    host.output(
        *(*allocation, f"--dependency=expand:{job_id}", "sh", "-c", hand_over),
        # It writes a script there for shells of the second job.
        cwd="/tmp",
    )
    host.output("sh", "-c", "rm /tmp/slurm_job_*_resize.*")


def cancel_jobs(host: Host) -> None:
    host.output("scancel", "--partition=bed")
    wait_for(lambda: not jobs(host), "the end of Slurm's jobs")
