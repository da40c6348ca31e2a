package mcpreplay

import (
	"context"
	"errors"
	"time"
)

// Store is a ledger. Each method is one whole transition: it is durable when it
// returns nil, and it changed nothing when it returns an error, except for an
// error matching ErrUnknown. Time, order and identity are the store's own.
//
// An implementation passes storetest.Run. All methods are safe for concurrent use,
// from any number of processes on the same ledger.
type Store interface {
	// Info identifies the ledger.
	Info(ctx context.Context) (Info, error)

	// Get reads one record, result included, in one snapshot. It returns
	// ErrNotFound, and a Record with only Key and Ledger filled, when there is
	// none for this principal.
	Get(ctx context.Context, key Key) (Record, error)

	// Events reads the history of one operation, oldest first. It returns
	// ErrNotFound when there is no record for this principal.
	Events(ctx context.Context, key Key) ([]Event, error)

	// List reads records, newest first.
	List(ctx context.Context, f Filter) ([]Record, error)

	// Begin inserts the record of op in the state first.To unless its id is
	// known. Exactly one caller ever sees started. If the record exists and
	// belongs to op's principal it is returned as it is; whether it stands for
	// the same request is for the caller to compare. It returns ErrConflict if
	// the id belongs to another principal, ErrForgotten if it may have had a record
	// (see Forgotten.Refuses), and ErrExpired if the right to write ended before the
	// insert and first.To is not not_applied.
	Begin(ctx context.Context, op Operation, first Change) (rec Record, started bool, err error)

	// Advance changes a record if its revision is still c.Revision. It returns
	// ErrStale if not, ErrNotFound if there is no record, ErrConflict if it is
	// another principal's, and a *TransitionError if the change is not a legal
	// transition. A claim or a takeover after the authority deadline is refused
	// with ErrExpired. A takeover, and a reconcile that is attempted, want a new
	// owner and need the lease of the one before to have run out: until then they
	// are refused with ErrStale.
	Advance(ctx context.Context, c Change) (Record, error)

	// Sweep drops the bytes of results that are no longer needed, in one bounded
	// chunk. Digest and size stay, and so does every record and every event, unless
	// the policy has records forgotten.
	Sweep(ctx context.Context, p SweepPolicy) (Swept, error)

	Close() error
}

// Applier is the extra ability of a concrete store: to run an effect inside the
// ledger's own transaction of type Tx.
type Applier[Tx any] interface {
	Store

	// Apply inserts the record of op, then runs effect, and commits record,
	// effect and result together as applied. If the id is known, effect does not
	// run and the record is returned with started false, as Begin does; the
	// errors of Begin apply.
	//
	// ctx bounds the wait for the ledger. Once effect has been called the
	// outcome is the ledger's: effect gets a context that is not cancelled with
	// ctx. effect may be called more than once and must touch nothing but its
	// transaction. If it fails or panics everything is rolled back and Apply
	// returns an *EffectError.
	Apply(ctx context.Context, op Operation, effect func(context.Context, Tx) (Outcome, error)) (rec Record, started bool, err error)

	// ApplyStep runs effect and makes change c in one transaction, under the
	// rules of Advance and Apply. The revision is compared before effect runs.
	// effect may complete its copy of the change with what it did: Effect, Memo, Result
	// and Event; anything else it sets there is ignored.
	ApplyStep(ctx context.Context, c Change, effect func(context.Context, Tx, *Change) error) (Record, error)

	// View reads a record and lets look read the application's own tables in the
	// same snapshot. Writing through the handle fails. look is not called when
	// there is no record.
	View(ctx context.Context, key Key, look func(context.Context, Tx, Record) error) (Record, error)
}

// Change is one compare-and-set of a record, with the event that tells of it.
type Change struct {
	Key      Key
	Revision int64 // the revision it was decided on; ignored by Begin
	To       State // "" keeps the state
	Fence    bool  // with To not_applied: placed on purpose
	Owner    string
	Lease    time.Duration // from the store's own time; 0 keeps or sets none, below 0 ends it
	Deadline time.Duration // of the claimed effect, from the ledger's time; 0, or an earlier one than there is, keeps that
	Memo     []byte        // nil keeps what is there; only a claim, a takeover or a step brings one
	Effect   string        // "" keeps the reference
	Result   *Result       // nil keeps the result
	Event    Event         // Kind "" appends none: only for a renewal
}

