import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.errors import HostError
from poprun.host_specs import (
    HostSpec,
    is_local,
    name_for_mpirun,
    parse_hostfile,
    parse_hosts,
)
from poprun.mpirun.hydra import Hydra
from poprun.mpirun.no_mpi import LocalLauncher
from poprun.mpirun.openmpi import OpenMpi4, OpenMpi5
from poprun.mpirun.values import Context, MpirunArguments
from poprun.reach.connections.ssh import Ssh

NO_NAME = (
    "is not a host name: each part between dots has 1 to 63 letters, "
    "digits, '-' and '_', and begins and ends with a letter or digit; "
    "for example node-1 or node-1.example.org."
)
NO_SLOTS = (
    "is not a number of slots: it must be a whole number from 1 to "
    "65536, for example node-1:2."
)
NO_USER = (
    "is not a user name: a user name has at most 32 lower-case "
    "letters, digits, '_', '.' and '-', and begins with a letter or "
    "'_'; for example alice@node-1."
)
NO_IPV4 = (
    "is not an IPv4 address: it needs four numbers from 0 to 255 "
    "without leading zeros, for example 10.1.3.101."
)
NO_IPV6 = "is not an IPv6 address: write one like [fd00::1] or [fd00::1]:2."
NO_RANGE = (
    "is not a range: that is a number, or two joined by '-'; "
    "write it as in node[0-2,4]."
)
NO_PARTNER = (
    "has an unmatched bracket: ranges stand between '[' and ']'; write "
    "it as in node[0-2,4]."
)
EMPTY_PLACE = (
    "has an empty item: hosts are separated by single commas; remove the extra comma."
)
INCOMPLETE = (
    "is incomplete: a host is written as [USER@]HOST[:SLOTS], for "
    "example alice@node-1:2."
)
TOO_MANY = "a job has at most 65536 hosts; list fewer."
TWICE = (
    "is listed twice: a job names each of its hosts once; leave it out here, and give "
    "it slots instead:"
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("localhost", ["localhost"]),
        ("a,b", ["a", "b"]),
        ("b,a", ["b", "a"]),
        ("10.3.7.153,10.3.7.154", ["10.3.7.153", "10.3.7.154"]),
        ("host[0-2,4]", ["host0", "host1", "host2", "host4"]),
        ("host[0-1],login", ["host0", "host1", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[7,007]", ["n7", "n007"]),
        (
            "n[01-03]x[1-2]",
            ["n01x1", "n01x2", "n02x1", "n02x2", "n03x1", "n03x2"],
        ),
        ("rack[0-1].example.org", ["rack0.example.org", "rack1.example.org"]),
        ("10.1.3.10[1-4]", ["10.1.3.101", "10.1.3.102", "10.1.3.103", "10.1.3.104"]),
        ("[0-1]a", ["0a", "1a"]),
        ("gc-poplar_02", ["gc-poplar_02"]),
        ("Node1", ["Node1"]),
        ("::1", ["::1"]),
        ("[::1]", ["::1"]),
        ("[fd00::1],fd00::2", ["fd00::1", "fd00::2"]),
    ],
)
def test_a_list_of_hosts_is_read_in_its_order(text: str, names: list[str]) -> None:
    assert parse_hosts(text) == tuple(HostSpec(name=name) for name in names)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2", [HostSpec(name="a", slots=2)]),
        ("a:65536", [HostSpec(name="a", slots=65536)]),
        ("alice@a", [HostSpec(name="a", user="alice")]),
        ("_svc.x-1@10.0.0.1:3", [HostSpec(name="10.0.0.1", user="_svc.x-1", slots=3)]),
        ("[::1]:4", [HostSpec(name="::1", slots=4)]),
        ("alice@[::1]:4", [HostSpec(name="::1", user="alice", slots=4)]),
        ("alice@::1", [HostSpec(name="::1", user="alice")]),
        (
            "alice@n[0-1]:2,b",
            [
                HostSpec(name="n0", user="alice", slots=2),
                HostSpec(name="n1", user="alice", slots=2),
                HostSpec(name="b"),
            ],
        ),
    ],
)
def test_a_host_may_have_a_user_and_slots(text: str, hosts: list[HostSpec]) -> None:
    assert parse_hosts(text) == tuple(hosts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' names no host; write one or more, as in node-1,node-2."),
        ("-oProxyCommand=x", f"'-oProxyCommand=x' {NO_NAME}"),
        ("a,-oProxyCommand=x", f"'-oProxyCommand=x' {NO_NAME}"),
        ("alice@-x", f"'-x' {NO_NAME}"),
        ("[0-1]-", f"'0-' {NO_NAME}"),
        ("a;b", f"'a;b' {NO_NAME}"),
        ("$(id)", f"'$(id)' {NO_NAME}"),
        ("a b", f"'a b' {NO_NAME}"),
        ("a, b", f"' b' {NO_NAME}"),
        ("a\0", f"'a\\x00' {NO_NAME}"),
        ("a\n", f"'a\\n' {NO_NAME}"),
        ("\x1b]0;x", f"'\\x1b]0;x' {NO_PARTNER}"),
        ("\udcff", f"'\\udcff' {NO_NAME}"),
        ("٤", f"'٤' {NO_NAME}"),
        ("a..b", f"'a..b' {NO_NAME}"),
        ("a.", f"'a.' {NO_NAME}"),
        ("a" * 64, f"'{'a' * 57}...' {NO_NAME}"),
        (
            "x" * 300,
            f"'{'x' * 57}...' has 300 characters: a host name has at most 253; "
            "write a shorter name, or an address.",
        ),
        ("host:", f"'' in 'host:' {NO_SLOTS}"),
        ("host:0", f"'0' in 'host:0' {NO_SLOTS}"),
        ("host:-1", f"'-1' in 'host:-1' {NO_SLOTS}"),
        ("host:abc", f"'abc' in 'host:abc' {NO_SLOTS}"),
        ("host:٤", f"'٤' in 'host:٤' {NO_SLOTS}"),
        ("host:65537", f"'65537' in 'host:65537' {NO_SLOTS}"),
        ("[::1]:", f"'' in '[::1]:' {NO_SLOTS}"),
        (",a", f"',a' {EMPTY_PLACE}"),
        ("a,,b", f"'a,,b' {EMPTY_PLACE}"),
        ("a,", f"'a,' {EMPTY_PLACE}"),
        (":2", f"':2' {INCOMPLETE}"),
        ("@a", f"'@a' {INCOMPLETE}"),
        ("alice@", f"'alice@' {INCOMPLETE}"),
        ("Alice@a", f"'Alice' {NO_USER}"),
        ("-l@a", f"'-l' {NO_USER}"),
        ("a@b@c", f"'a@b' {NO_USER}"),
        ("10.1.3.256", f"'10.1.3.256' {NO_IPV4}"),
        ("010.1.3.1", f"'010.1.3.1' {NO_IPV4}"),
        ("12345", f"'12345' {NO_IPV4}"),
        (":::1", f"':::1' {NO_IPV6}"),
        ("[::1", f"'[::1' {NO_IPV6}"),
        ("::1%$(id)", f"'::1%$(id)' {NO_IPV6}"),
        ("a:1:2", f"'a:1:2' {NO_IPV6}"),
        ("h[0-", f"'h[0-' {NO_PARTNER}"),
        ("h]", f"'h]' {NO_PARTNER}"),
        ("h[0,a", f"'h[0,a' {NO_PARTNER}"),
        ("h[[0]]", f"'h[[0]]' {NO_PARTNER}"),
        ("h[]", f"'' in '[]' {NO_RANGE}"),
        ("h[a]", f"'a' in '[a]' {NO_RANGE}"),
        ("h[0-1-2]", f"'0-1-2' in '[0-1-2]' {NO_RANGE}"),
        ("h[0,,1]", f"'' in '[0,,1]' {NO_RANGE}"),
        (
            "h[3-1]",
            "'3-1' in '[3-1]' ends before it begins: a range counts upwards; "
            "write 1-3.",
        ),
        ("h[0-99999999]", f"'h[0-99999999]' stands for too many hosts: {TOO_MANY}"),
        ("h[1-60000],i[1-6000]", f"'i5537' is one host too many: {TOO_MANY}"),
        ("a,b,a", f"'a' {TWICE} a:2."),
        ("a,A:3", f"'A' {TWICE} A:2."),
        ("a,alice@a", f"'a' {TWICE} alice@a:2."),
        ("h[0-2,1]", f"'h1' {TWICE} h1:2."),
        ("::1,0:0::1", f"'0:0::1' {TWICE} [0:0::1]:2."),
    ],
)
def test_what_is_no_list_of_hosts_is_refused_in_one_sentence(
    text: str, message: str
) -> None:
    with pytest.raises(HostError) as refusal:
        parse_hosts(text)

    assert str(refusal.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "h[0-99999999]",
        f"h[0-{'9' * 63}]",
        "h" + f"[0-{'9' * 63}]" * 2000,
        "h[0-65535][0-65535][0-65535]",
        "h[" + "0-65535," * 1000 + "0]",
    ],
)
def test_a_range_that_is_too_long_costs_no_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostError, match="stands for too many hosts"):
            parse_hosts(text)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_number_longer_than_a_name_is_no_range() -> None:
    with pytest.raises(HostError, match="is not a range"):
        parse_hosts(f"h[{'9' * 5000}]")


