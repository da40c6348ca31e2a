package mcpreplay

import "errors"

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
