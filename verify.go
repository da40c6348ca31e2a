package mcpreplay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"
)

// Report is what Verify found.
type Report struct {
	Operations int
	Events     int
	Unsettled  int // in_progress with no live owner: their outcome is unknown, which is no fault of the ledger
	Findings   []Finding
}

// Consistent reports whether there is nothing wrong with the ledger.
func (r Report) Consistent() bool { return len(r.Findings) == 0 }

// Finding is one broken invariant.
type Finding struct {
	OperationID string // "" when it is the ledger's as a whole
	Rule        string // one of the Rule constants
	Detail      string
}

func (f Finding) String() string {
	if f.OperationID == "" {
		return f.Rule + ": " + f.Detail
	}
	return f.OperationID + ": " + f.Rule + ": " + f.Detail
}

// The rules of a consistent ledger. They are stable strings.
const (
	RuleID            = "id"            // the id is well formed, and somebody's
	RuleOrder         = "order"         // records are listed newest first, each once
	RuleState         = "state"         // the record is as its events left it: its state, its fence, and no live owner after the end
	RuleHistory       = "history"       // every event leads where its kind may lead
	RuleOnce          = "once"          // one outcome at most was recorded
	RuleContradiction = "contradiction" // no late outcome disagreed with the record
	RuleAttempt       = "attempt"       // it counts as many writes as were authorised
	RuleRevision      = "revision"      // every event has a revision of its own, and the record the last
	RulePosition      = "position"      // positions grow, and up to the ledger's own each is used exactly once
	RuleTime          = "time"          // time never runs backwards, and a record has those of its first and last event
	RuleIncarnation   = "incarnation"   // each incarnation but the first was begun by a declared restore
	RuleAuthority     = "authority"     // every write was authorised before the right to it ended
	RuleResult        = "result"        // what is final has its result, as its digest says, or is fenced
	RuleDigests       = "digests"       // what was asked can be compared with what is asked again
)

// verifyPage is small because records come with their results.
const verifyPage = 100

// Verify proves the ledger in s consistent: every record against its events, and
// all of them against each other. It only reads, and may run while others write.
// The error is about reading; what is wrong with the ledger is in the report.
//
// The bytes of a result may go from a ledger; its digest and size stay. Whole records
// may only go by being forgotten. Nothing else may be removed or skipped: each
// position from 1 to that of the ledger belongs to an event that Events still tells,
// or is one that a declared restore passed over, and there are as many others as
// events were forgotten, so that what was deleted shows as a gap.
func Verify(ctx context.Context, s Store) (Report, error) {
	v := verifier{s: s, used: map[int64]uint64{}}
	// What is at or before this position is there to be listed from now on.
	info, err := s.Info(ctx)
	if err != nil {
		return v.report, fmt.Errorf("info: %w", err)
	}
	v.forgotten = info.Forgotten
	for {
		recs, err := s.List(ctx, Filter{Before: v.before, Limit: verifyPage})
		if err != nil {
			return v.report, fmt.Errorf("list: %w", err)
		}
		for _, rec := range recs {
			if v.before != 0 && rec.Seq >= v.before {
				v.fail(rec.ID, RuleOrder, "sequence %d is listed after %d", rec.Seq, v.before)
				return v.report, nil // such a list may never end
			}
			err := v.operation(ctx, rec)
			if errors.Is(err, ErrNotFound) && v.forgets(ctx) {
				continue // forgotten since it was listed
			}
			if err != nil {
				return v.report, fmt.Errorf("operation %s: %w", rec.ID, err)
			}
		}
		if len(recs) < verifyPage {
			now, err := s.Info(ctx)
			if err != nil {
				return v.report, fmt.Errorf("info: %w", err)
			}
			v.gaps(info, now.Forgotten)
			return v.report, nil
		}
	}
}

type verifier struct {
	s      Store
	report Report
	before int64            // Seq of the record before, the next newer one
	newer  time.Time        // and when it was created
	used   map[int64]uint64 // bitmap of positions by 64

	forgotten Forgotten // when it began
}

// forgets reports whether records were forgotten since this began.
func (v *verifier) forgets(ctx context.Context) bool {
	info, err := v.s.Info(ctx)
	return err == nil && info.Forgotten.Operations > v.forgotten.Operations
}

func (v *verifier) operation(ctx context.Context, rec Record) error {
	if v.before != 0 && rec.CreatedAt.After(v.newer) {
		v.fail(rec.ID, RuleTime, "created after an operation that is newer")
	}
	v.before, v.newer = rec.Seq, rec.CreatedAt

	events, findings, err := v.settled(ctx, &rec)
	if err != nil {
		return err
	}
	for _, e := range events {
		bit := uint64(1) << (e.Position & 63)
		if v.used[e.Position>>6]&bit != 0 {
			v.fail(rec.ID, RulePosition, "position %d is used twice", e.Position)
		}
		v.used[e.Position>>6] |= bit
	}
	v.report.Operations++
	v.report.Events += len(events)
	if rec.State == StateInProgress && !rec.Live {
		v.report.Unsettled++
	}
	v.report.Findings = append(v.report.Findings, findings...)
	return nil
}

