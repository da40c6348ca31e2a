package postgres

import (
	"context"
	"sync"
	"time"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

// failover remembers for a moment whether a failover could lose what was
// acknowledged.
type failover struct {
	mu    sync.Mutex
	until time.Time // of this process alone: it only says when to ask again
	lossy bool
}

// failoverFresh is how long an answer about standbys is good for.
const failoverFresh = 3 * time.Second

// sqlLossy is whether there are standbys and none that a commit waits for. A role
// that may not look at them still sees that they are there. What copies a base
// backup, or follows a logical slot, is nothing that is promoted.
const sqlLossy = `SELECT pg_catalog.current_setting('synchronous_standby_names') = '' AND EXISTS (
  SELECT FROM pg_catalog.pg_stat_replication r
  WHERE r.state IS DISTINCT FROM 'backup' AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))`

// mayClaim refuses a change that dispatches an external effect where the record of
// that can be lost although it was acknowledged. An atomic effect is lost together
// with its record.
func (w *work) mayClaim(ctx context.Context, c mcpreplay.Change) error {
	s := w.s
	if s.opts.AllowLossyFailover || !rules.Writes(c) {
		return nil
	}
	f := &s.failover
	f.mu.Lock()
	lossy, fresh := f.lossy, time.Now().Before(f.until)
	f.mu.Unlock()
	if !fresh {
		answers, err := w.exchange(ctx, do(sqlLossy))
		if err != nil {
			return err
		}
		row := reader{row: answers[0].rows[0]}
		lossy = row.bool()
		f.mu.Lock()
		f.lossy, f.until = lossy, time.Now().Add(failoverFresh)
		f.mu.Unlock()
	}
	if lossy {
		return s.unavailable(errLossy)
	}
	return nil
}
