import pytest

from popdist import environment as env
from poprun.errors import OptionError
from poprun.options.table import OPTIONS
from poprun.options.types import Item, item


def read(text: str) -> Item:
    return item(OPTIONS["env"], text, "--env")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("NAME=VALUE", ("", "NAME", "VALUE")),
        ("NAME=", ("", "NAME", "")),
        ("NAME", ("", "NAME", None)),
        ("_N1*", ("", "_N1*", None)),
        ("0,2-3:NAME=a:b=c", ("0,2-3", "NAME", "a:b=c")),
        ("first:NAME", ("first", "NAME", None)),
        ("all:NAME=\n é\udcff", ("all", "NAME", "\n é\udcff")),
        ("OMP_NUM_THREADS=2", ("", "OMP_NUM_THREADS", "2")),
        ("POPDIST_TIMEOUT=5", ("", "POPDIST_TIMEOUT", "5")),
    ],
)
def test_a_variable_has_a_name_a_value_and_instances(
    text: str, parts: tuple[str, str, str | None]
) -> None:
    assert read(text) == parts


@pytest.mark.parametrize("name", ["1A", "A-B", "A.B", "é", "", "A B", "A*"])
@pytest.mark.parametrize("before", ["", "0:"])
def test_a_name_that_no_shell_can_read_is_refused(name: str, before: str) -> None:
    with pytest.raises(OptionError, match="names") as refused:
        read(f"{before}{name}=secret")

    assert str(refused.value) == (
        f"--env names {name!r}, which cannot be the name of a variable: a name "
        "consists of letters, digits and '_', and does not begin with a digit. Write "
        "NAME=VALUE, "
        "NAME for the value that poprun's own environment has, or NAME* for all names "
        "that begin with NAME."
    )


@pytest.mark.parametrize(
    "name", [*env.TOPOLOGY_VARIABLES, *env.JOB_VARIABLES, *env.PLACE_VARIABLES]
)
@pytest.mark.parametrize("text", ["{}=7", "{}", "0:{}=7"])
def test_what_poprun_sets_for_each_instance_cannot_be_set(name: str, text: str) -> None:
    with pytest.raises(
        OptionError, match=f"^--env names {name}, which poprun sets itself"
    ):
        read(text.format(name))


@pytest.mark.parametrize(
    ("instances", "why"),
    [
        ("x", ""),
        ("", ""),
        ("1-", ""),
        ("3-1", ": 3-1 runs backwards; 1-3 would not"),
        ("0,failed", ": no instance has failed before the job starts"),
        ("A:0", ""),
    ],
)
def test_what_is_no_set_of_instances_is_refused(instances: str, why: str) -> None:
    with pytest.raises(OptionError, match="has") as refused:
        read(f"{instances}:NAME=secret")

    assert str(refused.value) == (
        f"--env has {instances!r} before the colon, which must be a set of instances, "
        f"such as 0,4-7:NAME=VALUE{why}."
    )
