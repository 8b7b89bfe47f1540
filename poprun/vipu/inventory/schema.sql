-- The tables of an inventory. The first word of a column's type says which value of
-- Python its text stands for: see _CONVERTERS in columns.py.
-- Rows of tables with row numbers are listed in the order in which they were made.

-- One row: the time that leases live by (leases.advance_clock). It was read last so
-- many seconds after a boot.
CREATE TABLE lease_clock (
    boot_id TEXT NOT NULL PRIMARY KEY,
    reachable_s REAL NOT NULL,
    read_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO lease_clock VALUES ('', 0, 0);

CREATE TABLE clusters (
    name TEXT NOT NULL PRIMARY KEY,
    num_ilds INTEGER NOT NULL,
    ild_size INTEGER NOT NULL,
    topology LinkTopology TEXT NOT NULL,
    gateway_topology ClusterTopology TEXT NOT NULL,
    automatic bool INTEGER NOT NULL,
    hosts names TEXT NOT NULL
);

CREATE TABLE agents (
    name TEXT NOT NULL PRIMARY KEY,
    host TEXT NOT NULL,
    port INTEGER NOT NULL,
    status AgentStatus TEXT NOT NULL,
    cluster TEXT REFERENCES clusters,
    machine INTEGER,
    allocation TEXT REFERENCES allocations,
    -- Whether it goes when its cluster does.
    made_with_cluster bool INTEGER NOT NULL,
    CHECK ((machine IS NULL) = (cluster IS NULL)),
    CHECK ((allocation IS NULL) = (cluster IS NULL))
);
CREATE UNIQUE INDEX agent_of_machine ON agents (cluster, machine);
CREATE INDEX agents_of_allocation ON agents (allocation, machine);
CREATE INDEX agents_in_trouble ON agents (cluster, machine) WHERE status <> 'up';

CREATE TABLE allocations (
    name TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL REFERENCES clusters ON DELETE CASCADE,
    -- A bit for each IPU of the cluster that is free, the lowest first.
    free_ipus BLOB NOT NULL
);

CREATE TABLE users (
    name TEXT NOT NULL PRIMARY KEY,
    is_admin bool INTEGER NOT NULL,
    -- Whether the user may use no allocations but those of allocation_users.
    is_limited bool INTEGER NOT NULL,
    salt BLOB NOT NULL,
    key_hash BLOB NOT NULL
);

CREATE TABLE allocation_users (
    allocation TEXT NOT NULL REFERENCES allocations ON DELETE CASCADE,
    user TEXT NOT NULL REFERENCES users ON DELETE CASCADE,
    PRIMARY KEY (allocation, user)
) WITHOUT ROWID;

CREATE TABLE leases (
    id TEXT NOT NULL PRIMARY KEY,
    holder holder TEXT NOT NULL,
    -- Of its holder: tell whether that can be in sight of this machine.
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    since REAL NOT NULL,
    lease_s REAL NOT NULL,
    spans_hosts bool INTEGER NOT NULL,
    -- On the clock of the leases.
    ends REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE partitions (
    name TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL REFERENCES clusters,
    allocation TEXT NOT NULL REFERENCES allocations,
    owner TEXT NOT NULL,
    num_gcds INTEGER NOT NULL,
    gcd_size INTEGER NOT NULL,
    num_replicas INTEGER NOT NULL,
    reconfigurable bool INTEGER NOT NULL,
    link_routing LinkRouting TEXT NOT NULL,
    gateway_routing GatewayRouting TEXT NOT NULL,
    sync_type SyncType TEXT NOT NULL,
    link_topology LinkTopology TEXT NOT NULL,
    blocks blocks TEXT NOT NULL,
    cluster_ild_size INTEGER NOT NULL,
    state PartitionState TEXT NOT NULL,
    reason TEXT NOT NULL,
    created REAL NOT NULL,
    lease TEXT REFERENCES leases,
    generation INTEGER NOT NULL,
    size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX partitions_of_lease ON partitions (lease) WHERE lease IS NOT NULL;
CREATE INDEX partitions_of_allocation ON partitions (allocation);

CREATE TABLE devices (
    lease TEXT NOT NULL REFERENCES leases,
    -- -1 for the parent device.
    child INTEGER NOT NULL,
    -- New values of a partition replace its row within a transaction.
    partition TEXT NOT NULL REFERENCES partitions DEFERRABLE INITIALLY DEFERRED,
    id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    num_ipus INTEGER NOT NULL,
    -- The process that is attached, and its host if that is not the lease holder's.
    process process TEXT,
    host TEXT,
    PRIMARY KEY (lease, child)
) WITHOUT ROWID;
CREATE INDEX devices_of_partition ON devices (partition, child);

-- Jobs that wait for IPUs, in their order.
CREATE TABLE waiting (
    -- The id that the job's lease will have.
    lease TEXT NOT NULL PRIMARY KEY,
    holder holder TEXT NOT NULL,
    num_ipus INTEGER NOT NULL,
    -- Empty if one is to be made, from one of the allocations.
    partition TEXT NOT NULL,
    allocations names TEXT NOT NULL,
    since REAL NOT NULL,
    -- When the job asked last, on the clock of the leases.
    heard REAL NOT NULL
);
