-- The ledger lives in a schema of its own beside the application's tables, so
-- that an effect and its record commit together. Times are microseconds since
-- 1970, UTC; NULL means there is none. {schema} is the schema's name.

CREATE TABLE {schema}.ledger (
  one         boolean PRIMARY KEY CHECK (one),
  backend     text    NOT NULL,
  instance    text    NOT NULL CHECK (instance <> ''),
  ids         text    NOT NULL CHECK (ids IN ('shared', 'principal')),
  created_at  bigint  NOT NULL
);

-- How far the ledger has come. Whoever appends an event takes the next position
-- here as the last thing before COMMIT and holds the row until then: so positions
-- are in the order of commits, and what is rolled back leaves no gap. Room is left
-- on the page, because the row is changed all the time.
CREATE TABLE {schema}.head (
  one         boolean PRIMARY KEY CHECK (one),
  incarnation bigint  NOT NULL,
  position    bigint  NOT NULL,
  at          bigint  NOT NULL,

  -- What is no longer here. An id that was minted before has its record or is refused.
  forgotten_before     bigint,
  forgotten_operations bigint NOT NULL DEFAULT 0,
  forgotten_events     bigint NOT NULL DEFAULT 0,
  forgotten_until      bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Each incarnation but the first was begun by a declared restore, which passed
-- over the positions that a client of the time before may have seen.
CREATE TABLE {schema}.restores (
  incarnation    bigint PRIMARY KEY,
  after_position bigint NOT NULL,
  until_position bigint NOT NULL,
  actor          text   NOT NULL,
  reason         text   NOT NULL,
  at             bigint NOT NULL
);

CREATE TABLE {schema}.events (
  position bigint PRIMARY KEY,
  seq      bigint NOT NULL,
  kind     text   NOT NULL,
  state    text   NOT NULL,
  revision bigint NOT NULL,
  step     text   NOT NULL,
  outcome  text   NOT NULL,
  actor    text   NOT NULL,
  evidence text   NOT NULL,
  at       bigint NOT NULL
);

CREATE UNIQUE INDEX events_seq ON {schema}.events (seq, position);

-- A row is there before its effect runs: the id is taken before anything is done
-- under it. What it will become is filled in as the last thing, with the position
-- of its event; seq is that of its first. Until then its position is 0, at which
-- there is no event: so nothing half done can be committed, whoever sends COMMIT.
-- Where each principal has ids of its own, a digest of the principal stands before
-- the id. The results are apart, so that dropping one frees whole pages.
CREATE TABLE {schema}.operations (
  operation_id     text COLLATE "C" PRIMARY KEY,
  seq              bigint  UNIQUE,
  principal        text    NOT NULL,
  tool             text    NOT NULL,
  tool_version     text    NOT NULL,
  key_id           text    NOT NULL,
  fingerprint      bytea,
  arguments_digest bytea,
  answers_digest   bytea,
  state_digest     bytea,
  sent_digest      bytea,
  authority_until  bigint,
  retention_until  bigint,
  state            text    NOT NULL DEFAULT 'in_progress' CHECK (state IN ('in_progress', 'applied', 'partial', 'not_applied', 'released', 'awaiting_input')),
  fenced           boolean NOT NULL DEFAULT false CHECK (NOT fenced OR state = 'not_applied'),
  revision         bigint  NOT NULL DEFAULT 0,
  owner            text    NOT NULL DEFAULT '',
  lease_until      bigint,
  attempt          bigint  NOT NULL DEFAULT 0,
  effect_until     bigint,
  memo             bytea,
  effect           text    NOT NULL DEFAULT '',
  result_is_error  boolean,
  result_digest    bytea,
  result_size      bigint,
  acknowledged     boolean NOT NULL DEFAULT false,
  contradicted     boolean NOT NULL DEFAULT false,
  position         bigint  NOT NULL DEFAULT 0,
  minted_at        bigint, -- as the id says, if it looks minted
  created_at       bigint  NOT NULL DEFAULT 0,
  updated_at       bigint  NOT NULL DEFAULT 0,
  CONSTRAINT operations_complete CHECK (position = 0 OR seq IS NOT NULL),
  -- By seq too, which has an index: whoever removes events is checked against it.
  CONSTRAINT operations_told FOREIGN KEY (seq, position) REFERENCES {schema}.events (seq, position) MATCH FULL DEFERRABLE INITIALLY DEFERRED
) WITH (fillfactor = 70);

-- One principal's operations, newest first.
CREATE INDEX operations_principal ON {schema}.operations (principal, seq);

-- What somebody has to settle, or to go on with. It stays small.
CREATE INDEX operations_open ON {schema}.operations (state, seq) WHERE state IN ('in_progress', 'awaiting_input');

-- What may be forgotten one day, oldest first.
CREATE INDEX operations_minted ON {schema}.operations (minted_at) WHERE minted_at IS NOT NULL;

CREATE TABLE {schema}.results (
  seq  bigint PRIMARY KEY REFERENCES {schema}.operations (seq),
  body bytea  NOT NULL
);
