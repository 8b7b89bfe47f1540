"""The calls of groups as type checkers see them: their types are in the stub.

The calls themselves are carried out by the classes that follow in a group's bases.
"""


class CommonCalls:
    """The calls that one group and several groups take and answer alike."""


class GroupCalls(CommonCalls):
    """The calls of one group."""


class ReplicaGroupsCalls(CommonCalls):
    """The calls of several groups of replicas, made in each of them."""
