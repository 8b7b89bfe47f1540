"""The numbers of instances and replicas where the user writes none, or auto.

auto is an instance for each CPU or slot of the hosts. In a Slurm job the instances are
the tasks that srun would start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from popdist import environment as env
from poprun.errors import HostError
from poprun.host_specs import HostSpec
from poprun.options.settings import Setting, Settings, start_processes
from poprun.options.types import AUTO
from poprun.plan import slurm
from poprun.plan.values import Describe
from poprun.words import counted


def with_tasks_of_slurm(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Return settings with an instance for each task of the Slurm job.

    They stay as they are where an option gives the number of instances or the hosts,
    in a step of Slurm, in an instance of another job, and outside of Slurm.

    Args:
        environ: The environment that poprun was started with.
    """
    options = ("num-instances", "host", "hostfile", "host-discovery-script")
    is_in_task = bool(environ.get(slurm.STEP_ID)) or env.JOB_ID in environ
    if is_in_task or any(map(settings.is_given, options)):
        return settings
    try:
        allocation = slurm.read_job(environ)
    except HostError:
        return settings  # the job runs on this machine, with a warning
    number, giver = (1, "") if allocation is None else slurm.count_tasks(allocation)
    if number == 1:
        return settings
    tasks = Setting(value=number, texts=(str(number),), origin=giver)
    return replace(settings, entries=start_processes(settings.entries, tasks, giver))


def settle_auto(
    settings: Settings, hosts: Sequence[HostSpec], describe: Describe
) -> tuple[Settings, list[str]]:
    """Return settings with numbers instead of auto, and notes for the user.

    Args:
        hosts: The hosts that the job may use.

    Raises:
        PoprunError: A host without slots cannot be reached to count its CPUs.
    """
    instances, replicas = settings["num-instances"], settings["num-replicas"]
    notes: list[str] = []
    if instances == AUTO:
        counts = _count_slots(hosts, describe)
        instances = min(counts) * len(hosts)
        notes += _notes(settings, hosts, counts)
    if replicas == AUTO:
        replicas = instances
    numbers = {"num-instances": instances, "num-replicas": replicas}
    settled = {
        name: replace(settings.entries[name], value=number)
        for name, number in numbers.items()
    }
    return replace(settings, entries={**settings.entries, **settled}), notes


def _count_slots(hosts: Sequence[HostSpec], describe: Describe) -> list[int]:
    """Return the slots of each host; its usable CPUs if it has no number of slots."""
    if all(host.slots for host in hosts):
        return [host.slots or 0 for host in hosts]
    facts = describe(hosts)
    return [
        host.slots or host_facts.num_usable_cpus
        for host, host_facts in zip(hosts, facts, strict=True)
    ]


def _notes(
    settings: Settings, hosts: Sequence[HostSpec], counts: Sequence[int]
) -> list[str]:
    notes = []
    if len(set(counts)) > 1:
        share = min(counts)
        smallest = hosts[counts.index(share)].name
        notes.append(
            f"auto starts {counted(share, 'instance')} on each of the {len(hosts)} "
            f"hosts, as many as fit on {smallest}: all hosts get the same number."
        )
    is_elsewhere = settings.is_given("host") or settings.is_given("hostfile")
    if settings["dry-run"] and is_elsewhere and not all(host.slots for host in hosts):
        notes.append(
            "A dry run connects to no other host: for each host without slots, "
            "auto counts the CPUs of this one."
        )
    return notes
