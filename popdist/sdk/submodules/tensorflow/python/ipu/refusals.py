"""Names of Graphcore's TensorFlow that cannot work here, and the sentence why."""

import logging
from typing import Any, NoReturn

PACKAGE = "tensorflow.python.ipu"

# Why there is nothing to read of what an IPU has done.
NO_REPORTS = "no program is compiled for an IPU, so there are no events and reports."

logger = logging.getLogger(PACKAGE)


def refuse(name: str, reason: str) -> NoReturn:
    """Raise the error for a name that the stand-in cannot offer.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        f"popdist's stand-in for {PACKAGE} has no {name}: {reason}"
    )


def refused(name: str, reason: str) -> type:
    """Return a class that can be named, and refuses to be called or subclassed."""

    # Any: the refusal is the answer to wrong arguments, too.
    def new(cls: type, *_: Any, **__: Any) -> NoReturn:
        refuse(name, reason)

    def init_subclass(**_: Any) -> NoReturn:
        refuse(name, reason)

    last = name.rpartition(".")[2]
    return type(
        last,
        (),
        {
            "__doc__": f"Refuses: {reason}",
            "__new__": new,
            "__init_subclass__": classmethod(lambda cls, **_: init_subclass()),
        },
    )
