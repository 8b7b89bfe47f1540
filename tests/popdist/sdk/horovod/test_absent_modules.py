"""Parts of Horovod that start processes, which poprun does here."""

from importlib import import_module

import pytest

from popdist import sdk

sdk.install()


@pytest.mark.parametrize("name", ["horovod.spark", "horovod.ray"])
@pytest.mark.parametrize("below", ["", ".keras"])
def test_their_import_says_how_to_start_the_same_training(
    name: str, below: str
) -> None:
    with pytest.raises(
        ImportError,
        match=rf"^{name} is not available: .* of its own: poprun --num-instances N --h",
    ):
        import_module(name + below)
