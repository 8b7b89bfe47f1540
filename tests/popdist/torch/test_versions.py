"""The tested versions of torch, and the warning for others."""

import tomllib
import warnings
from pathlib import Path

import pytest

from popdist.torch import versions

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.mark.parametrize("version", ["2.9.1", "2.16.0a0+git1234", "3.0.0+cpu"])
def test_version_outside_of_the_range_is_one_sentence(version: str) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        versions.warn_of(version)

    assert [str(warning.message) for warning in caught] == [
        "popdist.torch is tested with torch 2.10 to 2.15, and this is torch "
        f"{version}: where it fails, pip install 'torch>=2.10,<2.16'."
    ]


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.15.3+cu132"])
def test_version_within_the_range_is_no_warning(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_of(version)


def test_range_is_that_of_the_extras_and_its_ends_are_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    requirement = "torch>=2.10,<2.16"
    assert requirement in extras["torch"]
    assert requirement in extras["popart"]
    assert (versions.OLDEST, versions.TOO_NEW) == ((2, 10), (2, 16))
    tested = {
        name: (ROOT / "scripts" / f"torch_{name}.txt").read_text()
        for name in ("oldest", "default", "newest")
    }
    assert tested == {
        "oldest": "torch==2.10.0\n",
        "default": "torch==2.13.0\n",
        "newest": "torch==2.15.0\n",
    }
