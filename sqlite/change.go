package sqlite

import (
	"fmt"
	"time"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

// row is a record, and what only the store knows of it.
type row = rules.Row

// now is the ledger's time for a write: the clock, but never before the latest
// commit, and not further ahead of it than can be believed.
func (s *Store) now(info mcpreplay.Info) (time.Time, error) {
	now := rules.Micro(s.opts.Clock())
	if now.Before(info.Time) {
		return info.Time, nil
	}
	if jump := now.Sub(info.Time); s.opts.MaxClockJump >= 0 && jump > s.opts.MaxClockJump {
		return time.Time{}, fmt.Errorf("%w: %s: the clock says %s, the latest record %s; correct the clock, or, if the ledger was idle that long, open it with a MaxClockJump above %s",
			mcpreplay.ErrClock, s.path, now.Format(time.RFC3339), info.Time.Format(time.RFC3339), jump.Truncate(time.Second))
	}
	return now, nil
}

// readTime is the ledger's time for a read, which goes on with the ledger's own
// time when the clock cannot be believed.
func (s *Store) readTime(info mcpreplay.Info) time.Time {
	if now, err := s.now(info); err == nil {
		return now
	}
	return info.Time
}