// gaps finds the positions up to the ledger's that no event has, but for those
// that declared restores passed over, and as many as were forgotten by now: which
// those were is not known any more. The walk is over what is used: the ledger's
// position may be anything.
func (v *verifier) gaps(info Info, now Forgotten) {
	last, gone := info.Position, int64(0)
	after := int64(0) // the latest position that is accounted for
	passed := v.restores(info)
	none := func(until int64) {
		if free := min(until, now.Until) - after; free > 0 {
			gone += free
			after += free
		}
		switch n := until - after; {
		case n == 1:
			v.fail("", RulePosition, "no operation has an event at %d", until)
		case n > 1:
			v.fail("", RulePosition, "no operation has an event at %d to %d", after+1, until)
		}
	}
	missing := func(until int64) {
		for len(passed) > 0 && passed[0].After >= after && passed[0].Until <= until {
			none(passed[0].After)
			after, passed = passed[0].Until, passed[1:]
		}
		none(until)
	}
	for _, word := range slices.Sorted(maps.Keys(v.used)) {
		for set := v.used[word]; set != 0; set &= set - 1 {
			at := word<<6 | int64(bits.TrailingZeros64(set))
			if at < 1 || at > last {
				continue // found with its operation, or written since
			}
			missing(at - 1)
			after = at
		}
	}
	missing(last)
	if gone < v.forgotten.Events || gone > now.Events {
		v.fail("", RulePosition, "no operation has an event at %d positions up to %d, and %d events were forgotten", gone, now.Until, now.Events)
	}
}

// restores checks the declared restores, and returns those that passed positions
// over. An event at such a position is a gap of the next one that is missing.
func (v *verifier) restores(info Info) (passed []Restore) {
	before := Restore{Incarnation: 1}
	for _, r := range info.Restores {
		if r.Incarnation != before.Incarnation+1 || r.After < before.Until || r.Until < r.After || r.At.Before(before.At) {
			v.fail("", RuleIncarnation, "the restore that began incarnation %d does not follow from what came before", r.Incarnation)
		}
		if r.Until > r.After {
			passed = append(passed, r)
		}
		before = r
	}
	if before.Incarnation != info.Incarnation {
		v.fail("", RuleIncarnation, "it is incarnation %d, but the last restore began %d", info.Incarnation, before.Incarnation)
	}
	return passed
}

func (v *verifier) fail(id, rule, format string, args ...any) {
	v.report.Findings = append(v.report.Findings, Finding{id, rule, fmt.Sprintf(format, args...)})
}

// settled checks rec against its events. They are read one after the other, so
// others may write in between: a fault counts only if the record was the same
// before and after its events were read.
func (v *verifier) settled(ctx context.Context, rec *Record) ([]Event, []Finding, error) {
	events, err := v.s.Events(ctx, rec.Key)
	if err != nil {
		return nil, nil, err
	}
	findings := check(*rec, events)
	for tries := 0; len(findings) > 0 && tries < 10; tries++ {
		again, err := v.s.Get(ctx, rec.Key)
		if err != nil {
			return nil, nil, err
		}
		same := again.Revision == rec.Revision && again.Position == rec.Position
		*rec = again
		if same && tries > 0 {
			break
		}
		if events, err = v.s.Events(ctx, rec.Key); err != nil {
			return nil, nil, err
		}
		findings = check(*rec, events)
	}
	return events, findings, nil
}

func check(rec Record, events []Event) (found []Finding) {
	fail := func(rule, format string, args ...any) {
		found = append(found, Finding{rec.ID, rule, fmt.Sprintf(format, args...)})
	}
	checkRecord(rec, fail)
	if len(events) == 0 {
		fail(RuleHistory, "there are no events")
		return found
	}
	checkHistory(events, fail)
	checkFence(rec, events, fail)
	first, last := events[0], events[len(events)-1]
	if rec.State != last.State {
		fail(RuleState, "it is %s, but its last event led to %s", rec.State, last.State)
	}
	if rec.Position != last.Position {
		fail(RulePosition, "it is at %d, but its last event at %d", rec.Position, last.Position)
	}
	// A renewal makes a revision without an event, and nothing final is renewed.
	if rec.Revision < last.Revision || rec.State.Final() && rec.Revision != last.Revision {
		fail(RuleRevision, "it has revision %d, but its last event %d", rec.Revision, last.Revision)
	}
	if last.Position > rec.Ledger.Position {
		fail(RulePosition, "an event is at %d, but the ledger at %d", last.Position, rec.Ledger.Position)
	}
	if !rec.CreatedAt.Equal(first.At) {
		fail(RuleTime, "created at %s, but its first event was at %s", when(rec.CreatedAt), when(first.At))
	}
	if !rec.UpdatedAt.Equal(last.At) {
		fail(RuleTime, "updated at %s, but its last event was at %s", when(rec.UpdatedAt), when(last.At))
	}
	checkWrites(rec, events, fail)
	contradicted := slices.ContainsFunc(events, func(e Event) bool { return e.Kind == EventContradiction })
	if contradicted != rec.Contradicted {
		fail(RuleState, "contradicted by its events is %t, by itself %t", contradicted, rec.Contradicted)
	}
	return found
}

