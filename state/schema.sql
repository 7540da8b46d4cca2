-- state/schema.sql - numbered migrations of the state database, embedded at build.
--
-- A line "-- migration N" begins migration N; they run in order, each in one transaction
-- that also sets user_version = N. What has shipped is never edited: add a migration.

-- migration 1
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;

-- Who did what, when, with what result. Rows are only ever added.
CREATE TABLE journal (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms   INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    what    TEXT NOT NULL,
    subject TEXT NOT NULL,
    result  TEXT NOT NULL,
    detail  TEXT NOT NULL
) STRICT;

CREATE TABLE model (
    name       TEXT PRIMARY KEY,
    path       TEXT NOT NULL,
    family     TEXT NOT NULL,
    main_type  TEXT NOT NULL,
    format     TEXT NOT NULL,
    n_params   INTEGER NOT NULL,
    file_bytes INTEGER NOT NULL,
    added_ms   INTEGER NOT NULL
) STRICT;

-- Instances as last applied; options is the JSON that they were started with.
CREATE TABLE instance (
    name       TEXT PRIMARY KEY,
    model      TEXT NOT NULL,
    mode       TEXT NOT NULL,
    options    TEXT NOT NULL,
    applied_ms INTEGER NOT NULL
) STRICT;

-- migration 2
-- The rack as last recorded, as JSON: what the next start is compared with.
CREATE TABLE rack (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    name   TEXT NOT NULL,
    json   TEXT NOT NULL,
    at_ms  INTEGER NOT NULL
) STRICT;

-- migration 3
-- Configuration revisions: whole texts, never rewritten; null: pruned. state is a row of
-- REV_STATE_MAP.
CREATE TABLE revision (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    text        TEXT,
    hash        TEXT NOT NULL,
    base        INTEGER NOT NULL,
    author      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    comment     TEXT NOT NULL,
    hypothesis  TEXT NOT NULL,
    state       TEXT NOT NULL,
    why         TEXT NOT NULL,
    applied_ms  INTEGER NOT NULL,
    ended_ms    INTEGER NOT NULL,
    journal_head TEXT NOT NULL,
    before_json TEXT NOT NULL,
    after_json  TEXT NOT NULL
) STRICT;

-- One row: what runs, what is good, what waits for a confirmation, and until when.
CREATE TABLE config (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    running     INTEGER NOT NULL,
    good        INTEGER NOT NULL,
    pending     INTEGER NOT NULL,
    phase       TEXT NOT NULL,
    boot_id     TEXT NOT NULL,
    deadline_us INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL,
    guard       TEXT NOT NULL,
    draft       TEXT, -- null: there is none
    draft_base  INTEGER NOT NULL,
    draft_author TEXT NOT NULL
) STRICT;

-- API keys: the secret is shown once; its SHA-256 stays.
CREATE TABLE api_key (
    id          TEXT PRIMARY KEY,
    hash        BLOB NOT NULL,
    name        TEXT NOT NULL,
    scopes      TEXT NOT NULL,
    made_ms     INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    revoked_ms  INTEGER NOT NULL,
    req_per_min INTEGER NOT NULL,
    tok_per_min INTEGER NOT NULL,
    streams     INTEGER NOT NULL
) STRICT;

-- SLO accounting, one row a minute for each instance and class; kept 30 days.
CREATE TABLE slo_minute (
    minute      INTEGER NOT NULL,
    instance    TEXT NOT NULL,
    class       TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    json        TEXT NOT NULL,
    PRIMARY KEY (minute, instance, class)
) STRICT, WITHOUT ROWID;

-- Devices that placement must avoid.
CREATE TABLE cordon (
    device      TEXT PRIMARY KEY,
    reason      TEXT NOT NULL,
    actor       TEXT NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;

-- What an operator said of an instance beside the configuration: stopped, draining.
CREATE TABLE admin_state (
    instance    TEXT PRIMARY KEY,
    state       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    actor       TEXT NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;

-- Measured links between devices, beside the nominal figures; latest of each pair.
CREATE TABLE measurement (
    rack        TEXT NOT NULL,
    a           TEXT NOT NULL,
    b           TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    bytes_per_s REAL NOT NULL,
    spread      REAL NOT NULL,
    latency_s   REAL NOT NULL,
    PRIMARY KEY (rack, a, b)
) STRICT, WITHOUT ROWID;

-- Plans that were made, for `plan show`.
CREATE TABLE plan (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms       INTEGER NOT NULL,
    model       TEXT NOT NULL,
    rack        TEXT NOT NULL,
    request     TEXT NOT NULL,
    result      TEXT NOT NULL
) STRICT;

-- The journal becomes a hash chain: from where it came, and the hash over all of the row
-- and the hash before it ('' in rows from before this migration).
ALTER TABLE journal ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE journal ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE journal ADD COLUMN hash TEXT NOT NULL DEFAULT '';

-- migration 4
-- Load runs: the contract that makes two of them comparable, and what was measured.
CREATE TABLE load_run (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms       INTEGER NOT NULL,
    instance    TEXT NOT NULL,
    model       TEXT NOT NULL,
    actor       TEXT NOT NULL,
    contract    TEXT NOT NULL,
    result      TEXT NOT NULL
) STRICT;

-- migration 5
-- Instances whose experts an operator has frozen where they are.
CREATE TABLE expert_freeze (
    instance    TEXT PRIMARY KEY,
    reason      TEXT NOT NULL,
    actor       TEXT NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;

-- migration 6
-- Quality runs: how far an instance's answers are from the exact ones of its model, and
-- what an exact instance said ('': the run was of another, or nothing was kept).
CREATE TABLE quality_run (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms       INTEGER NOT NULL,
    instance    TEXT NOT NULL,
    model       TEXT NOT NULL,
    actor       TEXT NOT NULL,
    model_hash  TEXT NOT NULL,
    exact       INTEGER NOT NULL,
    contract    TEXT NOT NULL,
    result      TEXT NOT NULL,
    reference   TEXT NOT NULL
) STRICT;
