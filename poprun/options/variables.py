"""The variables that users pass to instances: [INSTANCES:]NAME[=VALUE]. Pure."""

from popdist.environment import JOB_VARIABLES, PLACE_VARIABLES, TOPOLOGY_VARIABLES
from poprun.output import selection

NAME_RULE = (
    "a name consists of letters, digits and '_', and does not begin with a digit"
)
OF_THE_JOB = frozenset({*TOPOLOGY_VARIABLES, *JOB_VARIABLES})


def is_name(text: str) -> bool:
    """Return whether every shell and every program can read a variable of this name."""
    return text.isascii() and text.isidentifier()


def parse(text: str) -> tuple[str, str, str | None]:
    """Return the set of instances, the name and the value of a text of --env.

    The set is "" for all instances. The value is None for the one that poprun's own
    environment has; the name may then end in `*`, for all names with that beginning.

    Raises:
        ValueError: The text is wrong. The sentence says why, without the value, which
            may be a secret.
    """
    head, equals, value = text.partition("=")
    instances, colon, name = head.rpartition(":")
    if colon:
        _check_instances(instances)
    if not is_name(name if equals else name.removesuffix("*")):
        raise ValueError(
            f"names {name[:100]!r}, which cannot be the name of a variable: "
            f"{NAME_RULE}. Write NAME=VALUE, NAME for the value that poprun's own "
            "environment has, or NAME* for all names that begin with NAME."
        )
    if name in OF_THE_JOB or name in PLACE_VARIABLES:
        raise ValueError(
            f"names {name}, which poprun sets itself for each instance. Leave it out."
        )
    return instances, name, value if equals else None


def _check_instances(text: str) -> None:
    words = text.lower().split(",")
    try:
        if selection.FAILED in words:
            raise ValueError("no instance has failed before the job starts")
        selection.parse(text)
    except ValueError as error:
        why = f": {error}" if str(error) else ""
        raise ValueError(
            f"has {text[:100]!r} before the colon, which must be a set of instances, "
            f"such as 0,4-7:NAME=VALUE{why}."
        ) from None
