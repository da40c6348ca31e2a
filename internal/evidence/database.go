package evidence

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mcpreplay"
	"mcpreplay/sqlite"

	_ "github.com/ncruces/go-sqlite3/driver"
)

// Database is what one file holds, read by a connection that has nothing to do
// with the ledger's own.
type Database struct {
	Name       string
	Ledger     mcpreplay.LedgerRef
	Backend    string
	Issues     []Issue
	Operations []Operation
	Events     []LedgerEvent
	Watchers   []string
	Findings   []string // of the proof of the ledger
	Damage     string   // why it cannot be read; all else is then empty
}

// Issue is one physical effect.
type Issue struct {
	ID                     int64
	Operation, Title, Body string
}

// Operation is one row of the ledger.
type Operation struct {
	Seq                    int64
	ID, Principal          string
	Tool, Version, State   string
	Fenced                 bool
	Effect                 string
	Result                 []byte // nil if there is none
	Digests                mcpreplay.Digests
	Authority, Retention   sql.NullInt64 // microseconds
	Owner                  string
	Position               int64
	ResultIsError, Dropped bool
}

// LedgerEvent is one line of an operation's history.
type LedgerEvent struct {
	Position                                            int64
	Operation, Kind, State, Step, Outcome, Actor, Class string
	At                                                  int64 // microseconds
}

// tables are all that may be in a file: a view or a trigger would be code of its
// own.
var tables = []string{
	"issues", "mcpreplay_events", "mcpreplay_ledger", "mcpreplay_operations", "mcpreplay_restores", "mcpreplay_results", "mcpreplay_schema",
	"sqlite_sequence", "watchers",
}

// schema is every statement that a file may be made of. A column that computes what
// it shows, a check or an index over an expression would also be code of its own,
// which runs when the file is read.
var schema = strings.Split(strings.TrimSuffix(schemaText, ";\n"), ";\n\n")

//go:embed schema.sql
var schemaText string

