"""Every way in which poprun refuses or fails, each with its exit code."""


class PoprunError(Exception):
    """The base of all errors that poprun raises on purpose."""

    exit_code = 2


class OptionError(PoprunError):
    """The words of the command line, a variable or a file make no sense."""


class TopologyError(PoprunError):
    """The replicas asked for cannot be shared out among the instances."""


class HostError(PoprunError):
    """A host, or a list of hosts, is not written as hosts are."""


class MpiArgumentError(PoprunError):
    """An argument for mpirun contradicts poprun, or this mpirun has no such one."""


class NotYetError(PoprunError):
    """The job is well described, and this version of poprun cannot start it."""


class MpiNotFoundError(PoprunError):
    """There is no mpirun, or what is called mpirun is none."""

    exit_code = 125


class ProgramNotFoundError(PoprunError):
    """There is no such program."""

    exit_code = 127


class ProgramNotExecutableError(PoprunError):
    """The program is there and cannot be run."""

    exit_code = 126


class LaunchError(PoprunError):
    """The machinery that runs instances failed, not an instance."""

    exit_code = 125
