package postgres

import (
	"fmt"
	"strings"
	"time"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

// sqlClock is the server's clock, which is the only one that counts: in
// microseconds, and not frozen at the beginning of the transaction.
const sqlClock = `(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint`

// Every table is named with its schema, and what is temporary has another: neither
// a search_path nor a table of the application can stand in front of one of ours.
const (
	sqlColumns = `l.backend, l.instance, h.incarnation, l.ids, h.position, h.at, ` + sqlClock + `, pg_catalog.pg_is_in_recovery(),
  h.forgotten_before, h.forgotten_operations, h.forgotten_events, h.forgotten_until,
  o.operation_id, o.seq, o.principal, o.tool, o.tool_version, o.key_id,
  o.fingerprint, o.arguments_digest, o.answers_digest, o.state_digest, o.sent_digest,
  o.authority_until, o.retention_until, o.state, o.fenced, o.revision, o.owner, o.lease_until, o.attempt, o.effect_until,
  o.effect, o.result_is_error, o.result_digest, o.result_size, o.acknowledged, o.contradicted, o.memo, o.position, o.created_at, o.updated_at, r.body`

	// One statement is one snapshot, at any isolation level.
	sqlRead = `SELECT ` + sqlColumns + `
FROM {schema}.ledger l CROSS JOIN {schema}.head h
LEFT JOIN {schema}.operations o ON o.operation_id = $1
LEFT JOIN {schema}.results r ON r.seq = o.seq`

	sqlList = `SELECT ` + sqlColumns + `
FROM {schema}.ledger l CROSS JOIN {schema}.head h CROSS JOIN {schema}.operations o
LEFT JOIN {schema}.results r ON r.seq = o.seq
WHERE `

	// Whoever comes second waits here until the first has committed or not.
	sqlInsert = `INSERT INTO {schema}.operations (operation_id, principal, tool, tool_version, key_id,
  fingerprint, arguments_digest, answers_digest, state_digest, sent_digest, authority_until, retention_until, minted_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT (operation_id) DO NOTHING`

	// The lock is a statement of its own: what is read together with a row that was
	// waited for is read as it was before.
	sqlLock = `SELECT 1::bigint FROM {schema}.operations WHERE operation_id = $1 FOR NO KEY UPDATE`

	// While a step runs its operation is at no event, so that only the step's own
	// transaction can commit.
	sqlOpen = `UPDATE {schema}.operations SET position = 0 WHERE operation_id = $1`

	// The clock is adopted only if it can be believed. The row is held until COMMIT.
	sqlNext = `UPDATE {schema}.head SET position = position + $1,
  at = CASE WHEN $2 >= 0 AND ` + sqlClock + ` - at > $2 THEN at ELSE greatest(at, ` + sqlClock + `) END`
	sqlTaken = `
RETURNING position, at, incarnation, ` + sqlClock

	sqlUpdate = `UPDATE {schema}.operations
SET seq = $2, created_at = $3, state = $4, fenced = $5, revision = $6, owner = $7, lease_until = $8, effect = $9,
  result_is_error = $10, result_digest = $11, result_size = $12, position = $13, updated_at = $14,
  attempt = $15, effect_until = $16, acknowledged = $17, contradicted = $18, memo = $19
WHERE operation_id = $1`

	sqlPut   = `INSERT INTO {schema}.results (seq, body) VALUES ($1, $2) ON CONFLICT (seq) DO UPDATE SET body = excluded.body`
	sqlDrop  = `DELETE FROM {schema}.results WHERE seq = $1`
	sqlEvent = `INSERT INTO {schema}.events (position, seq, kind, state, revision, step, outcome, actor, evidence, at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	sqlLog = `SELECT position, kind, state, revision, step, outcome, actor, evidence, at
FROM {schema}.events WHERE seq = (SELECT seq FROM {schema}.operations WHERE operation_id = $1) ORDER BY position`
)

// in is a statement of the ledger in its schema.
func (s *Store) in(sql string, args ...any) statement {
	return statement{strings.ReplaceAll(sql, "{schema}", s.schema), args}
}

// row is a record, and what only the store knows of it.
type row struct {
	rules.Row
	head  time.Time // the ledger's latest commit
	clock time.Time // the server's, when this was read
}

// scan reads a row of sqlColumns, and whether there is an operation in it. The
// ledger must be the one that was opened first, on a server that can be written.
func (s *Store) scan(values [][]byte) (r *row, found bool, err error) {
	c := reader{row: values}
	r = &row{}
	info := &r.Ledger
	info.Backend, info.Instance, info.Incarnation = c.text(), c.text(), c.int()
	ids := IDs(c.text())
	info.Position, r.head, r.clock = c.int(), c.time(), c.time()
	standby := c.bool()
	info.Forgotten = mcpreplay.Forgotten{Before: c.time(), Operations: c.int(), Events: c.int(), Until: c.int()}
	info.Time = s.readTime(r)
	found = len(c.row) > 0 && c.row[0] != nil
	if found {
		scope := len(s.scope(""))
		r.ID = c.text()
		r.ID = r.ID[min(scope, len(r.ID)):]
		r.Seq, r.Principal, r.Tool, r.Version = c.int(), c.text(), c.text(), c.text()
		r.Digests = mcpreplay.Digests{
			KeyID: c.text(), Fingerprint: c.bytes(), Arguments: c.bytes(), Answers: c.bytes(), State: c.bytes(), Sent: c.bytes(),
		}
		r.Authority, r.Retention = c.time(), c.time()
		r.State, r.Fenced, r.Revision = mcpreplay.State(c.text()), c.bool(), c.int()
		r.Owner, r.Lease, r.Attempt, r.Deadline = c.text(), c.time(), c.int(), c.time()
		r.Effect = c.text()
		result := &mcpreplay.Result{IsError: c.bool(), Digest: c.bytes(), Size: c.int()}
		r.Acknowledged, r.Contradicted, r.Memo = c.bool(), c.bool(), c.bytes()
		r.Position, r.CreatedAt, r.UpdatedAt = c.int(), c.time(), c.time()
		if result.Body = c.bytes(); result.Digest != nil {
			r.Result = result
		}
		r.Live = r.Lease.After(r.clock)
	}
	switch {
	case c.err != nil:
		return r, false, s.incompatible(c.err, "restore it from a backup")
	case info.Instance != s.instance || ids != s.ids:
		return r, false, errGone
	case standby:
		return r, false, errStandby
	}
	return r, found, nil
}

// readTime is the ledger's time for a read: the server's clock, but never before
// the latest commit, and only as far ahead of it as can be believed.
func (s *Store) readTime(r *row) time.Time {
	if r.clock.Before(r.head) || s.jumped(r.head, r.clock) {
		return r.head
	}
	return r.clock
}

func (s *Store) jumped(from, to time.Time) bool {
	return s.opts.MaxClockJump >= 0 && to.Sub(from) > s.opts.MaxClockJump
}

// believe fails if the server's clock is too far ahead of the ledger.
func (s *Store) believe(from, to time.Time) error {
	if !s.jumped(from, to) {
		return nil
	}
	return fmt.Errorf("%w: %s: the server's clock says %s, the latest record %s; correct the clock, or, if the ledger was idle that long, open it with a MaxClockJump above %s",
		mcpreplay.ErrClock, s.name, to.Format(time.RFC3339), from.Format(time.RFC3339), to.Sub(from).Truncate(time.Second))
}

func (s *Store) insert(op mcpreplay.Operation) statement {
	d := op.Digests
	minted, _ := mcpreplay.MintTime(op.ID)
	return s.in(sqlInsert, s.scoped(op.Key), op.Principal, op.Tool, op.Version, d.KeyID,
		d.Fingerprint, d.Arguments, d.Answers, d.State, d.Sent, rules.Micro(op.Authority), rules.Micro(op.Retention), minted)
}

func (s *Store) update(r *row) statement {
	var isError *bool
	var digest []byte
	var size *int64
	if r.Result != nil {
		isError, digest, size = &r.Result.IsError, r.Result.Digest, &r.Result.Size
	}
	return s.in(sqlUpdate, s.scoped(r.Key), r.Seq, r.CreatedAt,
		string(r.State), r.Fenced, r.Revision, r.Owner, r.Lease, r.Effect, isError, digest, size,
		r.Position, r.UpdatedAt, r.Attempt, r.Deadline, r.Acknowledged, r.Contradicted, r.Memo)
}

// save are the statements that write a changed row, and what stands beside it: the
// result, if there is a new one, and the event, unless it was a renewal.
func (s *Store) save(r *row, e *mcpreplay.Event, result bool) []statement {
	all := []statement{s.update(r)}
	switch {
	case result && r.Result.Body == nil:
		all = append(all, s.in(sqlDrop, r.Seq))
	case result:
		all = append(all, s.in(sqlPut, r.Seq, r.Result.Body))
	}
	if e != nil {
		all = append(all, s.in(sqlEvent, e.Position, r.Seq, string(e.Kind), string(e.State), e.Revision,
			e.Step, e.Outcome, e.Actor, e.Evidence, e.At))
	}
	return all
}

func scanEvent(values [][]byte) (mcpreplay.Event, error) {
	c := reader{row: values}
	e := mcpreplay.Event{
		Position: c.int(), Kind: mcpreplay.EventKind(c.text()), State: mcpreplay.State(c.text()), Revision: c.int(),
		Step: c.text(), Outcome: c.text(), Actor: c.text(), Evidence: c.text(), At: c.time(),
	}
	return e, c.err
}

// search is the statement that reads what f selects, newest first. It holds only
// the conditions that f has, so that an index can be used for them.
func (s *Store) search(f mcpreplay.Filter) statement {
	var where strings.Builder
	var args []any
	when := func(given bool, condition string, arg any) {
		if given {
			args = append(args, arg)
			fmt.Fprintf(&where, "%s $%d AND ", condition, len(args))
		}
	}
	since := f.Since
	if since.Nanosecond()%1000 != 0 {
		since = since.Add(time.Microsecond) // at or after, in the ledger's precision
	}
	when(f.Principal != "", "o.principal =", f.Principal)
	if scope := len(s.scope("")); scope == 0 {
		when(f.ID != "", "o.operation_id =", f.ID)
	} else {
		when(f.ID != "", fmt.Sprintf("substr(o.operation_id, %d) =", scope+1), f.ID)
	}
	when(f.Tool != "", "o.tool =", f.Tool)
	when(f.State != "", "o.state =", string(f.State))
	when(!f.Since.IsZero(), "o.created_at >=", since)
	when(f.Before != 0, "o.seq <", f.Before)
	limit := 100
	if f.Limit > 0 {
		limit = min(f.Limit, 1000)
	}
	return s.in(fmt.Sprintf("%s%strue ORDER BY o.seq DESC LIMIT %d", sqlList, where.String(), limit), args...)
}