// readDatabase reads a copy of the file, so that neither the reading nor SQLite's
// own recovery changes the evidence. The error is about the reading; what is wrong
// with the file is its Damage.
func readDatabase(ctx context.Context, name string, open func(string) (io.ReadCloser, error)) (*Database, error) {
	dir, err := os.MkdirTemp("", "mcpreplay-evidence-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "copy.sqlite3")
	for _, suffix := range []string{"", "-wal"} {
		if err := copyFile(path+suffix, name+suffix, open); err != nil && !(suffix != "" && errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	d := &Database{Name: strings.TrimSuffix(name, Extension)}
	if err := d.read(ctx, path); err != nil {
		*d = Database{Name: d.Name, Damage: damage(err)}
		return d, nil
	}
	return d, d.prove(ctx, path)
}

func copyFile(to, from string, open func(string) (io.ReadCloser, error)) error {
	src, err := open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// errDamaged is a file that can be read and should not be as it is.
type errDamaged struct{ why string }

func (e errDamaged) Error() string { return e.why }

// damage says what is wrong in words that do not depend on the machine.
func damage(err error) string {
	var d errDamaged
	text := err.Error()
	switch {
	case errors.As(err, &d):
		return d.why
	case strings.Contains(text, "not a database"):
		return "it is no database"
	case strings.Contains(text, "no such table"):
		return "it lacks the ledger's tables"
	case strings.Contains(text, "malformed"):
		return "it is malformed"
	}
	return text
}

func (d *Database) read(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite3", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: "_pragma=trusted_schema(0)&_pragma=cell_size_check(1)"}).String())
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, part := range []func(context.Context, *sql.DB) error{
		d.checkSchema, d.checkPages, d.readLedger, d.readOperations, d.readEvents, d.readEffects,
	} {
		if err := part(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

func (d *Database) checkSchema(ctx context.Context, db *sql.DB) error {
	return each(ctx, db, `SELECT type, tbl_name, coalesce(sql, '') FROM sqlite_schema`, func(scan func(...any) error) error {
		var kind, table, text string
		if err := scan(&kind, &table, &text); err != nil {
			return err
		}
		if kind != "table" && kind != "index" || !slices.Contains(tables, table) {
			return errDamaged{fmt.Sprintf("there is a %s of %q in it, which no ledger has", kind, table)}
		}
		automatic := kind == "index" && text == ""
		if !automatic && !slices.Contains(schema, text) {
			return errDamaged{fmt.Sprintf("its %s of %q is not as a ledger has it", kind, table)}
		}
		return nil
	})
}

func (d *Database) checkPages(ctx context.Context, db *sql.DB) error {
	return each(ctx, db, `PRAGMA integrity_check(1)`, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil {
			return err
		}
		if text != "ok" {
			return errDamaged{"it fails SQLite's integrity check"}
		}
		return nil
	})
}

func (d *Database) readLedger(ctx context.Context, db *sql.DB) error {
	return db.QueryRowContext(ctx, `SELECT backend, instance, incarnation, coalesce((SELECT max(position) FROM mcpreplay_events), 0) FROM mcpreplay_ledger`).
		Scan(&d.Backend, &d.Ledger.Instance, &d.Ledger.Incarnation, &d.Ledger.Position)
}

func (d *Database) readOperations(ctx context.Context, db *sql.DB) error {
	return each(ctx, db, `SELECT o.seq, operation_id, principal, tool, tool_version, state, fenced, effect, key_id, fingerprint, arguments_digest,
		answers_digest, state_digest, sent_digest, authority_until, retention_until, coalesce(result_is_error, 0), result_digest IS NOT NULL AND body IS NULL, body,
		owner, position
		FROM mcpreplay_operations o LEFT JOIN mcpreplay_results r ON r.seq = o.seq ORDER BY o.seq`, func(scan func(...any) error) error {
		var o Operation
		err := scan(&o.Seq, &o.ID, &o.Principal, &o.Tool, &o.Version, &o.State, &o.Fenced, &o.Effect, &o.Digests.KeyID, &o.Digests.Fingerprint,
			&o.Digests.Arguments, &o.Digests.Answers, &o.Digests.State, &o.Digests.Sent, &o.Authority, &o.Retention, &o.ResultIsError, &o.Dropped, &o.Result,
			&o.Owner, &o.Position)
		d.Operations = append(d.Operations, o)
		return err
	})
}

func (d *Database) readEvents(ctx context.Context, db *sql.DB) error {
	return each(ctx, db, `SELECT e.position, coalesce(o.operation_id, ''), kind, e.state, step, outcome, actor, evidence, at
		FROM mcpreplay_events e LEFT JOIN mcpreplay_operations o ON o.seq = e.seq ORDER BY e.position`, func(scan func(...any) error) error {
		var e LedgerEvent
		err := scan(&e.Position, &e.Operation, &e.Kind, &e.State, &e.Step, &e.Outcome, &e.Actor, &e.Class, &e.At)
		d.Events = append(d.Events, e)
		return err
	})
}

func (d *Database) readEffects(ctx context.Context, db *sql.DB) error {
	err := each(ctx, db, `SELECT id, operation_id, title, body FROM issues ORDER BY id`, func(scan func(...any) error) error {
		var i Issue
		err := scan(&i.ID, &i.Operation, &i.Title, &i.Body)
		d.Issues = append(d.Issues, i)
		return err
	})
	if err != nil {
		return err
	}
	list := func(to *[]string, query string) error {
		return each(ctx, db, query, func(scan func(...any) error) error {
			var text string
			err := scan(&text)
			*to = append(*to, text)
			return err
		})
	}
	return list(&d.Watchers, `SELECT issue_id || ' ' || name FROM watchers ORDER BY id`)
}

// maxRows is more than any table of the lab has.
const maxRows = 10_000

// each calls fn for every row of a query.
func each(ctx context.Context, db *sql.DB, query string, fn func(scan func(...any) error) error) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for n := 0; rows.Next(); n++ {
		if n == maxRows {
			return errDamaged{fmt.Sprintf("a table has more than %d rows", maxRows)}
		}
		if err := fn(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// prove runs the project's own proof of a ledger over the file.
func (d *Database) prove(ctx context.Context, path string) error {
	s, err := sqlite.Open(path, &sqlite.Options{ReadOnly: true})
	if err != nil {
		d.Findings = []string{"the ledger cannot be opened"}
		return nil
	}
	defer s.Close()
	r, err := mcpreplay.Verify(ctx, s)
	if err != nil {
		d.Findings = []string{"the ledger cannot be proved"}
		return nil
	}
	for _, f := range r.Findings {
		d.Findings = append(d.Findings, fmt.Sprintf("%s %s", f.Rule, f.OperationID))
	}
	return nil
}
