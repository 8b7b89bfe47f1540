"""Names of Horovod's launcher. poprun launches programs here.

Horovod's own tests, and some programs, import functions from below it.
"""

from .. import run

__all__ = ["run"]
