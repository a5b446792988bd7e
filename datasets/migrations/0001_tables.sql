-- The first tables. Moments are UTC. Keys are hashes made elsewhere, so they are text; JSON holds
-- what is only ever read back whole, columns hold what is selected or aggregated.

CREATE TABLE devices (
    key VARCHAR PRIMARY KEY,
    kind VARCHAR NOT NULL CHECK (kind IN ('cpu', 'cuda')),
    name VARCHAR NOT NULL,
    threads INTEGER NOT NULL,
    profile JSON NOT NULL,
    first_seen TIMESTAMP NOT NULL
);

CREATE TABLE graphs (
    key VARCHAR PRIMARY KEY,
    parts JSON NOT NULL,
    kind VARCHAR NOT NULL CHECK (kind IN ('forward', 'backward', 'inference')),
    family VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    licence VARCHAR NOT NULL,
    nodes INTEGER NOT NULL,
    -- zlib over msgspec JSON of the problem; NULL where it was not kept.
    problem BLOB,
    torch_version VARCHAR NOT NULL,
    created TIMESTAMP NOT NULL
);

CREATE TABLE kernels (
    signature VARCHAR NOT NULL,
    device_key VARCHAR NOT NULL,
    graph_key VARCHAR NOT NULL,
    nodes JSON NOT NULL,
    features_version INTEGER NOT NULL,
    features DOUBLE[] NOT NULL,
    compiler_us DOUBLE,
    PRIMARY KEY (signature, device_key)
);

CREATE TABLE schedules (
    id VARCHAR NOT NULL,
    graph_key VARCHAR NOT NULL,
    schedule JSON NOT NULL,
    origin VARCHAR NOT NULL,
    groups INTEGER NOT NULL,
    predicted_us DOUBLE,
    predicted_low_us DOUBLE,
    predicted_high_us DOUBLE,
    PRIMARY KEY (id, graph_key)
);

CREATE TABLE measurements (
    subject VARCHAR NOT NULL CHECK (subject IN ('kernel', 'schedule', 'extern')),
    subject_id VARCHAR NOT NULL,
    graph_key VARCHAR NOT NULL,
    device_key VARCHAR NOT NULL,
    threads INTEGER NOT NULL,
    status VARCHAR NOT NULL CHECK (status IN ('ok', 'failed')),
    reason VARCHAR NOT NULL,
    median_us DOUBLE,
    spread DOUBLE,
    rounds INTEGER NOT NULL,
    -- Low and high end of the confidence interval of the median.
    "interval" DOUBLE[],
    error DOUBLE,
    clock JSON NOT NULL,
    code_hash VARCHAR NOT NULL,
    torch_version VARCHAR NOT NULL,
    "at" TIMESTAMP NOT NULL,
    id VARCHAR PRIMARY KEY
);

-- Every decision stays. The newest one of a graph on a device is the one that holds.
CREATE TABLE decisions (
    graph_key VARCHAR NOT NULL,
    device_key VARCHAR NOT NULL,
    mode VARCHAR NOT NULL,
    model_id VARCHAR NOT NULL,
    schedule_id VARCHAR NOT NULL,
    candidates JSON NOT NULL,
    "at" TIMESTAMP NOT NULL,
    PRIMARY KEY (graph_key, device_key, "at", schedule_id)
);

CREATE TABLE models (
    id VARCHAR PRIMARY KEY,
    path VARCHAR NOT NULL,
    device_key VARCHAR NOT NULL,
    features_version INTEGER NOT NULL,
    manifest JSON NOT NULL,
    "at" TIMESTAMP NOT NULL
);

-- How far each spool file has been taken in. Written in the transaction that takes its rows in, so
-- that no row is taken in twice or lost, whenever a process is killed.
CREATE TABLE spool_files (
    name VARCHAR PRIMARY KEY,
    ingested BIGINT NOT NULL
);
