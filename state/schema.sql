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
