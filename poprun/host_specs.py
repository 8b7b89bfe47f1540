"""Hosts: parses and checks the lists of hosts that users write.

The name of a HostSpec is safe on the command lines of ssh and mpirun: it does not begin
with '-', and has no characters that a shell, ssh or mpirun treats specially. Nothing
here looks a name up, reads a file or knows this machine.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import chain, product
from math import prod

from poprun.errors import HostError

MOST_HOSTS = 65536
MOST_SLOTS = 65536

_IPV6_LITERAL = r"(?s)\[([^][]*:[^][]*)\](:.*)?"
_USER = r"[a-z_][a-z0-9_.-]{0,31}"
_SLOTS = r"[1-9][0-9]{0,4}"
# A number longer than a label of a name can be needs no exact refusal.
_RANGE = r"([0-9]{1,63})(?:-([0-9]{1,63}))?"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A machine that runs instances: a name or an address, checked when made."""

    name: str
    user: str | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.user is not None and not re.fullmatch(_USER, self.user):
            raise HostError(
                f"{_quote(self.user)} is not a user name: a user name has at most "
                "32 lower-case letters, digits, '_', '.' and '-', and begins with "
                "a letter or '_'; for example alice@node-1."
            )
        if self.slots is not None and not 1 <= self.slots <= MOST_SLOTS:
            raise _slots_error(str(self.slots))

    def __str__(self) -> str:
        """Return the host as parse_hosts() reads it."""
        user = "" if self.user is None else f"{self.user}@"
        name = f"[{self.name}]" if ":" in self.name else self.name
        slots = "" if self.slots is None else f":{self.slots}"
        return f"{user}{name}{slots}"

    @property
    def target(self) -> str:
        """The host as ssh reads it."""
        return self.name if self.user is None else f"{self.user}@{self.name}"


def name_for_mpirun(host: HostSpec) -> str:
    """Return the name of a host for mpirun and its remote shell.

    mpiruns cut an IPv6 address at its colons.
    """
    name = host.name
    return f"ipv6-{name.replace(':', '-')}-literal" if ":" in name else name


def parse_hosts(text: str) -> tuple[HostSpec, ...]:
    """Read a list of hosts: "a,b:2", "host[0-2,4]", "alice@10.0.0.1,[::1]"."""
    if not text:
        raise HostError("'' names no host; write one or more, as in node-1,node-2.")
    by_key: dict[str, HostSpec] = {}
    for piece in _split(text):
        if not piece:
            raise HostError(
                f"{_quote(text)} has an empty item: hosts are separated by single "
                "commas; remove the extra comma."
            )
        for host in _expand(piece):
            _add(by_key, host)
    return tuple(by_key.values())


def parse_hostfile(text: str, path: str) -> tuple[HostSpec, ...]:
    """Read a file of hosts, one a line: "a", "a:2", "a slots=2", "host[0-3]".

    Raises:
        HostError: Its message begins with path:line:column.
    """
    where = path if path.isprintable() else repr(path)
    by_key: dict[str, HostSpec] = {}
    lines = text.removeprefix("\ufeff").split("\n")
    for number, line in enumerate(lines, start=1):
        content = line.removesuffix("\r").partition("#")[0]
        # Only blanks and tabs separate words, not all that Unicode calls a space.
        words = list(re.finditer(r"[^ \t]+", content))
        if not words:
            continue
        place = f"{where}:{number}:{words[0].start() + 1}"
        with errors_at(place):
            if len(_split(words[0][0])) > 1:
                raise HostError(
                    f"{_quote(words[0][0])} contains a comma: a line has one host or "
                    "one range of hosts; put each on its own line."
                )
            hosts = list(_expand(words[0][0]))
        for word in words[1:]:
            with errors_at(f"{where}:{number}:{word.start() + 1}"):
                hosts = _read_slots_word(hosts, word[0])
        with errors_at(place):
            for host in hosts:
                _add(by_key, host)
    if not by_key:
        raise HostError(
            f"{where}:1:1: There is no host in any line; write one per line, for "
            "example node-1 slots=2."
        )
    return tuple(by_key.values())


def means_own_machine(name: str) -> bool:
    """Return whether a name or an address means the machine that it is used on."""
    key = _key(name.strip("[]"))
    return key in ("localhost", "::1", "::", "0.0.0.0") or (
        _address(key) is not None and key.startswith("127.")
    )


def is_local(host: HostSpec, own_names: Collection[str]) -> bool:
    """Return whether a host is this one, which bears `own_names`.

    A short name matches the first part of a full one. A host with a user is never
    local: only ssh can start a program as another user.
    """
    if host.user is not None:
        return False
    own = {_key(name) for name in own_names}
    own |= {name.partition(".")[0] for name in own if _address(name) is None}
    return _key(host.name) in own or means_own_machine(host.name)


def _split(text: str) -> list[str]:
    """Cut at the commas that stand outside brackets."""
    return re.findall(r"(?:^|,)((?:\[[^]]*\]?|[^][,]|\])*)", text)


def _expand(piece: str) -> Iterator[HostSpec]:
    """Yield the hosts that one piece of a list stands for, one at a time."""
    user, at, address = piece.rpartition("@")
    if literal := re.fullmatch(_IPV6_LITERAL, address):
        pattern, slots = literal[1], literal[2]
    elif address.count(":") > 1:
        pattern, slots = address, None
    else:
        pattern, colon, number = address.partition(":")
        slots = colon + number
    if not pattern or (at and not user):
        raise HostError(
            f"{_quote(piece)} is incomplete: a host is written as "
            "[USER@]HOST[:SLOTS], for example alice@node-1:2."
        )
    for name in [pattern] if ":" in pattern else _names(pattern):
        yield HostSpec(
            name=name,
            user=user if at else None,
            slots=_read_slots(slots[1:], piece) if slots else None,
        )


