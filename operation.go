package mcpreplay

import (
	"slices"
	"time"
)

// Key names one operation: the identity it runs for, and its id.
//
// Ids are unique in a ledger across principals. A store never shows the record
// of one principal to another: to a foreign key it looks absent when read and
// is a bare ErrConflict when written.
type Key struct {
	Principal string // from the transport or configuration, never from arguments
	ID        string // see ValidateID
}

// Operation is what an attempt brings. Nothing in it changes once it is recorded.
type Operation struct {
	Key
	Tool    string // "" only for a fence placed where there was no record
	Version string
	Digests Digests

	// Authority is when the right to write ends, Retention when the right to be
	// replayed does. A deadline is over when the ledger's time has reached it;
	// the zero time means there is none.
	Authority time.Time
	Retention time.Time
}

// Result is the stored result of an operation: one whole tool result.
type Result struct {
	Body    []byte // JSON of the tool result; nil once retention dropped the bytes
	IsError bool
	Digest  []byte // SHA-256 of Body, kept when Body is dropped
	Size    int64  // len(Body), kept when Body is dropped
}

// Dropped reports whether the bytes are gone and only digest and size remain.
func (r *Result) Dropped() bool { return r != nil && r.Body == nil && r.Digest != nil }

// Outcome is what an effect hands back to be recorded with it.
type Outcome struct {
	Result Result // Body and IsError; the store fills the rest
	Effect string // opaque reference to the effect, or ""
}

// Record is an operation as the ledger holds it, read in one snapshot.
type Record struct {
	Operation
	State    State
	Fenced   bool   // a not_applied placed on purpose: only a new id can do the work
	Revision int64  // grows with every change; the compare-and-set token of Advance
	Owner    string // who holds the claim, or held it last; "" when nobody did
	Live     bool   // the owner's lease had not run out, by the store's own time
	Attempt  int64  // how often a write was authorised: claims, takeovers and atomic effects
	Effect   string // opaque reference to the effect, or ""
	Result   *Result

	// Deadline is when a claimed effect must have ended, by the ledger's time: the
	// latest of all its attempts. Zero if it was never claimed with one. It says
	// nothing of whether it did.
	Deadline time.Time

	// Memo is what the claim keeps for whoever has to find out what became of it,
	// such as the arguments. It is gone once the record is final, or released.
	Memo []byte

	// Acknowledged: the caller has its result, whose bytes may be dropped early.
	Acknowledged bool

	// Contradicted: a late outcome disagreed with the record, which is therefore no
	// evidence of anything. A person has to look.
	Contradicted bool

	Seq       int64     // ledger order of first appearance
	Position  int64     // of the latest event of this operation
	CreatedAt time.Time // of the first event
	UpdatedAt time.Time // of the latest event

	// Ledger is the ledger as of the same snapshot. It is filled even when the
	// record was not found.
	Ledger Info
}

// Info identifies a ledger and says how far it has come. Instance, Incarnation
// and Position together tell a client that it is looking at another, an older
// or a restored ledger.
type Info struct {
	Backend     string    // configured name, persisted, refused when different
	Instance    string    // random, born with the file or schema
	Incarnation int64     // bumped by a declared restore
	Position    int64     // of the latest event in the ledger; never shrinks
	Time        time.Time // the ledger's own time: the clock, but never before the latest commit
	Forgotten   Forgotten // what is no longer in it

	// Restores are the declared restores of this ledger, oldest first. Only
	// Store.Info fills them.
	Restores []Restore
}

// Forgotten says what a ledger holds no longer: records under ids that carry the time
// at which a server minted them (see [MintTime]). Such an id of before that time has a
// record, or is refused: what was done under it is not known any more.
type Forgotten struct {
	Before     time.Time // zero if nothing was ever forgotten
	Operations int64
	Events     int64 // of these operations: so many positions are gone
	Until      int64 // and the latest of them
}

// Refuses reports whether an id that has no record may not become new work.
func (f Forgotten) Refuses(id string) bool {
	at, minted := MintTime(id)
	return minted && at.Before(f.Before)
}

