"""The names and groups of an optimizer's parameters, checked."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch import Tensor


def names_of(
    params: Sequence[Tensor], named: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """Return a name for each parameter, by which the ranks' gradients are matched.

    Raises:
        ValueError: The names are not one for each parameter.
    """
    if named is None:
        return {param: f"gradient.noname.{i}" for i, param in enumerate(params)}
    pairs = list(named)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters must be pairs of a name and a parameter, such as "
            "model.named_parameters()."
        )
    counts = Counter(name for name, _ in pairs)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ValueError(
            f"named_parameters has several parameters of the names {', '.join(twice)}, "
            "but the ranks' gradients are matched by name. Give each parameter a "
            "different name."
        )
    names = {param: name for name, param in pairs}
    unnamed = sum(param not in names for param in params)
    if unnamed:
        raise ValueError(
            f"named_parameters lacks {unnamed} of the optimizer's {len(params)} "
            "parameters. Name all of them, or none."
        )
    return {param: names[param] for param in params}


def groups_of(
    params: Sequence[Tensor],
    names: dict[Tensor, str],
    groups: int | Sequence[Sequence[Tensor]] | None,
) -> dict[Tensor, list[Tensor]]:
    """Return the group of each parameter that is in one.

    Args:
        params: All of them.
        names: Their names.
        groups: A number of groups, or the groups.

    Raises:
        ValueError: The groups are not valid.
    """
    if groups is None or (isinstance(groups, int) and groups == 0):
        return {}
    trained = [param for param in params if param.requires_grad]
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(
                f"groups is {groups}, but must be a number from 0, or a list of lists "
                "of parameters."
            )
        lists = _cut(trained, groups)
    else:
        lists = [list(group) for group in groups]
    group_of: dict[Tensor, list[Tensor]] = {}
    for group in lists:
        for param in group:
            if not isinstance(param, Tensor) or param not in names:
                raise ValueError(
                    "groups has an entry that is not a parameter of the optimizer. "
                    "Give lists of its parameters."
                )
            if param in group_of:
                raise ValueError(
                    f"The parameter of {names[param]!r} is in two groups, but can be "
                    "in one only."
                )
            group_of[param] = group
    return group_of


def _cut(params: list[Tensor], number: int) -> list[list[Tensor]]:
    """Return the parameters in so many lists of about equal lengths."""
    number = min(number, len(params))
    ends = [len(params) * i // number for i in range(number + 1)] if number else []
    return [params[begin:end] for begin, end in pairwise(ends)]
