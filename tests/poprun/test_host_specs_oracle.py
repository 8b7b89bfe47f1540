"""Host expressions against ClusterShell's NodeSet, which clusters' users know."""

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from poprun.errors import HostError
from poprun.host_specs import parse_hosts


@st.composite
def ranges(draw: st.DrawFn) -> str:
    """Return what may stand between brackets: numbers and ranges of one width."""
    digits = draw(st.integers(1, 3))
    pieces = []
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, 10**digits - 1))
        last = min(first + draw(st.integers(0, 5)), 10**digits - 1)
        texts = [f"{number:0{digits}}" for number in (first, last)]
        pieces.append("-".join(texts[: draw(st.integers(1, 2))]))
    return ",".join(pieces)


LETTERS = st.text("abxyz", min_size=1, max_size=3)
PATTERNS = st.lists(
    st.tuples(LETTERS, st.one_of(st.just(""), ranges().map(lambda text: f"[{text}]"))),
    min_size=1,
    max_size=2,
).map(lambda parts: "".join(prefix + numbers for prefix, numbers in parts))
SUFFIXES = st.sampled_from(["", "-ib", ".example.org"])
EXPRESSIONS = st.lists(
    st.tuples(PATTERNS, SUFFIXES).map("".join), min_size=1, max_size=3
).map(",".join)


def names_or_refusal(text: str) -> tuple[list[str], str]:
    try:
        return [host.name for host in parse_hosts(text)], ""
    except HostError as error:
        return [], str(error)


@given(EXPRESSIONS)
def test_expressions_stand_for_the_hosts_that_nodeset_has(text: str) -> None:
    names, refusal = names_or_refusal(text)

    # A set has no duplicates; a job that names a host twice is a mistake.
    assert "is listed twice" in refusal or set(names) == set(NodeSet(text))
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "num_hosts"),
    [
        ("node[001-128]", 128),
        ("rack[1-4]node[01-16]", 64),
        ("10.1.3.10[1-4]", 4),
        ("gc-poplar-[02,04-06],login", 5),
        ("a[1-2,5]-b[7-9].pod", 9),
    ],
)
def test_expressions_of_clusters_stand_for_the_same_hosts(
    text: str, num_hosts: int
) -> None:
    names = [host.name for host in parse_hosts(text)]

    assert len(names) == num_hosts
    assert set(names) == set(NodeSet(text))