// checkWrites holds that each write was authorised in time, and counted. A fence
// and a decline need no right, and neither does the outcome of what was claimed.
func checkWrites(rec Record, events []Event, fail func(rule, format string, args ...any)) {
	writes, late := int64(0), false
	for _, e := range events {
		if e.Kind != EventApply && e.Kind != EventClaim && e.Kind != EventTakeover {
			continue
		}
		writes++
		if !late && !rec.Authority.IsZero() && !e.At.Before(rec.Authority) {
			late = true
			fail(RuleAuthority, "%s at %s, but the right to write ended at %s", e.Kind, when(e.At), when(rec.Authority))
		}
	}
	if writes != rec.Attempt {
		fail(RuleAttempt, "%d writes were authorised, but it counts %d", writes, rec.Attempt)
	}
}

func when(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// checkRecord holds what a record must be by itself.
func checkRecord(rec Record, fail func(rule, format string, args ...any)) {
	if err := ValidateID(rec.ID); err != nil {
		fail(RuleID, "%v", err)
	}
	if rec.Principal == "" {
		fail(RuleID, "it has no principal")
	}
	if rec.State.Final() && rec.Live {
		fail(RuleState, "it is %s and has a live owner", rec.State)
	}
	if rec.CreatedAt.IsZero() {
		fail(RuleTime, "it has no time of creation")
	}
	if rec.UpdatedAt.After(rec.Ledger.Time) {
		fail(RuleTime, "updated after the ledger's own time")
	}
	if bare := rec.Fenced && rec.Tool == ""; !bare {
		d := rec.Digests
		if d.KeyID == "" {
			fail(RuleDigests, "there is no key id")
		}
		for _, digest := range [][]byte{d.Fingerprint, d.Arguments, d.Answers, d.State, d.Sent} {
			if len(digest) != sha256.Size {
				fail(RuleDigests, "a digest has %d bytes", len(digest))
			}
		}
	}
	switch res := rec.Result; {
	case res == nil:
		if rec.State.Final() && !rec.Fenced {
			fail(RuleResult, "it is %s without a result", rec.State)
		}
	case len(res.Digest) != sha256.Size:
		fail(RuleResult, "the digest has %d bytes", len(res.Digest))
	case res.Size < 0:
		fail(RuleResult, "the size is %d", res.Size)
	case res.Dropped():
	case res.Size != int64(len(res.Body)):
		fail(RuleResult, "it has %d bytes, not %d", len(res.Body), res.Size)
	default:
		if sum := sha256.Sum256(res.Body); !bytes.Equal(sum[:], res.Digest) {
			fail(RuleResult, "its bytes do not match their digest")
		}
	}
}

// checkHistory holds how each event must follow from the one before.
func checkHistory(events []Event, fail func(rule, format string, args ...any)) {
	var before Event // in StateNone
	outcomes := 0
	for _, e := range events {
		if err := e.Kind.Transition(before.State, e.State); err != nil {
			fail(RuleHistory, "%v", err)
		}
		switch e.Kind {
		case EventApply, EventFinish, EventSettle:
			if !e.State.Final() {
				break // a round that ended with questions
			}
			if outcomes++; outcomes > 1 {
				fail(RuleOnce, "%s is a second outcome", e.Kind)
			}
		case EventContradiction:
			fail(RuleContradiction, "%s", e.Evidence)
		}
		if e.Position <= before.Position {
			fail(RulePosition, "an event at %d follows one at %d", e.Position, before.Position)
		}
		if e.Revision <= before.Revision {
			fail(RuleRevision, "an event with %d follows one with %d", e.Revision, before.Revision)
		}
		if e.At.Before(before.At) {
			fail(RuleTime, "%s happened before what came before it", e.Kind)
		}
		before = e
	}
}

// checkFence holds that a record is fenced if, and only if, an event says so.
func checkFence(rec Record, events []Event, fail func(rule, format string, args ...any)) {
	fenced := slices.ContainsFunc(events, func(e Event) bool { return e.Kind == EventFence })
	switch {
	case rec.Fenced && !fenced:
		fail(RuleState, "it is fenced, but none of its events is a fence")
	case fenced && !rec.Fenced:
		fail(RuleState, "one of its events is a fence, but it is not fenced")
	}
}