// Filter selects records for List. Zero fields select everything.
type Filter struct {
	Principal string
	ID        string
	Tool      string
	State     State
	Since     time.Time // created at or after
	Before    int64     // Seq, exclusive: the cursor of the next page
	Limit     int       // 0 means 100; at most 1000
}

// SweepPolicy says which results a chunk of a sweep may drop the bytes of: those
// whose retention ended at least Grace ago, and, if Acknowledged, those that
// their callers have acknowledged.
type SweepPolicy struct {
	Grace        time.Duration
	Acknowledged bool
	After        int64 // Seq to go on after: Swept.Next of the chunk before
	Limit        int   // results to look at, and records to forget; 0 means 1000, which is also the most

	// Forget is how long after it was minted an id keeps its record (see MintTime);
	// 0 is for ever, as it is for every other id. The whole record goes, with its
	// events, once its result could have been dropped, its outcome is final or it was
	// given back, and nobody may write under it any more, all by the time of the latest
	// commit. Info.Forgotten tells of it.
	Forget time.Duration
}

// Swept is what one chunk of a sweep did.
type Swept struct {
	Looked  int   // results that were there
	Dropped int   // of these, how many went
	Bytes   int64 // how much that freed
	Next    int64 // After of the next chunk; 0 once the end is reached

	Forgotten int // records that are gone; the Limit of the chunk if there may be more
}

// What a store's method can return, beside the errors of its driver that it
// wraps. Match them with errors.Is.
var (
	// ErrNotFound: there is no record. It proves nothing about the effect.
	ErrNotFound = errors.New("no such operation")

	// ErrConflict: the id belongs to someone else.
	ErrConflict = errors.New("the operation id is taken")

	// ErrStale: the record changed since it was read. Read it again.
	ErrStale = errors.New("the record has changed")

	// ErrExpired: the right to write ended before anything was dispatched.
	ErrExpired = errors.New("the authority to write has ended")

	// ErrForgotten: the id is so old that its record may be gone. What was done
	// under it is not known, and nothing was done now.
	ErrForgotten = errors.New("the operation may be forgotten")

	// ErrUnavailable: the ledger could not be used and nothing was dispatched.
	// The same operation may be sent again.
	ErrUnavailable = errors.New("the ledger is unavailable")

	// ErrUnknown: a commit was sent and not confirmed. Only reading the ledger
	// can tell what happened.
	ErrUnknown = errors.New("the outcome is unknown")

	// ErrClock: the clock is too far ahead of the ledger to be believed, so
	// nothing was written.
	ErrClock = errors.New("the clock is implausibly far ahead of the ledger")

	// ErrIncompatible: the ledger belongs to another backend, was written by a
	// newer version, or is no ledger. It is not opened.
	ErrIncompatible = errors.New("not a ledger this can use")
)

// EffectError says that the effect itself failed. Its transaction was rolled
// back: nothing happened and nothing was recorded.
type EffectError struct {
	Err      error
	Panic    bool // it panicked; Err tells how
	Internal bool // Err has text of the store in it, which is for the log alone
}

func (e *EffectError) Error() string { return "the effect failed: " + e.Err.Error() }
func (e *EffectError) Unwrap() error { return e.Err }

// Fence makes an operation impossible for good, if nothing can have happened under
// it: there is no record, or its claim was given back, or the question of its round
// was never answered. Any other record is left as it is, and returned: fenced or
// final it says what it is, and of one in progress nobody knows. The errors are those
// of Begin and Advance.
func Fence(ctx context.Context, s Store, key Key, actor, reason string) (Record, error) {
	fence := Change{
		To: StateNotApplied, Fence: true,
		Event: Event{Kind: EventFence, Actor: actor, Evidence: reason},
	}
	rec, _, err := s.Begin(ctx, Operation{Key: key}, fence)
	for err == nil && !rec.State.Final() && EventFence.Transition(rec.State, StateNotApplied) == nil {
		fence.Key, fence.Revision = key, rec.Revision
		var fenced Record
		if fenced, err = s.Advance(ctx, fence); !errors.Is(err, ErrStale) {
			if err == nil {
				rec = fenced
			}
			break
		}
		rec, err = s.Get(ctx, key) // somebody was faster
	}
	return rec, err
}
