CREATE TABLE mcpreplay_events (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  seq      INTEGER NOT NULL REFERENCES mcpreplay_operations (seq),
  kind     TEXT    NOT NULL,
  state    TEXT    NOT NULL,
  revision INTEGER NOT NULL,
  step     TEXT    NOT NULL,
  outcome  TEXT    NOT NULL,
  actor    TEXT    NOT NULL,
  evidence TEXT    NOT NULL,
  at       INTEGER NOT NULL
) STRICT;
CREATE INDEX mcpreplay_events_seq ON mcpreplay_events (seq, position);
CREATE TABLE mcpreplay_ledger (
  only        INTEGER PRIMARY KEY CHECK (only = 1),
  backend     TEXT    NOT NULL,
  instance    TEXT    NOT NULL,
  incarnation INTEGER NOT NULL,
  ids         TEXT    NOT NULL CHECK (ids IN ('shared', 'principal')),
  created_at  INTEGER NOT NULL,

  -- What is no longer here. An id that was minted before has its record or is refused.
  forgotten_before     INTEGER,
  forgotten_operations INTEGER NOT NULL DEFAULT 0,
  forgotten_events     INTEGER NOT NULL DEFAULT 0,
  forgotten_until      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE mcpreplay_operations (
  seq              INTEGER PRIMARY KEY AUTOINCREMENT, -- one that was forgotten is not used again
  operation_id     TEXT    NOT NULL UNIQUE,
  principal        TEXT    NOT NULL,
  tool             TEXT    NOT NULL,
  tool_version     TEXT    NOT NULL,
  key_id           TEXT    NOT NULL,
  fingerprint      BLOB,
  arguments_digest BLOB,
  answers_digest   BLOB,
  state_digest     BLOB,
  sent_digest      BLOB,
  state            TEXT    NOT NULL CHECK (state IN ('in_progress', 'applied', 'partial', 'not_applied', 'released', 'awaiting_input')),
  fenced           INTEGER NOT NULL CHECK (fenced = 0 OR (fenced = 1 AND state = 'not_applied')),
  revision         INTEGER NOT NULL,
  owner            TEXT    NOT NULL,
  lease_until      INTEGER,
  attempt          INTEGER NOT NULL,
  effect_until     INTEGER,
  memo             BLOB,
  effect           TEXT    NOT NULL,
  result_is_error  INTEGER CHECK (result_is_error IN (0, 1)),
  result_digest    BLOB,
  result_size      INTEGER,
  acknowledged     INTEGER NOT NULL CHECK (acknowledged IN (0, 1)),
  contradicted     INTEGER NOT NULL CHECK (contradicted IN (0, 1)),
  position         INTEGER NOT NULL,
  authority_until  INTEGER,
  retention_until  INTEGER,
  minted_at        INTEGER, -- as the id says, if it looks minted
  created_at       INTEGER NOT NULL,
  updated_at       INTEGER NOT NULL
) STRICT;
CREATE INDEX mcpreplay_operations_minted ON mcpreplay_operations (minted_at) WHERE minted_at IS NOT NULL;
CREATE INDEX mcpreplay_operations_open ON mcpreplay_operations (state) WHERE state IN ('in_progress', 'awaiting_input');
CREATE INDEX mcpreplay_operations_principal ON mcpreplay_operations (principal);
CREATE TABLE mcpreplay_restores (
  incarnation    INTEGER PRIMARY KEY,
  after_position INTEGER NOT NULL,
  until_position INTEGER NOT NULL,
  actor          TEXT    NOT NULL,
  reason         TEXT    NOT NULL,
  at             INTEGER NOT NULL
) STRICT;
CREATE TABLE mcpreplay_results (
  seq  INTEGER PRIMARY KEY REFERENCES mcpreplay_operations (seq),
  body BLOB    NOT NULL
) STRICT;
CREATE TABLE mcpreplay_schema (
  version    INTEGER PRIMARY KEY,
  applied_at INTEGER NOT NULL
) STRICT;
