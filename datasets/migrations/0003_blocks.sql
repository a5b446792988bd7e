-- Triton kernels that were timed with several block sizes, each distinct one once a device.

CREATE TABLE blocks (
    source_hash VARCHAR NOT NULL,
    device_key VARCHAR NOT NULL,
    graph_key VARCHAR NOT NULL,
    -- zlib over UTF-8.
    source BLOB NOT NULL,
    name VARCHAR NOT NULL,
    own INTEGER NOT NULL,
    -- Constants by name, warps and stages of each.
    sizes JSON NOT NULL,
    -- One for each of the sizes, NULL where it could not be timed.
    us DOUBLE[] NOT NULL,
    rounds INTEGER NOT NULL,
    spread DOUBLE,
    torch_version VARCHAR NOT NULL,
    "at" TIMESTAMP NOT NULL,
    PRIMARY KEY (source_hash, device_key)
);
