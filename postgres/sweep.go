package postgres

import (
	"context"
	"strconv"
	"strings"
	"time"

	"mcpreplay"
	"mcpreplay/internal/rules"
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

// Sweep drops the bytes of results that are no longer needed, and forgets records. It
// writes only if there is something to drop, and takes no position.
func (s *Store) Sweep(ctx context.Context, p mcpreplay.SweepPolicy) (mcpreplay.Swept, error) {
	limit := sweepLimit
	if p.Limit > 0 {
		limit = min(p.Limit, sweepLimit)
	}
	swept, err := s.dropResults(ctx, p, limit)
	if err == nil && p.Forget > 0 {
		swept.Forgotten, err = s.forget(ctx, p, limit)
	}
	if err != nil {
		return mcpreplay.Swept{}, err
	}
	return swept, nil
}

func (s *Store) dropResults(ctx context.Context, p mcpreplay.SweepPolicy, limit int) (swept mcpreplay.Swept, err error) {
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
	return swept, err
}

const (
	// Another sweep may be at the same records: each takes those that are free. Of
	// whoever writes to one the lock is waited for, or he finds it gone.
	sqlOldest = `SELECT seq, position FROM {schema}.operations
WHERE minted_at < $1 AND state IN ('applied', 'partial', 'not_applied') AND NOT contradicted
  AND retention_until <= $2 AND authority_until <= $3 AND coalesce(effect_until <= $4, true) AND position < $5
ORDER BY minted_at LIMIT $6 FOR UPDATE SKIP LOCKED`

	// A join, so that each table is looked into by its index, whatever is known of it.
	sqlForgetResults    = `DELETE FROM {schema}.results t USING unnest($1::text::bigint[]) AS gone (seq) WHERE t.seq = gone.seq`
	sqlForgetOperations = `DELETE FROM {schema}.operations t USING unnest($1::text::bigint[]) AS gone (seq) WHERE t.seq = gone.seq`
	sqlForgetEvents     = `DELETE FROM {schema}.events t USING unnest($1::text::bigint[]) AS gone (seq) WHERE t.seq = gone.seq`

	// The row is held until COMMIT, as by everybody who appends.
	sqlForgotten = `UPDATE {schema}.head SET forgotten_before = greatest(coalesce(forgotten_before, 0), $1),
  forgotten_operations = forgotten_operations + $2, forgotten_events = forgotten_events + $3, forgotten_until = greatest(forgotten_until, $4)`
)

// forget removes the oldest records that may go, and says in the same transaction
// that their ids may not come back.
func (s *Store) forget(ctx context.Context, p mcpreplay.SweepPolicy, limit int) (n int, err error) {
	err = s.write(ctx, func(ctx context.Context, w *work) ([]statement, error) {
		n = 0
		answers, err := w.begin(ctx, beginWrite, s.in(sqlRead, ""))
		if err != nil {
			return nil, err
		}
		r, _, err := s.one(answers[0])
		if err != nil {
			return nil, err
		}
		// As of the latest commit: what a clock that is wrong for a while says must not
		// refuse the ids of next month.
		now := r.head
		answers, err = w.exchange(ctx, s.in(sqlOldest, now.Add(-p.Forget), now.Add(-p.Grace), now, now.Add(-rules.LateOwner), r.Ledger.Position, int64(limit)))
		if err != nil {
			return nil, err
		}
		var seqs []string
		until := int64(0)
		for _, values := range answers[0].rows {
			c := reader{row: values}
			seqs, until = append(seqs, strconv.FormatInt(c.int(), 10)), max(until, c.int())
		}
		if n = len(seqs); n == 0 {
			return nil, nil
		}
		list := "{" + strings.Join(seqs, ",") + "}"
		answers, err = w.exchange(ctx, s.in(sqlForgetResults, list), s.in(sqlForgetOperations, list), s.in(sqlForgetEvents, list))
		if err != nil {
			return nil, err
		}
		return []statement{s.in(sqlForgotten, now.Add(-p.Forget), int64(n), answers[2].tag.RowsAffected(), until)}, nil
	})
	return n, err
}
