"""The names of this machine's users."""

import os
import pwd


def user_name(user: int | None = None) -> str:
    """Return the name of a user, by default of poprun's own.

    It is the number where there is no entry, as in containers.
    """
    number = os.geteuid() if user is None else user
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
