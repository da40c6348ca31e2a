package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Options configure a Store.
type Options struct {
	// Backend is the configured name of this ledger. It is written into a new
	// ledger, and a ledger of another name is refused. Required, unless ReadOnly:
	// whoever only looks may take the ledger as it is.
	Backend string

	// IDs says what an operation id is unique in. It is written into a new ledger,
	// and a ledger of the other kind is refused. Empty takes an existing ledger as
	// it is, and makes a new one shared.
	IDs IDs

	// Clock is where the ledger's time comes from, except for leases, which are
	// always real. Only tests and the lab set it. Defaults to time.Now.
	Clock func() time.Time

	// MaxClockJump bounds how far the clock may be ahead of the latest committed
	// record for a write to be accepted: one host with a wrong clock must not
	// expire everyone. Negative means no bound. Defaults to 366 days.
	MaxClockJump time.Duration

	// Batch bounds how many operations share one commit. They do so only when they
	// are asked for at the same time, each can still fail alone, and nobody is
	// answered before the commit. 1 gives each a transaction of its own. Defaults to
	// 256, which is also the most.
	Batch int

	// EffectTimeout bounds how long an effect may keep everybody else from writing.
	// One that takes longer is rolled back. Defaults to 5 seconds.
	EffectTimeout time.Duration

	// Logger receives what an operator should know. Defaults to none.
	Logger *slog.Logger

	// ReadOnly opens an existing, current ledger without creating, migrating or
	// changing anything. Writing methods then return an error matching
	// mcpreplay.ErrUnavailable.
	ReadOnly bool
}

const maxBatch = 256

// IDs is what an operation id is unique in.
type IDs string

// Where ids are shared, an id that one principal has used is a conflict for all
// others, so that an attempt under a changed identity can never do the work again.
// Where each principal has ids of its own, it is new work: for a service whose
// principals do not know of each other, and choose ids that may be the same. There
// the column operation_id has more in it than the id, so the application's own
// tables cannot refer to it by the id.
const (
	IDsShared    IDs = "shared"
	IDsPrincipal IDs = "principal"
)

func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	var faults []error
	switch {
	case r.Backend == "" && !r.ReadOnly:
		faults = append(faults, errors.New("sqlite: Options.Backend: must not be empty"))
	case len(r.Backend) > 200 || strings.ContainsFunc(r.Backend, func(c rune) bool { return c < ' ' || c == 0x7f }):
		faults = append(faults, fmt.Errorf("sqlite: Options.Backend: must be at most 200 bytes without control characters (got %.40q)", r.Backend))
	}
	if r.IDs != "" && r.IDs != IDsShared && r.IDs != IDsPrincipal {
		faults = append(faults, fmt.Errorf("sqlite: Options.IDs: must be %q or %q (got %.40q)", IDsShared, IDsPrincipal, r.IDs))
	}
	if r.Batch < 0 || r.Batch > maxBatch {
		faults = append(faults, fmt.Errorf("sqlite: Options.Batch: must be from 1 to %d (got %d)", maxBatch, r.Batch))
	}
	if r.EffectTimeout < 0 {
		faults = append(faults, fmt.Errorf("sqlite: Options.EffectTimeout: must not be negative (got %v)", r.EffectTimeout))
	}
	if r.EffectTimeout == 0 {
		r.EffectTimeout = 5 * time.Second
	}
	if r.Batch == 0 {
		r.Batch = maxBatch
	}
	if r.Clock == nil {
		r.Clock = time.Now
	}
	if r.MaxClockJump == 0 {
		r.MaxClockJump = 366 * 24 * time.Hour
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, errors.Join(faults...)
}
