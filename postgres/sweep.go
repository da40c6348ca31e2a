package postgres

import (
	"context"
	"time"

	"mcpreplay"
)

// sweepLimit bounds one chunk of a sweep, and with it how long its rows are locked.
const sweepLimit = 1000

const (
	// Old and acknowledged results are looked for among those that are there, in
	// the order of their records.
	sqlOld = `SELECT r.seq, o.retention_until IS NOT NULL AND o.retention_until <= $3 OR $4 AND o.acknowledged
FROM {schema}.results r JOIN {schema}.operations o ON o.seq = r.seq
WHERE r.seq > $1 AND o.state IN ('applied', 'partial', 'not_applied')
ORDER BY r.seq LIMIT $2`

	// Neither a deadline nor an acknowledgement is ever taken back, so what was found
	// holds when it is dropped. Another sweep may have been faster.
	sqlSweep = `DELETE FROM {schema}.results r USING {schema}.operations o
WHERE o.seq = r.seq AND r.seq > $1 AND r.seq <= $2 AND o.state IN ('applied', 'partial', 'not_applied')
  AND (o.retention_until IS NOT NULL AND o.retention_until <= $3 OR $4 AND o.acknowledged)
RETURNING o.result_size`
)

// Sweep drops the bytes of results that are no longer needed. It writes only if
// there is something to drop, and takes no position.
func (s *Store) Sweep(ctx context.Context, p mcpreplay.SweepPolicy) (swept mcpreplay.Swept, err error) {
	limit := sweepLimit
	if p.Limit > 0 {
		limit = min(p.Limit, sweepLimit)
	}
	err = s.write(ctx, func(ctx context.Context, w *work) ([]statement, error) {
		swept = mcpreplay.Swept{}
		answers, err := w.begin(ctx, beginWrite, s.in(sqlRead, ""))
		if err != nil {
			return nil, err
		}
		r, _, err := s.one(answers[0])
		if err != nil {
			return nil, err
		}
		over := r.Ledger.Time.Add(-p.Grace.Truncate(time.Microsecond))
		if answers, err = w.exchange(ctx, s.in(sqlOld, p.After, int64(limit), over, p.Acknowledged)); err != nil {
			return nil, err
		}
		last, any := p.After, false
		for _, values := range answers[0].rows {
			c := reader{row: values}
			swept.Looked++
			last = c.int()
			any = c.bool() || any
		}
		if swept.Looked == limit {
			swept.Next = last
		}
		if !any {
			return nil, nil
		}
		if answers, err = w.exchange(ctx, s.in(sqlSweep, p.After, last, over, p.Acknowledged)); err != nil {
			return nil, err
		}
		for _, values := range answers[0].rows {
			c := reader{row: values}
			swept.Dropped++
			swept.Bytes += c.int()
		}
		return []statement{}, nil
	})
	if err != nil {
		return mcpreplay.Swept{}, err
	}
	return swept, nil
}
