package postgres

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options configure a Store.
type Options struct {
	// Backend is the configured name of this ledger. It is written into a new
	// ledger, and a ledger of another name is refused. Required, unless ReadOnly:
	// whoever only looks may take the ledger as it is.
	Backend string

	// Schema is the schema that the ledger's tables are in. Defaults to
	// "mcpreplay".
	Schema string

	// IDs says what an operation id is unique in. It is written into a new ledger,
	// and a ledger of the other kind is refused. Empty takes an existing ledger as
	// it is, and makes a new one shared.
	IDs IDs

	// MaxClockJump bounds how far the server's clock may be ahead of the latest
	// committed record for a write to be accepted. Negative means no bound.
	// Defaults to 366 days.
	MaxClockJump time.Duration

	// StatementTimeout bounds each statement, those of effects included. Defaults
	// to 30 seconds.
	StatementTimeout time.Duration

	// LockTimeout bounds each wait for a lock: for another attempt under the same
	// id, or for the order of commits. Defaults to 10 seconds.
	LockTimeout time.Duration

	// IdleTimeout bounds how long an effect may do something else between two
	// statements while its transaction is open. Defaults to 30 seconds.
	IdleTimeout time.Duration

	// AllowLossyFailover lets claims be made while the server has asynchronous
	// standbys and no synchronous ones. When such a standby is promoted an
	// acknowledged claim may be lost with its server, and what it was a claim of
	// may then be done a second time. Unless this is set such claims are refused
	// with mcpreplay.ErrUnavailable.
	AllowLossyFailover bool

	// Logger receives what an operator should know. Defaults to none.
	Logger *slog.Logger

	// ReadOnly changes nothing. Writing methods then return an error matching
	// mcpreplay.ErrUnavailable.
	ReadOnly bool
}

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
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("postgres: Options."+format, args...))
	}
	switch {
	case r.Backend == "" && !r.ReadOnly:
		fault("Backend: must not be empty")
	case len(r.Backend) > 200 || strings.ContainsFunc(r.Backend, func(c rune) bool { return c < ' ' || c == 0x7f }) || !storable(r.Backend):
		fault("Backend: must be at most 200 bytes without control characters (got %.40q)", r.Backend)
	}
	if r.Schema == "" {
		r.Schema = "mcpreplay"
	}
	if len(r.Schema) > 63 || !storable(r.Schema) || strings.HasPrefix(r.Schema, "pg_") {
		fault("Schema: must be at most 63 bytes and not begin with pg_ (got %.70q)", r.Schema)
	}
	if r.IDs != "" && r.IDs != IDsShared && r.IDs != IDsPrincipal {
		fault("IDs: must be %q or %q (got %.40q)", IDsShared, IDsPrincipal, r.IDs)
	}
	if r.MaxClockJump == 0 {
		r.MaxClockJump = 366 * 24 * time.Hour
	}
	for _, d := range []struct {
		name string
		at   *time.Duration
		or   time.Duration
	}{
		{"StatementTimeout", &r.StatementTimeout, 30 * time.Second},
		{"LockTimeout", &r.LockTimeout, 10 * time.Second},
		{"IdleTimeout", &r.IdleTimeout, 30 * time.Second},
	} {
		if *d.at == 0 {
			*d.at = d.or
		}
		if *d.at < time.Millisecond || *d.at > math.MaxInt32*time.Millisecond {
			fault("%s: must be from 1ms to %s (got %s)", d.name, math.MaxInt32*time.Millisecond, *d.at)
		}
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, errors.Join(faults...)
}

// quoted is the schema's name as SQL has it.
func (o *Options) quoted() string { return pgx.Identifier{o.Schema}.Sanitize() }
