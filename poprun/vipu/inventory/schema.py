"""The tables of an inventory: most columns are the fields of the values in them."""

from typing import Any

from poprun.vipu.inventory.rows import columns_of, stored_type
from poprun.vipu.leases import Lease, ProcessIdentity
from poprun.vipu.model import Agent, Cluster, Partition
from poprun.vipu.requests import WaitingJob
from poprun.vipu.rules.numbering import Device

# "vipu" in ASCII: what makes a SQLite file an inventory.
APPLICATION_ID = 0x76697075

# Goes up with every change of the tables: no inventory of another version is opened.
VERSION = 10

_SQL = {str: "TEXT", int: "INTEGER", float: "REAL", bytes: "BLOB"}

# The columns of each table, with the types of their values.
TABLES: dict[str, dict[str, Any]] = {
    # One row: the time that leases live by, see `leases.advance_clock`. It was read
    # last so many seconds after a boot.
    "lease_clock": {"reachable_s": float, "boot_id": str, "read_at": float},
    "clusters": columns_of(Cluster),
    # Whether an agent goes when its cluster does.
    "agents": columns_of(Agent) | {"made_with_cluster": bool},
    # A bit for each IPU of the cluster that is free, the lowest first.
    "allocations": {"name": str, "cluster": str, "free_ipus": bytes},
    "allocation_users": {"allocation": str, "user": str},
    # A user that is limited may use no allocations but those of allocation_users.
    "users": {
        "name": str,
        "is_admin": bool,
        "is_limited": bool,
        "salt": bytes,
        "key_hash": bytes,
    },
    # When a lease ends, on the clock of the leases.
    "leases": columns_of(Lease) | {"ends": float},
    "partitions": columns_of(Partition) | {"size": int},
    # `child` is -1 for the parent device. The process is the one that is attached, on
    # another host than the lease's holder if there is a host.
    "devices": {"lease": str, "child": int, "partition": str}
    | columns_of(Device)
    | {name: kind | None for name, kind in columns_of(ProcessIdentity).items()}
    | {"host": str | None},
    # Jobs that wait for IPUs, in their order. `lease` is the id that the job's will
    # have. The partition is empty if one is to be made, from one of the allocations:
    # names and spaces. `heard` is when the job asked last, on that clock.
    "waiting": columns_of(WaitingJob)
    | {"lease": str, "allocations": str, "heard": float},
}
# By what the rows of a table are known, if not by their names.
_KEYS = {
    "lease_clock": "boot_id",
    "allocation_users": "allocation, user",
    "leases": "id",
    "devices": "lease, child",
    "waiting": "lease",
}
# Listed in the order in which their rows were made, which SQLite's row numbers keep.
# The others have none, and so no index of their own to write at each change.
_IN_ORDER = ("clusters", "agents", "allocations", "users", "waiting")
# Which columns have the names of rows of other tables.
_REFERENCES = {
    "agents": ("cluster", "allocation"),
    "allocations": ("cluster",),
    "allocation_users": ("allocation",),
    "partitions": ("cluster", "allocation", "lease"),
    "devices": ("lease", "partition"),
}
_INDEXES = """
CREATE UNIQUE INDEX agent_of_machine ON agents (cluster, machine);
CREATE INDEX agents_of_allocation ON agents (allocation, machine);
CREATE INDEX agents_in_trouble ON agents (cluster, machine) WHERE status <> 'up';
CREATE INDEX partitions_of_lease ON partitions (lease) WHERE lease IS NOT NULL;
CREATE INDEX partitions_of_allocation ON partitions (allocation);
CREATE INDEX devices_of_partition ON devices (partition, child);
"""


def _create(table: str, columns: dict[str, Any]) -> str:
    parts = []
    for name, kind in columns.items():
        stored, is_optional = stored_type(kind)
        parts.append(f"{name} {_SQL[stored]}{'' if is_optional else ' NOT NULL'}")
    parts.append(f"PRIMARY KEY ({_KEYS.get(table, 'name')})")
    for name in _REFERENCES.get(table, ()):
        parts.append(f"FOREIGN KEY ({name}) REFERENCES {name}s")
    numbering = "" if table in _IN_ORDER else " WITHOUT ROWID"
    return f"CREATE TABLE {table} ({', '.join(parts)}){numbering};\n"


# What makes a new inventory.
SCRIPT = (
    "".join(_create(table, columns) for table, columns in TABLES.items())
    + _INDEXES
    + "INSERT INTO lease_clock VALUES (0, '', 0);"
)
