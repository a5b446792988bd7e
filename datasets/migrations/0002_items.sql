-- What has been collected from, so that an interrupted collection goes on where it stopped and a
-- program that failed says why.

CREATE TABLE items (
    device_key VARCHAR NOT NULL,
    corpus VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    -- Programs are gone over again where kernels are to be timed more than once.
    round INTEGER NOT NULL,
    status VARCHAR NOT NULL CHECK (status IN ('ok', 'failed')),
    reason VARCHAR NOT NULL,
    graphs INTEGER NOT NULL,
    kernels INTEGER NOT NULL,
    schedules INTEGER NOT NULL,
    "at" TIMESTAMP NOT NULL,
    PRIMARY KEY (device_key, corpus, name, round)
);
