"""Every way in which popdist fails, from the most to the least expected."""


class PopdistError(Exception):
    """The base of all errors that popdist raises on purpose."""


class UnreadableVariableError(PopdistError):
    """poprun, or somebody else, set a variable that makes no sense."""

    def __init__(self, variable: str, value: str, rule: str) -> None:
        super().__init__(
            f"{variable} is {value!r}, but must be {rule}. poprun sets it; "
            "unset it to run without poprun."
        )
        self.variable = variable


class MissingVariableError(PopdistError):
    """Some of the variables that poprun sets are there, and some are not."""

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"{variable} is not set, although other POPDIST_ variables are. "
            "poprun sets all of them or none: start the program with poprun, or "
            "unset them all to run without it."
        )
        self.variable = variable


class NotUniformError(PopdistError):
    """The instances own different numbers of replicas."""

    def __init__(self, function: str) -> None:
        super().__init__(
            f"{function} has no answer, because the instances of this job own "
            "different numbers of replicas. Use getReplicaIndexOffset and "
            "getNumLocalReplicas instead."
        )
