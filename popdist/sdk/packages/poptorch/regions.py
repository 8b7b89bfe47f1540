"""The nested regions of a forward pass, with automatic casts or without."""

from dataclasses import dataclass

import torch

from .errors import Error


@dataclass(frozen=True, slots=True)
class Rule:
    """To what an operation's inputs are cast: always, or those of mixed types only."""

    dtype: torch.dtype
    only_mixed: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a forward pass, and the rule of the innermost module that has one."""

    enabled: bool = False
    module_rule: Rule | None = None


class Regions:
    """The regions that a forward pass is in; the last one counts."""

    def __init__(self) -> None:
        self._regions = [Region()]
        # Whether any of them was one with casts; and whether one may be.
        self.casts = False
        self.may_cast = True

    @property
    def current(self) -> Region:
        """The innermost region."""
        return self._regions[-1]

    @property
    def depth(self) -> int:
        """How many regions there are."""
        return len(self._regions)

    def enter(self, enabled: bool | None, module_rule: Rule | None = None) -> None:
        """Begin a region; what is None is as around it.

        Raises:
            Error: It has casts, and the model was compiled without.
        """
        around = self.current
        enabled = around.enabled if enabled is None else enabled
        if enabled and not self.may_cast:
            raise Error(
                "The model enters a region of poptorch.autocast, but entered none "
                "when it was compiled. Let forward() do the same in every call; if the "
                "executable cache holds the model as it was, empty its folder."
            )
        self._regions.append(Region(enabled, module_rule or around.module_rule))
        self.casts = self.casts or enabled

    def leave(self, depth: int | None = None) -> None:
        """End the innermost region, or all but the first so many."""
        del self._regions[self.depth - 1 if depth is None else depth :]
