package sqlite

import (
	"context"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
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

// Sweep drops the bytes of results that are no longer needed. It looks in a
// snapshot of its own, and writes only if there is something to drop.
func (s *Store) Sweep(ctx context.Context, p mcpreplay.SweepPolicy) (swept mcpreplay.Swept, err error) {
	limit := sweepLimit
	if p.Limit > 0 {
		limit = min(p.Limit, sweepLimit)
	}
	type result struct{ seq, size int64 }
	var old []result
	err = s.read(ctx, func(c *conn, info mcpreplay.Info) error {
		st, _, err := c.raw.Prepare(sqlOld)
		if err != nil {
			return err
		}
		defer st.Close()
		return (&stmt{st}).run(func(st *sqlite3.Stmt) {
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
