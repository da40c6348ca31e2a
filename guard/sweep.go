package guard

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"mcpreplay"
)

// SweepGrace is how long after the time to replay a result its bytes are kept
// unless told otherwise: status still shows them.
const SweepGrace = 24 * time.Hour

// sweepChunk is how many results a chunk looks at: few enough for those who write
// in between not to notice.
const sweepChunk = 500

// sweepWait bounds one chunk, the wait for the ledger included.
const sweepWait = 25 * time.Second

// MinForget is the shortest time that a record is kept for: its id may be in the hands
// of somebody who asks again tomorrow.
const MinForget = 24 * time.Hour

// Sweep drops the bytes of every result that p lets go, and then forgets the records
// that p lets go, in chunks with pauses as long between them, so that it may run beside
// servers that write and beside other sweeps. p.After is where it begins. each, if not
// nil, is told what was done so far after every chunk. p.Forget is 0 or at least
// [MinForget].
//
// It ends between two chunks when ctx does, with ctx's error. Swept.Next is then
// where to go on; at the end of the ledger it is 0.
func Sweep(ctx context.Context, s mcpreplay.Store, p mcpreplay.SweepPolicy, each func(mcpreplay.Swept)) (mcpreplay.Swept, error) {
	if p.Limit == 0 {
		p.Limit = sweepChunk
	}
	all := mcpreplay.Swept{Next: p.After}
	if p.Forget != 0 && p.Forget < MinForget {
		return all, fmt.Errorf("records are kept for at least %v, or for ever", MinForget)
	}
	for {
		if err := ctx.Err(); err != nil {
			return all, err
		}
		began := time.Now()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepWait)
		chunk, err := s.Sweep(bounded, p)
		cancel()
		if err != nil {
			return all, err
		}
		all.Looked += chunk.Looked
		all.Dropped += chunk.Dropped
		all.Bytes += chunk.Bytes
		all.Forgotten += chunk.Forgotten
		all.Next = chunk.Next
		if each != nil {
			each(all)
		}
		if p.After = chunk.Next; chunk.Next == 0 {
			if p.Forget == 0 || chunk.Forgotten == 0 {
				return all, nil
			}
			p.After = math.MaxInt64 // no result is behind it: from here on it only forgets
		}
		pause(ctx, time.Since(began))
	}
}

// Sweeping says how a server sweeps its ledger as it runs.
type Sweeping struct {
	Interval time.Duration // about how long between two sweeps. Defaults to 1 hour
	Policy   mcpreplay.SweepPolicy
	Logger   *slog.Logger // gets what failed. Nil discards it
}

// SweepEvery sweeps the ledger until ctx ends, first within a minute: a server
// that is started for one conversation sweeps too. The times are spread, so that
// servers that were started together do not sweep together. What fails is logged
// and tried again the next time.
func SweepEvery(ctx context.Context, s mcpreplay.Store, o Sweeping) {
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if o.Interval <= 0 {
		o.Interval = time.Hour
	}
	wait := rand.N(min(o.Interval, time.Minute) + 1)
	for pause(ctx, wait) {
		swept, err := Sweep(ctx, s, o.Policy, nil)
		if err != nil && ctx.Err() == nil {
			log.Error("sweep failed", "error", err, "dropped", swept.Dropped, "forgotten", swept.Forgotten)
		} else if swept.Dropped+swept.Forgotten > 0 {
			log.Info("swept", "dropped", swept.Dropped, "bytes", swept.Bytes, "forgotten", swept.Forgotten)
		}
		wait = o.Interval - o.Interval/10 + rand.N(o.Interval/5+1)
	}
}

// pause waits, and reports whether ctx still holds.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