def test_as_many_hosts_as_a_job_can_have_are_read() -> None:
    assert len(parse_hosts("h[0-65535]")) == 65536


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "-a"}, f"'-a' {NO_NAME}"),
        ({"name": ""}, f"'' {NO_NAME}"),
        ({"name": "[::1]"}, f"'[::1]' {NO_IPV6}"),
        ({"name": "a", "user": ""}, f"'' {NO_USER}"),
        ({"name": "a", "user": "a" * 33}, f"'{'a' * 33}' {NO_USER}"),
        ({"name": "a", "user": "a\n"}, f"'a\\n' {NO_USER}"),
        ({"name": "a", "slots": 0}, f"0 {NO_SLOTS}"),
        ({"name": "a", "slots": 65537}, f"65537 {NO_SLOTS}"),
    ],
)
def test_a_host_spec_with_an_invalid_field_cannot_be_made(
    wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(HostError) as refusal:
        HostSpec(**wrong)  # type: ignore[arg-type]

    assert str(refusal.value) == message


def test_a_hostfile_has_one_host_a_line() -> None:
    text = (
        "# the cluster\n"
        "\n"
        "node-1\n"
        "  node-2:2   # the big one\n"
        "node-3 slots=4\n"
        "alice@[fd00::1]\tslots=65536\n"
        "gc[08-09,11] slots=3#no blank needed\n"
        "10.1.3.101"
    )

    assert parse_hostfile(text, "hosts") == (
        HostSpec(name="node-1"),
        HostSpec(name="node-2", slots=2),
        HostSpec(name="node-3", slots=4),
        HostSpec(name="fd00::1", user="alice", slots=65536),
        HostSpec(name="gc08", slots=3),
        HostSpec(name="gc09", slots=3),
        HostSpec(name="gc11", slots=3),
        HostSpec(name="10.1.3.101"),
    )


def test_a_hostfile_may_come_from_windows() -> None:
    assert parse_hostfile("\ufeffa\r\n\r\nb slots=2\r\n", "hosts") == (
        HostSpec(name="a"),
        HostSpec(name="b", slots=2),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n -x\n", f"hosts:2:2: '-x' {NO_NAME}"),
        ("a\r\n\r\nb\rc\r\n", f"hosts:3:1: 'b\\rc' {NO_NAME}"),
        ("a\u2028b", f"hosts:1:1: 'a\\u2028b' {NO_NAME}"),
        ("a\u00a0slots=2", f"hosts:1:1: 'a\\xa0slots=2' {NO_NAME}"),
        ("a\0", f"hosts:1:1: 'a\\x00' {NO_NAME}"),
        ("a\n\ufeffb", f"hosts:2:1: '\\ufeffb' {NO_NAME}"),
        ("slots=2", f"hosts:1:1: 'slots=2' {NO_NAME}"),
        ("a\n\ta:0", f"hosts:2:2: '0' in 'a:0' {NO_SLOTS}"),
        ("a slots=0", f"hosts:1:3: '0' in 'slots=0' {NO_SLOTS}"),
        ("a slots=", f"hosts:1:3: '' in 'slots=' {NO_SLOTS}"),
        (
            "a:2 slots=3",
            "hosts:1:5: 'slots=3' gives a second number of slots, after 2; "
            "leave out one of the two.",
        ),
        (
            "a slots=2 slots=3",
            "hosts:1:11: 'slots=3' gives a second number of slots, after 2; "
            "leave out one of the two.",
        ),
        (
            "a max_slots=2",
            "hosts:1:3: 'max_slots=2' is not valid here: only slots can follow "
            "a host, for example node-1 slots=2.",
        ),
        (
            "a,b",
            "hosts:1:1: 'a,b' contains a comma: a line has one host or one "
            "range of hosts; put each on its own line.",
        ),
        ("a\nb\n  a slots=2", f"hosts:3:3: 'a' {TWICE} a:2."),
        (
            "h[1-60000]\nh[0-99999]",
            f"hosts:2:1: 'h[0-99999]' stands for too many hosts: {TOO_MANY}",
        ),
        (
            "",
            "hosts:1:1: There is no host in any line; write one per line, for "
            "example node-1 slots=2.",
        ),
        (
            "\ufeff# none\r\n \t\r\n",
            "hosts:1:1: There is no host in any line; write one per line, for "
            "example node-1 slots=2.",
        ),
    ],
)
def test_what_is_wrong_in_a_hostfile_is_shown_by_line_and_column(
    text: str, message: str
) -> None:
    with pytest.raises(HostError) as refusal:
        parse_hostfile(text, "hosts")

    assert str(refusal.value) == message


