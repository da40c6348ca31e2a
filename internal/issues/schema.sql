CREATE TABLE IF NOT EXISTS issues (
	id           INTEGER PRIMARY KEY AUTOINCREMENT,
	operation_id TEXT NOT NULL,
	title        TEXT NOT NULL,
	body         TEXT NOT NULL
) STRICT;

-- Not unique: whether an operation has one effect is for the ledger to ensure and
-- for a read-back to find out.
CREATE INDEX IF NOT EXISTS issues_by_operation ON issues (operation_id);

CREATE TABLE IF NOT EXISTS watchers (
	id       INTEGER PRIMARY KEY AUTOINCREMENT,
	issue_id INTEGER NOT NULL REFERENCES issues (id),
	name     TEXT NOT NULL
) STRICT;
