"""torch's Sampler takes a data source again, as it does in the torch of PopTorch.

Samplers of programs for PopTorch pass one to super().__init__().
"""

from typing import Any

from torch.utils.data import Sampler


def accept_data_source() -> None:
    """Give torch's Sampler an __init__ that takes a data source, if it has none."""
    if "__init__" not in vars(Sampler):
        Sampler.__init__ = _initialise  # type: ignore[assignment]


# Any: the arguments of the next class in the order of methods.
def _initialise(self: Sampler[Any], *args: Any, **kwargs: Any) -> None:
    following = super(Sampler, self).__init__
    is_last = getattr(following, "__objclass__", None) is object
    takes_one = len(args) == 1 and not kwargs
    if is_last and (takes_one or (not args and kwargs.keys() == {"data_source"})):
        return
    following(*args, **kwargs)