def test_the_name_of_a_hostfile_cannot_reach_the_terminal_raw() -> None:
    with pytest.raises(HostError) as refusal:
        parse_hostfile("", "a\x1b[31m")

    assert str(refusal.value).startswith(
        "'a\\x1b[31m':1:1: There is no host in any line"
    )


OWN_NAMES = [
    "node-1.example.org",
    "Gc-Poplar-02",
    "10.3.7.153",
    "fd00::7",
    "::ffff:10.3.7.153",
]


@pytest.mark.parametrize(
    "name",
    [
        "localhost",
        "LocalHost",
        "127.0.0.1",
        "127.1.2.3",
        "::1",
        "0:0:0:0:0:0:0:1",
        "node-1",
        "NODE-1.example.org",
        "gc-poplar-02",
        "10.3.7.153",
        "FD00:0::7",
    ],
)
def test_a_host_is_local_by_any_of_its_names(name: str) -> None:
    assert is_local(HostSpec(name=name, slots=2), OWN_NAMES)


@pytest.mark.parametrize(
    "name",
    [
        "node-2",
        "node-1.example.com",
        "node-1.example",
        "gc-poplar-02.example.org",
        "10.3.7.154",
        "128.0.0.1",
        "127.example.org",
        "127.0.0.1.example.org",
        "::2",
        # An address has no short form, although this one has dots.
        "::ffff:10",
    ],
)
def test_another_host_is_not_local(name: str) -> None:
    assert not is_local(HostSpec(name=name), OWN_NAMES)


