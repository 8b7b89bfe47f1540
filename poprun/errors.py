"""The exceptions of poprun, each with its exit code."""


class PoprunError(Exception):
    """The base class of the errors that poprun raises."""

    exit_code = 2


class OptionError(PoprunError):
    """An option on the command line, in a variable or in a file is not valid."""


class TopologyError(PoprunError):
    """The replicas cannot be divided equally among the instances."""


class HostError(PoprunError):
    """A host or a list of hosts is not valid."""


class MpiArgumentError(PoprunError):
    """An argument for mpirun contradicts poprun, or this mpirun lacks it."""


class NotYetError(PoprunError):
    """The job is valid, but this version of poprun cannot start it."""


class MpiNotFoundError(PoprunError):
    """There is no mpirun, or the file is not an mpirun."""

    exit_code = 125


class ProgramNotFoundError(PoprunError):
    """The program does not exist."""

    exit_code = 127


class ProgramNotExecutableError(PoprunError):
    """The program exists but cannot be run."""

    exit_code = 126


class LaunchError(PoprunError):
    """The launcher failed, not an instance."""

    exit_code = 125
