"""The topology, drawn: PopRun's table, a compact form, and JSON.

Every function takes the hosts' names in the order of their numbers, and returns
text without a newline at its end.
"""

import json
from collections.abc import Sequence
from textwrap import wrap

from poprun.plan.topology import Topology

TITLE = "poprun topology"
NO_BREAK = "\N{NO-BREAK SPACE}"


def draw(
    topology: Topology, hosts: Sequence[str], form: str, columns: int | None
) -> str:
    """Return the topology in the form that --topology-format asks for.

    Args:
        columns: The width of the terminal, if it is shown on one.
    """
    if form == "json":
        return as_json(topology, hosts)
    text = render(topology, hosts)
    if columns and max(map(len, text.splitlines())) > columns:
        return render_compact(topology, hosts, columns)
    return text


def render(topology: Topology, hosts: Sequence[str]) -> str:
    """Draw PopRun's table; it is as wide as the replicas need, and never wraps.

    Names of hosts that do not fit their cells follow the table as foot notes.
    """
    digits = len(str(topology.num_replicas - 1))
    # A replica's cell has a space on either side of its number, and one bar.
    inner = topology.num_replicas * (digits + 3) - 1
    room = _cell_width(inner, topology.num_hosts) - 2
    rows = {
        "hosts": _host_labels(hosts, room),
        "ILDs": _indices(topology.num_ilds),
        "instances": _indices(topology.num_instances),
        "replicas": _indices(topology.num_replicas),
    }

    width = inner + 12
    title = f"{_shorten(TITLE, width - 2):^{width}}"
    rule = f"\n|-----------|{'-' * inner}|\n"
    table = [
        " " + "=" * width,
        f"|{title}|",
        f"|{'=' * width}|",
        rule.join(_row(name, labels, inner) for name, labels in rows.items()),
        " " + "-" * width,
    ]
    notes = [f"[{i}]: {name}" for i, name in enumerate(hosts) if len(name) > room]
    return "\n".join(table + notes)


def _row(name: str, labels: Sequence[str], inner: int) -> str:
    width = _cell_width(inner, len(labels))
    return f"| {name:<9} |{'|'.join(f'{label:^{width}}' for label in labels)}|"


def _cell_width(inner: int, cells: int) -> int:
    # All cells of a row are equally wide, and have a bar between them.
    return (inner + 1) // cells - 1


def _indices(number: int) -> list[str]:
    widest = len(str(number - 1))
    return [f"{index:<{widest}}" for index in range(number)]


def _host_labels(names: Sequence[str], room: int) -> list[str]:
    # Foot notes' numbers are aligned like all indices, as far as there is room.
    widest = min(room, len(f"[{len(names) - 1}]"))
    return [
        name if len(name) <= room else _shorten(f"[{index}]".ljust(widest), room)
        for index, name in enumerate(names)
    ]


def _shorten(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    dots = "..."[:room]
    return text[: room - len(dots)] + dots


def render_compact(topology: Topology, hosts: Sequence[str], width: int) -> str:
    """Describe the topology in lines of at most `width` columns, host by host.

    Only a word that is wider by itself, such as the name of a host, sticks out.
    """
    lines = [_shorten(TITLE, width)]
    for host in range(topology.num_hosts):
        first = host * topology.instances_per_host
        last = first + topology.instances_per_host - 1
        replicas = topology.replicas_of(first).start, topology.replicas_of(last)[-1]
        parts = [
            f"{hosts[host]}:",
            _span("ILD", topology.ild_of(first), topology.ild_of(last)) + ",",
            _span("instance", first, last) + ",",
            _span("replica", *replicas),
        ]
        if first < last and topology.local_replicas > 1:
            parts.append(f"({topology.local_replicas} each)")
        # Lines are broken between the parts only.
        lines += wrap(
            " ".join(part.replace(" ", NO_BREAK) for part in parts),
            width,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines).replace(NO_BREAK, " ")


def _span(noun: str, first: int, last: int) -> str:
    return f"{noun} {first}" if first == last else f"{noun}s {first}-{last}"


def as_json(topology: Topology, hosts: Sequence[str]) -> str:
    """Describe the topology for programs; the keys stay as they are."""
    return json.dumps(
        {
            "num_instances": topology.num_instances,
            "num_replicas": topology.num_replicas,
            "ipus_per_replica": topology.ipus_per_replica,
            "hosts": list(hosts),
            "ilds": list(range(topology.num_ilds)),
            "instances": [
                {
                    "index": rank,
                    "host": hosts[topology.host_of(rank)],
                    "ild": topology.ild_of(rank),
                    "local_index": topology.local_index(rank),
                    "replicas": list(topology.replicas_of(rank)),
                }
                for rank in range(topology.num_instances)
            ],
        },
        indent=2,
    )
