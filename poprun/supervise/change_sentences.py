"""Sentences about the changes of a job's members."""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby

from poprun.helpers.processes import signal_name
from poprun.supervise.membership import Membership
from poprun.wire.events import Event, Exited, HostLost, ReformAsked, Refused, ShimLost
from poprun.words import counted, describe_instances


def describe_loss(state: Membership, event: Event) -> str:
    """Return what has happened, as a part of a sentence."""
    match event:
        case Exited(rank=rank, status=status) if os.WIFSIGNALED(status):
            name = signal_name(os.WTERMSIG(status))
            return f"instance {rank}{on_host(state, rank)} was killed by {name}"
        case Exited(rank=rank, status=status):
            code = os.WEXITSTATUS(status)
            return f"instance {rank}{on_host(state, rank)} exited with code {code}"
        case ShimLost(rank=rank):
            return f"the supervisor of instance {rank}{on_host(state, rank)} was killed"
        case Refused(rank=rank, errno=number):
            who = f"instance {rank}{on_host(state, rank)}"
            return f"{who} could not be started ({os.strerror(number)})"
        case HostLost(host=host, ranks=ranks) if ranks:
            return f"the host {host} was lost with {describe_instances(ranks)}"
        case HostLost(host=host):
            return f"the host {host} was lost"
    raise TypeError(event)


def describe_silence(state: Membership, event: ReformAsked) -> str:
    """Return which hosts do not answer a member, "" for none."""
    silent = sorted({state.hosts[r] for r in event.silent if r in state.hosts})
    who = f"instance {event.rank}{on_host(state, event.rank)}"
    return f"{who} gets no answer from {' and '.join(silent)}" if silent else ""


def describe_left(state: Membership, rank: int) -> str:
    who = f"instance {rank}{on_host(state, rank)}"
    return as_sentence(f"{state.left[rank]}, so {who} has left the job")


def describe_arrival(host: str, ranks: Sequence[int]) -> str:
    return f"the host {host} has joined with {describe_instances(ranks)}"


def describe_changes(state: Membership, added: Sequence[int]) -> Iterator[str]:
    """Yield the changes of the members without losses, as parts of a sentence."""
    yield from dict.fromkeys(state.left[r] for r in state.members if r in state.left)
    for rank in sorted(state.departed & {*state.members}):
        who = f"instance {rank}{on_host(state, rank)}"
        yield f"the process of {who} that used popdist has ended"
    if again := [rank for rank in added if rank not in state.brought]:
        verb = "was" if len(again) == 1 else "were"
        yield f"{describe_instances(again)} {verb} started again"
    brought = [rank for rank in added if rank in state.brought]
    for host, ranks in groupby(brought, lambda rank: state.hosts[rank]):
        yield describe_arrival(host, list(ranks))


def describe_lack(state: Membership) -> str:
    count = len(state.eligible)
    verb = "is" if count == 1 else "are"
    least = counted(state.least, "instance")
    if state.least_hosts > 1:
        least += f" on {counted(state.least_hosts, 'host')}"
    return (
        f"Only {counted(count, 'instance')} of the job {verb} left, but it needs at "
        f"least {least}: see --min-instances and --nnodes."
    )


def on_host(state: Membership, rank: int) -> str:
    """Return the host of an instance in brackets, "" in a job on one host."""
    return f" ({state.hosts[rank]})" if len({*state.hosts.values()}) > 1 else ""


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