def test_a_host_with_a_user_is_not_local() -> None:
    assert not is_local(HostSpec(name="localhost", user="alice"), OWN_NAMES)


def test_own_names_may_be_any_text() -> None:
    assert not is_local(HostSpec(name="a"), ["", "fe80::1%eth0", "(none)"])


LABELS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,8}[A-Za-z0-9])?", fullmatch=True)
NAMES = st.one_of(
    st.lists(LABELS, min_size=1, max_size=3)
    .map(".".join)
    .filter(lambda name: not re.fullmatch(r"[0-9.]+", name)),
    st.ip_addresses().map(str),
)
HOSTS = st.builds(
    HostSpec,
    name=NAMES,
    user=st.none() | st.from_regex(r"[a-z_][a-z0-9_.-]{0,31}", fullmatch=True),
    slots=st.none() | st.integers(1, 65536),
)


@given(st.lists(HOSTS, min_size=1, max_size=5, unique_by=lambda h: h.name.lower()))
def test_what_a_list_of_hosts_writes_it_reads(hosts: list[HostSpec]) -> None:
    assert parse_hosts(",".join(map(str, hosts))) == tuple(hosts)
    assert parse_hostfile("\n".join(map(str, hosts)), "hosts") == tuple(hosts)


@given(
    st.integers(0, 120), st.integers(0, 20), st.integers(1, 4), st.sampled_from("xy-.")
)
def test_ranges_count_as_printf_does(
    first: int, more: int, digits: int, joint: str
) -> None:
    low, high = f"{first:0{digits}}", f"{first + more:0{digits}}"

    hosts = parse_hosts(f"n{joint}[{low}-{high}]")

    assert [host.name for host in hosts] == [
        f"n{joint}{number:0{digits}}" for number in range(first, first + more + 1)
    ]


