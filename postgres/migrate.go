package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
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

// Migrations are the SQL that brings an empty database to the current version: one
// text for each, to be run in a transaction of its own, in order, by whoever applies
// migrations by hand. Migrate runs the same. They hold the names of opts: its schema,
// its backend, and what its ids are unique in.
func Migrations(opts *Options) ([]string, error) {
	o, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	ids := o.IDs
	if ids == "" {
		ids = IDsShared
	}
	quote := func(text string) string { return `U&'` + strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(text) + `'` }
	var all []string
	for i, text := range migrations {
		var b strings.Builder
		if i == 0 {
			// Not part of a migration: it has to be there before the first is counted.
			b.WriteString("CREATE SCHEMA IF NOT EXISTS {schema};\n\n")
			b.WriteString("CREATE TABLE {schema}.schema (\n  version    bigint PRIMARY KEY,\n  applied_at bigint NOT NULL\n);\n\n")
		}
		b.WriteString(text)
		if i == 0 {
			fmt.Fprintf(&b, "\nINSERT INTO {schema}.ledger (one, backend, instance, ids, created_at)\n"+
				"VALUES (true, %s, replace(pg_catalog.gen_random_uuid()::text, '-', ''), %s, %s);\n", quote(o.Backend), quote(string(ids)), sqlClock)
			fmt.Fprintf(&b, "\nINSERT INTO {schema}.head (one, incarnation, position, at) VALUES (true, 1, 0, %s);\n", sqlClock)
		}
		fmt.Fprintf(&b, "\nINSERT INTO {schema}.schema (version, applied_at) VALUES (%d, %s);\n", i+1, sqlClock)
		// A comment must not take the name of the schema in for more than it is.
		all = append(all, strings.ReplaceAll(strings.ReplaceAll(b.String(), " {schema} is the schema's name.", ""), "{schema}", o.quoted()))
	}
	return all, nil
}

const sqlVersion = `SELECT coalesce((SELECT max(version) FROM {schema}.schema), 0)`

// version reads which version of the schema there is; 0 is none at all.
func (s *Store) version(ctx context.Context, w *work) (int, error) {
	answers, err := w.exchange(ctx, s.in(sqlVersion))
	if missing(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	c := reader{row: answers[0].rows[0]}
	version := int(c.int())
	if version > len(migrations) {
		return 0, s.incompatible(fmt.Errorf("it holds schema version %d, newer than the %d this program knows", version, len(migrations)),
			"use a newer version of this program")
	}
	return version, c.err
}

// Migrate makes the ledger in the database of pool, or brings it to the current
// version. It needs a role that may create a schema; using the ledger does not. Two
// at once take turns.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	texts, err := Migrations(opts)
	if err != nil {
		return err
	}
	s, err := newStore(pool, opts, config{patience: patience, commitPatience: commitPatience, headPatience: headPatience})
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		done := false
		err := s.use(ctx, func(w *work) (err error) {
			done, err = s.migrateOnce(ctx, w, texts)
			return err
		})
		switch {
		case err == nil && done:
			_, err := Open(ctx, pool, opts)
			return err
		case err == nil:
		case (collided(err) || code(err) != "" && passing(err)) && ctx.Err() == nil && time.Now().Before(deadline):
		default:
			return s.unavailable(fmt.Errorf("migrate: %w", err))
		}
	}
}

// collided reports whether another one made the same thing at the same time.
func collided(err error) bool {
	switch code(err) {
	case "23505", "42P06", "42P07", "42710":
		return true
	}
	return false
}

// migrateOnce applies the next migration, and reports whether there was none. Which
// one it is, is read again under a lock: another process may have been first.
func (s *Store) migrateOnce(ctx context.Context, w *work, texts []string) (done bool, err error) {
	if err := s.durable(ctx, w); err != nil {
		return false, err
	}
	version, err := s.version(ctx, w)
	if err != nil || version >= len(texts) {
		return true, err
	}
	if _, err := w.begin(ctx, beginWrite); err != nil {
		return false, err
	}
	if version > 0 {
		if _, err := w.exchange(ctx, s.in("LOCK TABLE {schema}.schema IN ACCESS EXCLUSIVE MODE")); err != nil {
			return false, err
		}
		if again, err := s.version(ctx, w); err != nil || again != version {
			return false, err
		}
	}
	// The one place where several statements are one text, which only the simple
	// protocol takes.
	if _, err := w.pg.Exec(ctx, texts[version]).ReadAll(); err != nil {
		return false, err
	}
	return false, w.commit(nil)
}
