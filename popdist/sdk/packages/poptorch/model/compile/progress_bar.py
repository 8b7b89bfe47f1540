"""The bar "Graph compilation" on stderr, drawn by tqdm if it is installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


@contextmanager
def compilation_bar(is_shown: bool) -> Iterator[Callable[[int], object]]:
    """Show a bar until the block ends; call what it gives with the percentage done."""
    if not is_shown or find_spec("tqdm") is None:
        yield lambda _: None
        return
    # Not above: it may not be installed.
    from tqdm import tqdm

    with tqdm(total=100, desc="Graph compilation", bar_format=_FORMAT) as bar:
        yield lambda percent: bar.update(percent - bar.n)
