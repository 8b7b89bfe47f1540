"""The group of the instances of the job, where each instance is one member."""

from popdist.communicators import participants
from popdist.engine.group import Group
from popdist.session import STATE


def instance_group() -> Group:
    """Return the group of all instances of the job: each instance is one member.

    Its calls take arrays as they are; replica_group() adds a leading axis for local
    replicas. `root`, `dest` and `source` are numbers of instances, from 0. Within
    execute_on_instances() the group consists of the chosen instances, numbered from 0,
    and only these call it.

    All instances must call it, in the same order as their other collective calls: the
    first call for each set of instances blocks until all of them have made it. It
    shares memory, and the order of calls, with replica_group().

    Raises:
        ArenaError: The instances of a host cannot share memory.
    """
    return STATE.group("replicas", participants())
