// Package rules is what every store does alike with a record: which change of it
// is legal, and what it makes of the record. It is pure: times and positions are
// the store's.
package rules

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"mcpreplay"
)

// LateOwner is how long after the deadline of an effect its owner may still come with
// an outcome that contradicts the record, which is kept for that.
const LateOwner = time.Hour

// ErrMisuse is a change that no caller should ask for.
var ErrMisuse = errors.New("the change contradicts itself")

// Row is a record, and what only a store knows of it.
type Row struct {
	mcpreplay.Record
	Lease time.Time // until when its owner counts as live, by the store's own time
}

// Change makes c of r, as of the ledger's time now, and returns the event that
// tells of it at position; nil for a renewal. A row without a state is new. real
// is the time by which leases are told, which may be another than the ledger's.
//
// UpdatedAt is the time of the latest event, so a renewal leaves it: the
// ledger's own time is derived from events, and no record may be ahead of it.
func (r *Row) Change(c mcpreplay.Change, now, real time.Time, position int64) (*mcpreplay.Event, error) {
	if err := r.Legal(c); err != nil {
		return nil, err
	}
	if err := r.coherent(c); err != nil {
		return nil, err
	}
	to := r.target(c)
	r.State = to
	r.Fenced = r.Fenced || c.Fence
	r.Revision++
	if c.Owner != "" {
		r.Owner = c.Owner
	}
	if c.Effect != "" {
		r.Effect = c.Effect
	}
	if c.Result != nil {
		r.Result = seal(c.Result)
	}
	// An attempt before this one may still be running until its own deadline.
	if end := now.Add(c.Deadline.Truncate(time.Microsecond)); c.Deadline != 0 && end.After(r.Deadline) {
		r.Deadline = end
	}
	switch c.Event.Kind {
	case mcpreplay.EventClaim, mcpreplay.EventTakeover, mcpreplay.EventApply:
		r.Attempt++
	case mcpreplay.EventAcknowledge:
		r.Acknowledged = true
	case mcpreplay.EventContradiction:
		r.Contradicted = true
	}
	if c.Memo != nil {
		r.Memo = append([]byte{}, c.Memo...)
	}
	if c.Lease > 0 {
		r.Lease = Micro(real.Add(c.Lease))
	}
	over := to.Final() || to == mcpreplay.StateReleased
	if c.Lease < 0 || over {
		r.Lease = time.Time{}
	}
	if over {
		r.Memo = nil
	}
	r.Live = r.Lease.After(real)
	if c.Event.Kind == "" {
		return nil, nil
	}
	e := c.Event
	e.Position, e.State, e.Revision, e.At = position, to, r.Revision, now
	r.Position, r.UpdatedAt = position, now
	return &e, nil
}

// Legal reports whether r may go where c leads. To a final record only an event
// can be added, and only one that tells of something after the end. The event may
// be missing: of a renewal, or while an effect is yet to name it.
func (r *Row) Legal(c mcpreplay.Change) error {
	to, kind := r.target(c), c.Event.Kind
	bare := c.To == "" && !c.Fence && c.Owner == "" && c.Lease == 0 && c.Deadline == 0 && c.Memo == nil && c.Effect == "" && c.Result == nil
	switch {
	case r.State.Final() && !bare:
		return &mcpreplay.TransitionError{From: r.State, To: to, Kind: kind}
	case kind != "":
		return kind.Transition(r.State, to)
	case c.To == "" && r.State != mcpreplay.StateNone && !r.State.Final():
		return nil
	}
	return mcpreplay.Transition(r.State, to)
}

func (r *Row) target(c mcpreplay.Change) mcpreplay.State {
	if c.To == "" {
		return r.State
	}
	return c.To
}

// coherent reports whether the parts of a legal c fit each other and r. A change
// that it lets pass is one that mcpreplay.Verify accepts.
func (r *Row) coherent(c mcpreplay.Change) error {
	to, kind := r.target(c), c.Event.Kind
	switch {
	case kind == "" && (to != r.State || c.Fence || c.Deadline != 0 || c.Effect != "" || c.Result != nil):
		return fmt.Errorf("%w: only a renewal may go without an event", ErrMisuse)
	case c.Memo != nil && !Writes(c) && kind != mcpreplay.EventStep && kind != mcpreplay.EventCompensation:
		return fmt.Errorf("%w: only a claim or a step brings a memo", ErrMisuse)
	case c.Fence != (kind == mcpreplay.EventFence):
		return fmt.Errorf("%w: a fence and its event go together", ErrMisuse)
	case Takes(c) && (c.Owner == "" || c.Owner == r.Owner):
		return fmt.Errorf("%w: a %s wants an owner of its own", ErrMisuse, kind)
	case !Takes(c) && c.Owner != "" && c.Owner != r.Owner && to == r.State:
		return fmt.Errorf("%w: what keeps the state keeps the owner", ErrMisuse)
	case to.Final() && to != r.State && !c.Fence && r.Result == nil && c.Result == nil:
		return fmt.Errorf("%w: what ends as %s needs a result", ErrMisuse, to)
	case c.Result != nil && dropped(c.Result) && c.Result.Size < 0:
		return fmt.Errorf("%w: a result of %d bytes", ErrMisuse, c.Result.Size)
	}
	return nil
}

// Takes reports whether c takes a record from an owner that is gone: to run its
// effect again, or to ask the system of record about it.
func Takes(c mcpreplay.Change) bool {
	return c.Event.Kind == mcpreplay.EventTakeover || c.Event.Kind == mcpreplay.EventReconcile && c.Event.Outcome == mcpreplay.OutcomeAttempted
}

// Writes reports whether c authorises a write, for which the right to it counts.
func Writes(c mcpreplay.Change) bool {
	return c.Event.Kind == mcpreplay.EventClaim || c.Event.Kind == mcpreplay.EventTakeover
}

// dropped reports whether the bytes of a result were never kept.
func dropped(res *mcpreplay.Result) bool {
	return res.Body == nil && len(res.Digest) == sha256.Size
}

// seal fills digest and size, unless the result says that its bytes were never
// kept: then it brings both itself.
func seal(in *mcpreplay.Result) *mcpreplay.Result {
	if dropped(in) {
		return &mcpreplay.Result{IsError: in.IsError, Digest: append([]byte{}, in.Digest...), Size: in.Size}
	}
	digest := sha256.Sum256(in.Body)
	return &mcpreplay.Result{
		Body:    append([]byte{}, in.Body...),
		IsError: in.IsError,
		Digest:  digest[:],
		Size:    int64(len(in.Body)),
	}
}

// Fresh is the row of an operation that is not in the ledger yet.
func Fresh(op mcpreplay.Operation, now time.Time) *Row {
	r := &Row{}
	r.Operation = op
	r.Authority, r.Retention = Micro(op.Authority), Micro(op.Retention)
	r.CreatedAt, r.UpdatedAt = now, now
	return r
}

// Late reports whether the right to write of r had ended by the ledger's time now.
func (r *Row) Late(now time.Time) bool {
	return !r.Authority.IsZero() && !now.Before(r.Authority)
}

// Micro is t as a ledger keeps it: microseconds, UTC.
func Micro(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMicro(t.UnixMicro()).UTC()
}
