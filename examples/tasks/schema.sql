CREATE TABLE IF NOT EXISTS tasks (
  id           INTEGER PRIMARY KEY,
  operation_id TEXT    NOT NULL REFERENCES mcpreplay_operations (operation_id),
  title        TEXT    NOT NULL,
  assignee     TEXT    NOT NULL,
  done         INTEGER NOT NULL DEFAULT 0
) STRICT;
