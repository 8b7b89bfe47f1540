"""The errors that popdist raises."""

from collections.abc import Sequence


class PopdistError(Exception):
    """The base of all errors that popdist raises on purpose."""


class UnreadableVariableError(PopdistError):
    """A variable set by a launcher has an invalid value."""

    def __init__(
        self, variable: str, value: str, rule: str, by: str = "poprun"
    ) -> None:
        super().__init__(
            f"{variable} is {value!r}, but must be {rule}. {by} sets it; "
            f"unset it to run without {by}."
        )
        self.variable = variable


class MissingVariableError(PopdistError):
    """Some of the variables that poprun sets are set, and some are not."""

    def __init__(self, *variables: str) -> None:
        *most, last = variables
        they = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        super().__init__(
            f"{they} not set, although other POPDIST_ variables are. "
            "poprun sets all of them or none: start the program with poprun, or "
            "unset them all to run without it."
        )
        self.variable = variables[0]
        self.variables = variables


class LauncherError(PopdistError):
    """Another launcher started several processes, which cannot find each other."""


class NotUniformError(PopdistError):
    """The instances own different numbers of replicas."""

    def __init__(self, function: str) -> None:
        super().__init__(
            f"{function} has no result, because the instances of this job own "
            "different numbers of replicas. Use getReplicaIndexOffset and "
            "getNumLocalReplicas instead."
        )


class SettingError(PopdistError):
    """The user set one of popdist's own variables to a value that is not valid."""

    def __init__(self, variable: str, value: str, rule: str) -> None:
        super().__init__(
            f"{variable} is {value!r}, but must be {rule}. Correct it, or unset it."
        )
        self.variable = variable


class DeviceError(PopdistError):
    """This instance has no device, or this process may not attach to it."""


class BackendError(PopdistError):
    """A backend function was called out of order, or with an unknown backend."""


class ArenaError(PopdistError):
    """The instances of this host cannot connect, or cannot get shared memory."""


class MismatchError(PopdistError):
    """Instances made different calls where one collective call was expected."""


class PeerLostError(PopdistError):
    """Instances ended, or closed the group, while other members needed them."""

    def __init__(self, message: str, instances: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.instances = tuple(instances)


class ElasticError(PopdistError):
    """The job cannot re-form: no poprun can give it new members, or poprun refuses."""


class LeftJobError(SystemExit, ElasticError):
    """The host of this instance has left the job, and the others go on without it.

    If it ends the program, Python prints its sentence and no traceback, as for each
    SystemExit: a host that is to leave is no error.
    """


class MembersChangedError(PopdistError):
    """Instances are to join or leave the job, so all of its members must re-form."""


class CollectiveTimeoutError(PopdistError):
    """Instances are alive, but did not make a collective call before its timeout."""


class CollectiveAbortedError(PopdistError):
    """An instance failed in a collective call or called abort(); the group ended."""


class GroupUnusableError(PopdistError):
    """The group is closed, has failed before, or belongs to another process.

    If it has failed before, that error is the cause, and `instances` are the instances
    lost at the time.
    """

    def __init__(self, message: str, instances: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.instances = tuple(instances)