def _names(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern with ranges; the last range varies fastest."""
    # Texts outside brackets have even indices, texts inside them odd ones.
    parts = re.split(r"\[([^][]*)\]", pattern)
    if any("[" in part or "]" in part for part in parts[::2]):
        raise HostError(
            f"{_quote(pattern)} has an unmatched bracket: ranges stand between "
            "'[' and ']'; write it as in node[0-2,4]."
        )
    choices = [_ranges(text) for text in parts[1::2]]
    # Counted before they are made, so that a typing error costs no memory.
    sizes = [sum(last - first + 1 for first, last, _ in part) for part in choices]
    if prod(sizes) > MOST_HOSTS:
        raise _too_many(f"{_quote(pattern)} stands for too many hosts")
    numbers = [
        [
            str(n).zfill(digits)
            for first, last, digits in part
            for n in range(first, last + 1)
        ]
        for part in choices
    ]
    for chosen in product(*numbers):
        yield "".join(chain(*zip(parts[::2], (*chosen, ""), strict=True)))


def _ranges(text: str) -> list[tuple[int, int, int]]:
    """Read "0-2,04" as first and last numbers, and how many digits to write."""
    ranges = []
    for piece in text.split(","):
        numbers = re.fullmatch(_RANGE, piece)
        if not numbers:
            raise HostError(
                f"{_quote(piece)} in {_quote(f'[{text}]')} is not a range: that is "
                "a number, or two joined by '-'; write it as in node[0-2,4]."
            )
        first, last = numbers[1], numbers[2] or numbers[1]
        if int(last) < int(first):
            raise HostError(
                f"{_quote(piece)} in {_quote(f'[{text}]')} ends before it begins: a "
                f"range counts upwards; write {last}-{first}."
            )
        ranges.append((int(first), int(last), len(first)))
    return ranges


def _read_slots_word(hosts: Sequence[HostSpec], word: str) -> list[HostSpec]:
    if not word.startswith("slots="):
        raise HostError(
            f"{_quote(word)} is not valid here: only slots can follow a host, "
            "for example node-1 slots=2."
        )
    if hosts[0].slots is not None:
        raise HostError(
            f"{_quote(word)} gives a second number of slots, after "
            f"{hosts[0].slots}; leave out one of the two."
        )
    slots = _read_slots(word.removeprefix("slots="), word)
    return [replace(host, slots=slots) for host in hosts]


def _read_slots(text: str, piece: str) -> int:
    if not re.fullmatch(_SLOTS, text) or int(text) > MOST_SLOTS:
        raise _slots_error(f"{_quote(text)} in {_quote(piece)}")
    return int(text)


def _slots_error(value: str) -> HostError:
    return HostError(
        f"{value} is not a number of slots: it must be a whole number from "
        f"1 to {MOST_SLOTS}, for example node-1:2."
    )


def _add(by_key: dict[str, HostSpec], host: HostSpec) -> None:
    key = _key(host.name)
    if key in by_key:
        raise HostError(
            f"{_quote(host.name)} is listed twice: a job names each of its "
            "hosts once; leave it out here, and give it slots instead: "
            f"{replace(host, slots=2)}."
        )
    if len(by_key) == MOST_HOSTS:
        raise _too_many(f"{_quote(host.name)} is one host too many")
    by_key[key] = host


def _too_many(problem: str) -> HostError:
    return HostError(f"{problem}: a job has at most {MOST_HOSTS} hosts; list fewer.")


def _check_name(name: str) -> None:
    if len(name) > 253:
        raise HostError(
            f"{_quote(name)} has {len(name)} characters: a host name has at most 253; "
            "write a shorter name, or an address."
        )
    if ":" in name:
        if _address(name) is None:
            raise HostError(
                f"{_quote(name)} is not an IPv6 address: write one like [fd00::1] "
                "or [fd00::1]:2."
            )
    elif name and not name.strip("0123456789."):
        if _address(name) is None:
            raise HostError(
                f"{_quote(name)} is not an IPv4 address: it needs four numbers from "
                "0 to 255 without leading zeros, for example 10.1.3.101."
            )
    elif not all(map(_is_label, name.split("."))):
        raise HostError(
            f"{_quote(name)} is not a host name: each part between dots has 1 "
            "to 63 letters, digits, '-' and '_', and begins and ends with a "
            "letter or digit; for example node-1 or node-1.example.org."
        )


def _is_label(text: str) -> bool:
    # Not by a pattern: its compilation takes longer than all else that a launch does
    # with hosts.
    letters = text.replace("-", "").replace("_", "")
    ends = text[:1] + text[-1:]
    return len(text) <= 63 and text.isascii() and letters.isalnum() and ends.isalnum()


def _address(text: str) -> str | None:
    """Return an address in its one canonical form, or None if it is none."""
    is_name = ":" not in text and text.strip("0123456789.")
    # An IPv6 address with a zone means something on one machine only.
    if is_name or "%" in text:
        return None
    try:
        return ip_address(text).compressed
    except ValueError:
        return None


def _key(name: str) -> str:
    """Return the one form of a name that can be written in several ways."""
    return _address(name) or name.lower()


def _quote(text: str) -> str:
    # A byte that is no character has a backslash already, which is not doubled.
    return repr(text if len(text) <= 60 else f"{text[:57]}...").replace(r"\\", "\\")


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Begin the messages of errors with the place where they arose."""
    try:
        yield
    except HostError as error:
        raise HostError(f"{place}: {error}") from None
