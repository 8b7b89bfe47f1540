"""The errors that PopART raises, and that on what the stand-in does not have."""


class popart_exception(Exception):
    """A graph, or what a session was called with, is not valid."""


class UnavailableOperatorError(popart_exception, AttributeError):
    """An operator of PopART's is not available in this stand-in."""


class popart_internal_exception(popart_exception):
    """PopART itself failed."""


class popart_runtime_error(popart_exception):
    """A session cannot run."""


class OutOfMemoryException(popart_exception):
    """A graph needs more memory than the device has."""


class poplibs_exception(Exception):
    """An operator of PopLibs failed."""


class poplar_exception(Exception):
    """Poplar failed."""


class poplar_runtime_error(poplar_exception):
    """Poplar failed while it ran a graph."""


class poplar_application_runtime_error(poplar_runtime_error):
    """A graph stopped by itself."""


class poplar_system_runtime_error(poplar_runtime_error):
    """The system below Poplar failed."""


class poplar_recoverable_runtime_error(poplar_system_runtime_error):
    """The hardware failed, and works again after a reset."""


class poplar_unrecoverable_runtime_error(poplar_system_runtime_error):
    """The hardware failed, and has to be taken out of service."""


class poplar_unknown_runtime_error(poplar_system_runtime_error):
    """The system below Poplar failed for a reason that is not known."""


class Emulated:
    """A class of PopART's, of which the stand-in has only a part."""

    def __getattr__(self, name: str) -> object:
        class_name = type(self).__name__
        raise AttributeError(
            f"popdist's stand-in for popart has no {class_name}.{name}. docs/popart.md "
            "lists what it supports.",
            name=name,
            obj=self,
        )
