package sqlite

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
)

// ledger is the ledger's own statements, prepared for the life of a connection.
type ledger struct {
	raw *sqlite3.Conn
	all []*stmt

	begin, beginRead, commit, rollback    *stmt
	savepoint, undo, release              *stmt
	info, get                             *stmt
	insert, update, put, drop, event, log *stmt
}

// Every table is named with its schema: a temporary table of the application
// must not be able to stand in front of one of ours.
const (
	sqlInfo = `SELECT backend, instance, incarnation, created_at,
  (SELECT seq FROM main.sqlite_sequence WHERE name = 'mcpreplay_events'),
  (SELECT at FROM main.mcpreplay_events ORDER BY position DESC LIMIT 1),
  forgotten_before, forgotten_operations, forgotten_events, forgotten_until
FROM main.mcpreplay_ledger`

	sqlSelect = `SELECT o.seq, operation_id, principal, tool, tool_version, key_id,
  fingerprint, arguments_digest, answers_digest, state_digest, state, fenced, revision, owner, lease_until, effect,
  result_is_error, result_digest, result_size, position, authority_until, retention_until, created_at, updated_at, body, sent_digest,
  attempt, effect_until, acknowledged, contradicted, memo
FROM main.mcpreplay_operations o LEFT JOIN main.mcpreplay_results r ON r.seq = o.seq
WHERE `

	sqlInsert = `INSERT INTO main.mcpreplay_operations (operation_id, principal, tool, tool_version, key_id,
  fingerprint, arguments_digest, answers_digest, state_digest, sent_digest, authority_until, retention_until, minted_at, created_at,
  state, fenced, revision, owner, lease_until, effect, result_is_error, result_digest, result_size, position, updated_at,
  attempt, effect_until, acknowledged, contradicted, memo)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	sqlUpdate = `UPDATE main.mcpreplay_operations
SET state = ?, fenced = ?, revision = ?, owner = ?, lease_until = ?, effect = ?,
  result_is_error = ?, result_digest = ?, result_size = ?, position = ?, updated_at = ?,
  attempt = ?, effect_until = ?, acknowledged = ?, contradicted = ?, memo = ?
WHERE seq = ?`

	sqlPut   = `INSERT INTO main.mcpreplay_results (seq, body) VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET body = excluded.body`
	sqlDrop  = `DELETE FROM main.mcpreplay_results WHERE seq = ?`
	sqlEvent = `INSERT INTO main.mcpreplay_events (position, seq, kind, state, revision, step, outcome, actor, evidence, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlLog = `SELECT position, kind, state, revision, step, outcome, actor, evidence, at
FROM main.mcpreplay_events WHERE seq = ? ORDER BY position`
)

func prepare(raw *sqlite3.Conn) (*ledger, error) {
	l := &ledger{raw: raw}
	for _, p := range []struct {
		into **stmt
		sql  string
	}{
		// IMMEDIATE: a transaction that reads first and then fails to become a
		// writer could only be given up.
		{&l.begin, "BEGIN IMMEDIATE"}, {&l.beginRead, "BEGIN"}, {&l.commit, "COMMIT"}, {&l.rollback, "ROLLBACK"},
		{&l.savepoint, "SAVEPOINT operation"}, {&l.undo, "ROLLBACK TO operation"}, {&l.release, "RELEASE operation"},
		{&l.info, sqlInfo}, {&l.get, sqlSelect + "operation_id = ?"},
		{&l.insert, sqlInsert}, {&l.update, sqlUpdate}, {&l.put, sqlPut}, {&l.drop, sqlDrop},
		{&l.event, sqlEvent}, {&l.log, sqlLog},
	} {
		st, _, err := raw.PrepareFlags(p.sql, sqlite3.PREPARE_PERSISTENT)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		*p.into = &stmt{st}
		l.all = append(l.all, *p.into)
	}
	return l, nil
}

func (l *ledger) close() error {
	var errs []error
	for _, st := range l.all {
		errs = append(errs, st.Close())
	}
	return errors.Join(errs...)
}

// stmt binds and runs a prepared statement.
type stmt struct{ *sqlite3.Stmt }

// run calls row for each row, and leaves the statement reset.
func (st *stmt) run(row func(*sqlite3.Stmt), args ...any) error {
	for i, a := range args {
		if err := st.bind(i+1, a); err != nil {
			return err
		}
	}
	for st.Step() {
		if row != nil {
			row(st.Stmt)
		}
	}
	err := st.Err()
	st.Reset() // repeats the error, if there was one
	st.ClearBindings()
	return err
}

func (st *stmt) bind(i int, a any) error {
	switch a := a.(type) {
	case nil:
		return st.BindNull(i)
	case bool:
		return st.BindBool(i, a)
	case int64:
		return st.BindInt64(i, a)
	case string:
		return st.BindText(i, a)
	case []byte: // nil binds NULL
		return st.BindBlob(i, a)
	case time.Time:
		if a.IsZero() {
			return st.BindNull(i)
		}
		return st.BindInt64(i, a.UnixMicro())
	}
	return fmt.Errorf("bind %T", a)
}

func blobAt(st *sqlite3.Stmt, i int) []byte {
	if st.ColumnType(i) == sqlite3.NULL {
		return nil
	}
	return append([]byte{}, st.ColumnRawBlob(i)...)
}

func timeAt(st *sqlite3.Stmt, i int) time.Time {
	if st.ColumnType(i) == sqlite3.NULL {
		return time.Time{}
	}
	return time.UnixMicro(st.ColumnInt64(i)).UTC()
}

// read reads the ledger's identity. Info.Time is the time of the latest commit.
func (l *ledger) read() (info mcpreplay.Info, err error) {
	found := false
	err = l.info.run(func(st *sqlite3.Stmt) {
		found = true
		info.Backend, info.Instance = st.ColumnText(0), st.ColumnText(1)
		info.Incarnation, info.Time = st.ColumnInt64(2), timeAt(st, 3)
		info.Position = st.ColumnInt64(4)
		if last := timeAt(st, 5); last.After(info.Time) {
			info.Time = last
		}
		info.Forgotten = mcpreplay.Forgotten{
			Before: timeAt(st, 6), Operations: st.ColumnInt64(7), Events: st.ColumnInt64(8), Until: st.ColumnInt64(9),
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("the ledger has lost its identity: %w", sqlite3.CORRUPT)
	}
	return info, err
}

// scan reads a row of sqlSelect; scope is how many bytes stand before the id.
func scan(st *sqlite3.Stmt, scope int) *row {
	r := &row{Lease: timeAt(st, 14)}
	r.Seq = st.ColumnInt64(0)
	r.ID, r.Principal, r.Tool, r.Version = st.ColumnText(1), st.ColumnText(2), st.ColumnText(3), st.ColumnText(4)
	r.Digests = mcpreplay.Digests{
		KeyID:       st.ColumnText(5),
		Fingerprint: blobAt(st, 6), Arguments: blobAt(st, 7), Answers: blobAt(st, 8), State: blobAt(st, 9),
		Sent: blobAt(st, 25),
	}
	r.State, r.Fenced = mcpreplay.State(st.ColumnText(10)), st.ColumnBool(11)
	r.Revision, r.Owner, r.Effect = st.ColumnInt64(12), st.ColumnText(13), st.ColumnText(15)
	if digest := blobAt(st, 17); digest != nil {
		r.Result = &mcpreplay.Result{
			IsError: st.ColumnBool(16), Digest: digest, Size: st.ColumnInt64(18), Body: blobAt(st, 24),
		}
	}
	r.Position = st.ColumnInt64(19)
	r.Authority, r.Retention = timeAt(st, 20), timeAt(st, 21)
	r.CreatedAt, r.UpdatedAt = timeAt(st, 22), timeAt(st, 23)
	r.Attempt, r.Deadline = st.ColumnInt64(26), timeAt(st, 27)
	r.Acknowledged, r.Contradicted, r.Memo = st.ColumnBool(28), st.ColumnBool(29), blobAt(st, 30)
	r.Live = r.Lease.After(time.Now())
	r.ID = r.ID[min(scope, len(r.ID)):]
	return r
}

// find returns nil if the id is not known. In the column, scope stands before it.
func (l *ledger) find(scope, id string) (r *row, err error) {
	err = l.get.run(func(st *sqlite3.Stmt) { r = scan(st, len(scope)) }, scope+id)
	return r, err
}

// add inserts a record and sets its Seq.
func (l *ledger) add(scope string, r *row) error {
	minted, _ := mcpreplay.MintTime(r.ID)
	args := []any{
		scope + r.ID, r.Principal, r.Tool, r.Version, r.Digests.KeyID,
		r.Digests.Fingerprint, r.Digests.Arguments, r.Digests.Answers, r.Digests.State, r.Digests.Sent,
		r.Authority, r.Retention, minted, r.CreatedAt,
	}
	if err := l.insert.run(nil, append(args, changing(r)...)...); err != nil {
		return err
	}
	r.Seq = l.raw.LastInsertRowID()
	return nil
}

func (l *ledger) save(r *row) error {
	return l.update.run(nil, append(changing(r), r.Seq)...)
}

// changing are the columns that a change may touch, in the order of sqlInsert
// and sqlUpdate.
func changing(r *row) []any {
	var isError, digest, size any
	if r.Result != nil {
		isError, digest, size = r.Result.IsError, r.Result.Digest, r.Result.Size
	}
	return []any{
		string(r.State), r.Fenced, r.Revision, r.Owner, r.Lease, r.Effect,
		isError, digest, size, r.Position, r.UpdatedAt,
		r.Attempt, r.Deadline, r.Acknowledged, r.Contradicted, r.Memo,
	}
}

func (l *ledger) saveResult(seq int64, res *mcpreplay.Result) error {
	if res.Body == nil {
		return l.drop.run(nil, seq)
	}
	return l.put.run(nil, seq, res.Body)
}

func (l *ledger) append(seq int64, e *mcpreplay.Event) error {
	return l.event.run(nil, e.Position, seq, string(e.Kind), string(e.State), e.Revision,
		e.Step, e.Outcome, e.Actor, e.Evidence, e.At)
}

func (l *ledger) history(seq int64) (events []mcpreplay.Event, err error) {
	err = l.log.run(func(st *sqlite3.Stmt) {
		events = append(events, mcpreplay.Event{
			Position: st.ColumnInt64(0), Kind: mcpreplay.EventKind(st.ColumnText(1)),
			State: mcpreplay.State(st.ColumnText(2)), Revision: st.ColumnInt64(3),
			Step: st.ColumnText(4), Outcome: st.ColumnText(5), Actor: st.ColumnText(6), Evidence: st.ColumnText(7),
			At: timeAt(st, 8),
		})
	}, seq)
	return events, err
}

// search reads the records that f selects, newest first. Its statement holds only
// the conditions that f has, so that the planner can use an index for them. scope
// is how many bytes stand before the id.
func (l *ledger) search(f mcpreplay.Filter, scope int) (rows []*row, err error) {
	var where strings.Builder
	var args []any
	when := func(given bool, condition string, arg any) {
		if given {
			where.WriteString(condition + " AND ")
			args = append(args, arg)
		}
	}
	since := f.Since
	if since.Nanosecond()%1000 != 0 {
		since = since.Add(time.Microsecond) // at or after, in the ledger's precision
	}
	when(f.Principal != "", "principal = ?", f.Principal)
	when(f.ID != "" && scope == 0, "operation_id = ?", f.ID)
	when(f.ID != "" && scope > 0, fmt.Sprintf("substr(operation_id, %d) = ?", scope+1), f.ID)
	when(f.Tool != "", "tool = ?", f.Tool)
	when(f.State != "", "state = ?", string(f.State))
	when(!f.Since.IsZero(), "created_at >= ?", since)
	when(f.Before != 0, "o.seq < ?", f.Before)
	limit := 100
	if f.Limit > 0 {
		limit = min(f.Limit, 1000)
	}
	st, _, err := l.raw.Prepare(sqlSelect + where.String() + "true ORDER BY o.seq DESC LIMIT ?")
	if err != nil {
		return nil, err
	}
	defer st.Close()
	err = (&stmt{st}).run(func(st *sqlite3.Stmt) { rows = append(rows, scan(st, scope)) }, append(args, int64(limit))...)
	return rows, err
}