// Restore is one declared restore: from then on the ledger is another
// incarnation, and its positions go on beyond any that a client may have seen.
type Restore struct {
	Incarnation int64     // the one it began
	After       int64     // the ledger's position before
	Until       int64     // the positions from After+1 to Until are passed over
	Actor       string    // who declared it
	Reason      string    // why
	At          time.Time // by the ledger's time
}

// EventKind says what a transition was.
type EventKind string

// The kinds of event. They are stable strings: in the ledger, on the wire and
// in the output of commands. EventKind.Transition says where each may lead.
const (
	EventClaim         EventKind = "claim"         // a write was authorised and is about to run
	EventTakeover      EventKind = "takeover"      // an idempotent effect is run again, because its owner is gone
	EventApply         EventKind = "apply"         // effect and result committed together
	EventStep          EventKind = "step"          // one of several effects
	EventCompensation  EventKind = "compensation"  // undoing an earlier step
	EventFinish        EventKind = "finish"        // the outcome of a claimed operation, told by its owner
	EventRelease       EventKind = "release"       // nothing happened and the claim was given back
	EventDoubt         EventKind = "doubt"         // the effect ended without saying whether it happened
	EventReconcile     EventKind = "reconcile"     // the system of record is being asked, or could not tell
	EventSettle        EventKind = "settle"        // the outcome, found by evidence after the owner was gone
	EventDecline       EventKind = "decline"       // the user said no
	EventFence         EventKind = "fence"         // made impossible on purpose
	EventConfirmation  EventKind = "confirmation"  // a late outcome agreed with the record
	EventContradiction EventKind = "contradiction" // a late outcome disagreed with the record
	EventAcknowledge   EventKind = "acknowledge"   // the caller has its result
)

// EventKinds are all kinds of event.
var EventKinds = []EventKind{
	EventClaim, EventTakeover, EventApply, EventStep, EventCompensation, EventFinish, EventRelease, EventDoubt,
	EventReconcile, EventSettle, EventDecline, EventFence, EventConfirmation, EventContradiction, EventAcknowledge,
}

// Event is one line of an operation's history. Every transition appends one.
type Event struct {
	Position int64 // ledger order, filled by the store
	Kind     EventKind
	State    State  // the state it led to, filled by the store
	Revision int64  // the revision it led to, filled by the store
	Step     string // name of the step or compensation, or ""
	Outcome  string // "attempted", "succeeded" or "failed" for steps, compensations and reconciles, else ""
	Actor    string // who: a principal, or an owner
	Evidence string // why this is known; for a failure its class
	At       time.Time
}

// What became of a step, in Event.Outcome and StepOutcome.
const (
	OutcomeAttempted = "attempted" // begun, and nobody knows more
	OutcomeSucceeded = "succeeded"
	OutcomeFailed    = "failed"
)

// StepOutcome is what became of one of several effects.
type StepOutcome struct {
	Name         string `json:"name"`
	Outcome      string `json:"outcome"`                // attempted, succeeded or failed
	Compensation string `json:"compensation,omitempty"` // the same of its compensation, if there was one
}

// Steps are the steps that an operation's history tells of, in the order in which
// they were begun. A claim that is made again begins anew.
type Steps []StepOutcome

// StepsOf reads them from all events of an operation, oldest first.
func StepsOf(events []Event) Steps {
	var s Steps
	for _, e := range events {
		switch e.Kind {
		case EventClaim:
			s = nil
		case EventStep, EventCompensation:
			s = s.With(e)
		}
	}
	return s
}

// With is s and what the event of a step or a compensation adds to it.
func (s Steps) With(e Event) Steps {
	s = slices.Clone(s)
	i := slices.IndexFunc(s, func(o StepOutcome) bool { return o.Name == e.Step })
	if i < 0 {
		s = append(s, StepOutcome{Name: e.Step})
		i = len(s) - 1
	}
	if e.Kind == EventCompensation {
		s[i].Compensation = e.Outcome
	} else {
		s[i].Outcome = e.Outcome
	}
	return s
}

// Succeeded counts those that are done, whatever compensated for them since.
func (s Steps) Succeeded() (n int) {
	for _, o := range s {
		if o.Outcome == OutcomeSucceeded {
			n++
		}
	}
	return n
}
