"""The tables of an inventory."""

# "vipu" in ASCII: what makes a SQLite file an inventory.
APPLICATION_ID = 0x76697075

# Goes up with every change of the tables: no inventory of another version is opened.
VERSION = 5

SCRIPT = """
-- One row: the time that leases live by, see `leases.advance_clock`.
CREATE TABLE lease_clock (
    reachable_s REAL NOT NULL,
    -- When it was read last: seconds since a boot.
    boot_id TEXT NOT NULL,
    read_at REAL NOT NULL
);
INSERT INTO lease_clock VALUES (0, '', 0);

CREATE TABLE clusters (
    name TEXT PRIMARY KEY,
    num_ilds INTEGER NOT NULL,
    ild_size INTEGER NOT NULL,
    topology TEXT NOT NULL,
    gateway_topology TEXT NOT NULL,
    automatic INTEGER NOT NULL
);
CREATE TABLE agents (
    name TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    port INTEGER NOT NULL,
    status TEXT NOT NULL,
    cluster TEXT REFERENCES clusters,
    machine INTEGER,
    allocation TEXT REFERENCES allocations,
    -- Whether it goes when its cluster does.
    made_with_cluster INTEGER NOT NULL
);
CREATE UNIQUE INDEX agent_of_machine ON agents (cluster, machine);
CREATE INDEX agents_of_allocation ON agents (allocation, machine);
CREATE INDEX agents_in_trouble ON agents (cluster, machine) WHERE status <> 'up';
CREATE TABLE allocations (
    name TEXT PRIMARY KEY,
    cluster TEXT NOT NULL REFERENCES clusters,
    -- A bit for each IPU of the cluster, the lowest first.
    free_ipus BLOB NOT NULL
);
CREATE TABLE allocation_users (
    allocation TEXT NOT NULL REFERENCES allocations,
    user TEXT NOT NULL,
    PRIMARY KEY (allocation, user)
) WITHOUT ROWID;
CREATE TABLE users (
    name TEXT PRIMARY KEY,
    is_admin INTEGER NOT NULL,
    salt BLOB NOT NULL,
    key_hash BLOB NOT NULL,
    -- Whether the user may use no allocations but those of allocation_users.
    is_limited INTEGER NOT NULL
);

CREATE TABLE leases (
    id TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    job TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    since REAL NOT NULL,
    lease_s REAL NOT NULL,
    -- On the lease clock.
    ends REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE partitions (
    name TEXT PRIMARY KEY,
    cluster TEXT NOT NULL REFERENCES clusters,
    allocation TEXT NOT NULL REFERENCES allocations,
    owner TEXT NOT NULL,
    -- Of the first ILD; the other ILDs follow at distances of cluster_ild_size.
    first INTEGER NOT NULL,
    ild_share INTEGER NOT NULL,
    num_ilds INTEGER NOT NULL,
    cluster_ild_size INTEGER NOT NULL,
    num_gcds INTEGER NOT NULL,
    gcd_size INTEGER NOT NULL,
    num_replicas INTEGER NOT NULL,
    reconfigurable INTEGER NOT NULL,
    link_routing TEXT NOT NULL,
    gateway_routing TEXT NOT NULL,
    sync_type TEXT NOT NULL,
    link_topology TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    created REAL NOT NULL,
    lease TEXT REFERENCES leases,
    generation INTEGER NOT NULL
);
CREATE INDEX partitions_of_lease ON partitions (lease) WHERE lease IS NOT NULL;
CREATE INDEX partitions_of_allocation ON partitions (allocation, first);

CREATE TABLE devices (
    lease TEXT NOT NULL REFERENCES leases,
    -- -1 for the parent device.
    child INTEGER NOT NULL,
    partition_name TEXT NOT NULL REFERENCES partitions,
    id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    num_ipus INTEGER NOT NULL,
    pid INTEGER,
    start_time INTEGER,
    boot_id TEXT,
    pid_namespace TEXT,
    PRIMARY KEY (lease, child)
) WITHOUT ROWID;
CREATE INDEX devices_of_partition ON devices (partition_name, child);

-- Jobs that wait for IPUs, in the order of their tickets.
CREATE TABLE waiting (
    ticket INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The id that the lease of the job will have.
    lease TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL,
    job TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    since REAL NOT NULL,
    num_ipus INTEGER NOT NULL,
    -- Empty if one is to be made, from one of the allocations: names and spaces.
    partition_name TEXT NOT NULL,
    allocations TEXT NOT NULL,
    -- When it was heard of last, on the clock of the leases.
    heard REAL NOT NULL
);
"""
