"""Which virtual environments are copied."""

from pathlib import Path

import pytest

from poprun.errors import OptionError
from poprun.reach.copies import active_environments


def make_environment(path: Path) -> str:
    path.mkdir()
    (path / "pyvenv.cfg").touch()
    return str(path)


def test_the_environment_of_the_shell_and_the_own_one_are_active(
    tmp_path: Path,
) -> None:
    of_shell, own = (make_environment(tmp_path / name) for name in ("a", "b"))

    assert active_environments({}, own, "/usr") == [own]
    assert active_environments({"VIRTUAL_ENV": of_shell}, "/usr", "/usr") == [of_shell]
    assert active_environments({"VIRTUAL_ENV": of_shell}, own, "/usr") == [
        of_shell,
        own,
    ]
    assert active_environments({"VIRTUAL_ENV": f"{own}/"}, own, "/usr") == [own]


@pytest.mark.parametrize("variable", ["", "/nonexistent", "relative"])
def test_without_an_active_environment_nothing_can_be_copied(variable: str) -> None:
    with pytest.raises(OptionError, match="but none is active"):
        active_environments({"VIRTUAL_ENV": variable}, "/usr", "/usr")