ODD = st.text(alphabet="ab01-_.,:@[]=;$()`&|<>*?!~'\"\\ \t\r\n\0#%{}é\ufeff\udcff")


@given(ODD | st.text())
def test_no_accepted_host_can_be_taken_for_something_else(text: str) -> None:
    accepted: list[HostSpec] = []
    said: list[str] = []
    for read in (parse_hosts, lambda text: parse_hostfile(text, "hosts")):
        try:
            accepted += read(text)
        except HostError as error:
            said.append(str(error))

    assert all(message.isprintable() for message in said)
    for host in accepted:
        assert re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9_.:-]*", host.name)
        assert len(host.name) <= 253
        assert host.user is None or re.fullmatch(r"[a-z_][a-z0-9_.-]*", host.user)
        assert host.slots is None or 1 <= host.slots <= 65536


NAMELESS = Context(argv=["shim"], host="a")


@given(ODD | st.text() | st.lists(HOSTS, min_size=1, max_size=3).map(str))
def test_only_plain_names_reach_the_command_lines_of_ssh_and_mpirun(text: str) -> None:
    try:
        hosts = parse_hosts(text)
    except HostError:
        return
    ssh = Ssh(words=("/usr/bin/ssh",), text="ssh")
    contexts = [Context(argv=["shim"], host=name_for_mpirun(host)) for host in hosts]

    for host in hosts:
        *_, separator, target, last = ssh.argv(host, ["agent"])
        assert (separator, last) == ("--", "exec agent")
        assert re.fullmatch(r"([a-z_][a-z0-9_.-]*@)?[A-Za-z0-9:][\w.:-]*", target)
    for mpi in (OpenMpi5, OpenMpi4, Hydra, LocalLauncher):
        mpirun = mpi(version="5.0", path="mpirun")
        argv = mpirun.command(MpirunArguments(), contexts)
        constant = mpirun.command(MpirunArguments(), [NAMELESS])
        for word in set(argv) - set(constant):
            assert re.fullmatch(r"[A-Za-z0-9][\w.,:-]*", word)


def test_mpirun_knows_ipv6_addresses_by_a_name_without_colons() -> None:
    assert [
        name_for_mpirun(host) for host in parse_hosts("a.b,10.0.0.1,[fd00::2]")
    ] == [
        "a.b",
        "10.0.0.1",
        "ipv6-fd00--2-literal",
    ]
