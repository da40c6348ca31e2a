package sqlite

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"mcpreplay/internal/rules"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the schema's versions, 1 first. They only go forward.
var migrations = func() []string {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql") // sorted
	if err != nil {
		panic(err)
	}
	var texts []string
	for _, name := range names {
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}()

// sqlNames are the names in the schema that are the ledger's.
const sqlNames = `SELECT group_concat(name, ' ' ORDER BY name) FROM main.sqlite_schema
WHERE lower(substr(name, 1, 10)) = 'mcpreplay_'`

// version reads which version of the schema the file holds; 0 is none at all.
func (s *Store) version(c *conn) (version int, err error) {
	names, err := c.text(sqlNames)
	if err != nil || names == "" {
		return 0, err
	}
	if !slices.Contains(strings.Fields(names), "mcpreplay_schema") {
		return 0, s.damaged(errVersion)
	}
	st, _, err := c.raw.Prepare("SELECT coalesce(max(version), 0) FROM main.mcpreplay_schema")
	if err != nil {
		return 0, err
	}
	defer st.Close()
	if st.Step() {
		version = st.ColumnInt(0)
	}
	if err := st.Err(); err != nil {
		return 0, err
	}
	if version == 0 { // it was made together with the first
		return 0, s.damaged(errVersion)
	}
	if version > len(migrations) {
		return 0, s.incompatible(fmt.Errorf("it holds schema version %d, newer than the %d this program knows", version, len(migrations)),
			"use a newer version of this program")
	}
	return version, nil
}

// migrate brings the schema to the latest version, one transaction each. The
// version is read again inside: another process may have been first.
func (s *Store) migrate(c *conn) error {
	for {
		version, err := s.migrateOnce(c)
		if err != nil {
			return fmt.Errorf("migrate to version %d: %w", version+1, err)
		}
		if version >= len(migrations) {
			return nil
		}
	}
}

func (s *Store) migrateOnce(c *conn) (version int, err error) {
	if err := c.raw.Exec("BEGIN IMMEDIATE"); err != nil {
		return 0, err
	}
	defer func() {
		if !c.raw.GetAutocommit() {
			err = errors.Join(err, c.raw.Exec("ROLLBACK"))
		}
	}()
	if version, err = s.version(c); err != nil || version >= len(migrations) {
		return version, err
	}
	now := rules.Micro(s.opts.Clock())
	if version == 0 {
		// Not part of a migration: it has to be there before the first one is counted.
		if err := c.raw.Exec(`CREATE TABLE mcpreplay_schema (
  version    INTEGER PRIMARY KEY,
  applied_at INTEGER NOT NULL
) STRICT`); err != nil {
			return version, err
		}
	}
	if err := c.raw.Exec(migrations[version]); err != nil {
		return version, err
	}
	if version == 0 {
		ids := s.opts.IDs
		if ids == "" {
			ids = IDsShared
		}
		err = run(c, "INSERT INTO main.mcpreplay_ledger (only, backend, instance, incarnation, ids, created_at) VALUES (1, ?, ?, 1, ?, ?)",
			s.opts.Backend, newInstance(), string(ids), now)
		if err != nil {
			return version, err
		}
	}
	if err := run(c, "INSERT INTO main.mcpreplay_schema (version, applied_at) VALUES (?, ?)", int64(version+1), now); err != nil {
		return version, err
	}
	return version, c.raw.Exec("COMMIT")
}

func run(c *conn, query string, args ...any) error {
	st, _, err := c.raw.Prepare(query)
	if err != nil {
		return err
	}
	defer st.Close()
	return (&stmt{st}).run(nil, args...)
}
