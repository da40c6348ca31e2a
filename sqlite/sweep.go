package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

// sweepLimit bounds one chunk of a sweep, and with it how long the others wait.
const sweepLimit = 1000

const (
	// Old and acknowledged results are looked for among those that are there,
	// in the order of their records, without the writer.
	sqlOld = `SELECT r.seq, o.retention_until, o.acknowledged, o.result_size
FROM main.mcpreplay_results r JOIN main.mcpreplay_operations o ON o.seq = r.seq
WHERE r.seq > ? AND o.state IN ('applied', 'partial', 'not_applied')
ORDER BY r.seq LIMIT ?`
)

// Sweep drops the bytes of results that are no longer needed, and forgets records. It
// looks in a snapshot of its own, and writes only if there is something to drop.
func (s *Store) Sweep(ctx context.Context, p mcpreplay.SweepPolicy) (mcpreplay.Swept, error) {
	limit := sweepLimit
	if p.Limit > 0 {
		limit = min(p.Limit, sweepLimit)
	}
	swept, err := s.dropResults(ctx, p, limit)
	if err == nil && p.Forget > 0 {
		swept.Forgotten, err = s.forget(ctx, p, limit)
	}
	return swept, err
}

const (
	// The latest event is what the ledger's time is read from.
	sqlOldest = `SELECT seq, position FROM main.mcpreplay_operations
WHERE minted_at < ? AND state IN ('applied', 'partial', 'not_applied') AND contradicted = 0
  AND retention_until <= ? AND authority_until <= ? AND coalesce(effect_until <= ?, 1)
  AND position < (SELECT max(position) FROM main.mcpreplay_events)
ORDER BY minted_at LIMIT ?`

	sqlForget    = `DELETE FROM main.%s WHERE seq IN (SELECT value FROM json_each(?))`
	sqlForgotten = `UPDATE main.mcpreplay_ledger SET forgotten_before = max(coalesce(forgotten_before, 0), ?),
  forgotten_operations = forgotten_operations + ?, forgotten_events = forgotten_events + ?, forgotten_until = max(forgotten_until, ?)`
)

// forget removes the oldest records that may go, and says in the same transaction
// that their ids may not come back.
func (s *Store) forget(ctx context.Context, p mcpreplay.SweepPolicy, limit int) (n int, err error) {
	type record struct{ seq, position int64 }
	find := func(c *conn, limit int) (old []record, info mcpreplay.Info, err error) {
		// As of the latest commit: what a clock that is wrong for a while says must not
		// refuse the ids of next month.
		if info, err = c.read(); err != nil {
			return nil, info, err
		}
		err = c.once(sqlOldest, func(st *sqlite3.Stmt) {
			old = append(old, record{st.ColumnInt64(0), st.ColumnInt64(1)})
		}, info.Time.Add(-p.Forget), info.Time.Add(-p.Grace), info.Time, info.Time.Add(-rules.LateOwner), int64(limit))
		return old, info, err
	}
	// Whether there are any is seen without the writer.
	any := false
	err = s.read(ctx, func(c *conn, _ mcpreplay.Info) error {
		old, _, err := find(c, 1)
		any = len(old) > 0
		return err
	})
	if err != nil || !any {
		return 0, err
	}
	err = s.write(ctx, func(_ context.Context, c *conn) (bool, error) {
		old, info, err := find(c, limit)
		if n = len(old); err != nil || n == 0 {
			return false, err
		}
		seqs, until, events := []int64{}, int64(0), int64(0)
		for _, r := range old {
			seqs, until = append(seqs, r.seq), max(until, r.position)
		}
		list, err := json.Marshal(seqs)
		if err != nil {
			return false, err
		}
		for _, table := range []string{"mcpreplay_results", "mcpreplay_events", "mcpreplay_operations"} {
			if err := c.once(fmt.Sprintf(sqlForget, table), nil, string(list)); err != nil {
				return false, err
			}
			if table == "mcpreplay_events" {
				events = c.raw.Changes()
			}
		}
		return true, c.once(sqlForgotten, nil, info.Time.Add(-p.Forget), int64(n), events, until)
	})
	return n, err
}

// once runs a statement that is seldom needed.
func (l *ledger) once(sql string, row func(*sqlite3.Stmt), args ...any) error {
	st, _, err := l.raw.Prepare(sql)
	if err != nil {
		return err
	}
	defer st.Close()
	return (&stmt{st}).run(row, args...)
}

func (s *Store) dropResults(ctx context.Context, p mcpreplay.SweepPolicy, limit int) (swept mcpreplay.Swept, err error) {
	type result struct{ seq, size int64 }
	var old []result
	err = s.read(ctx, func(c *conn, info mcpreplay.Info) error {
		return c.once(sqlOld, func(st *sqlite3.Stmt) {
			swept.Looked++
			swept.Next = st.ColumnInt64(0)
			until := timeAt(st, 1)
			over := !until.IsZero() && !info.Time.Before(until.Add(p.Grace.Truncate(time.Microsecond)))
			if over || p.Acknowledged && st.ColumnBool(2) {
				old = append(old, result{st.ColumnInt64(0), st.ColumnInt64(3)})
			}
		}, p.After, int64(limit))
	})
	if err != nil {
		return mcpreplay.Swept{}, err
	}
	if swept.Looked < limit {
		swept.Next = 0
	}
	if swept.Dropped = len(old); swept.Dropped == 0 {
		return swept, nil
	}
	// Neither a deadline nor an acknowledgement is ever taken back, so what was
	// found holds when it is dropped. Another sweep may have been faster.
	err = s.write(ctx, func(_ context.Context, c *conn) (bool, error) {
		swept.Dropped, swept.Bytes = 0, 0
		for _, r := range old {
			if err := c.drop.run(nil, r.seq); err != nil {
				return false, err
			}
			if c.raw.Changes() > 0 {
				swept.Dropped++
				swept.Bytes += r.size
			}
		}
		return swept.Dropped > 0, nil
	})
	if err != nil {
		return mcpreplay.Swept{}, err
	}
	return swept, nil
}
