package mcpreplay_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"mcpreplay"
)

// books is a ledger in memory that can be falsified.
type books struct {
	mcpreplay.Store // only reading is there
	info            mcpreplay.Info
	recs            []*mcpreplay.Record // oldest first
	events          map[string][]mcpreplay.Event
	err, infoErr    error

	listed, read int
	before       func()          // runs after the ledger is read
	during       func(id string) // runs before events are read
}

func (b *books) record(id string) *mcpreplay.Record {
	for _, r := range b.recs {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (b *books) Info(context.Context) (mcpreplay.Info, error) {
	if b.before != nil {
		defer b.before()
	}
	return b.info, b.infoErr
}

func (b *books) List(_ context.Context, f mcpreplay.Filter) (page []mcpreplay.Record, err error) {
	b.listed++
	for _, r := range slices.Backward(b.recs) {
		if (f.Before == 0 || r.Seq < f.Before) && len(page) < f.Limit {
			page = append(page, b.stamp(*r))
		}
	}
	return page, b.err
}

func (b *books) stamp(r mcpreplay.Record) mcpreplay.Record {
	r.Ledger = b.info
	return r
}

func (b *books) Get(_ context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
	if r := b.record(key.ID); r != nil {
		return b.stamp(*r), nil
	}
	return mcpreplay.Record{}, mcpreplay.ErrNotFound
}

func (b *books) Events(_ context.Context, key mcpreplay.Key) ([]mcpreplay.Event, error) {
	b.read++
	if b.during != nil {
		b.during(key.ID)
	}
	if b.record(key.ID) == nil {
		return nil, mcpreplay.ErrNotFound
	}
	return slices.Clone(b.events[key.ID]), nil
}

func sum(text string) []byte {
	s := sha256.Sum256([]byte(text))
	return s[:]
}

// write adds an operation with one event for each state it went through, or a
// renewal for "renew".
func (b *books) write(id string, kinds ...mcpreplay.Event) *mcpreplay.Record {
	r := &mcpreplay.Record{
		Operation: mcpreplay.Operation{
			Key: mcpreplay.Key{Principal: "alice", ID: id}, Tool: "create_issue", Version: "1",
			Digests: mcpreplay.Digests{KeyID: "k1", Fingerprint: sum("f"), Arguments: sum("a"), Answers: sum("n"), State: sum("s"), Sent: sum("t")},
		},
		Seq: int64(len(b.recs) + 1), CreatedAt: b.info.Time,
	}
	for _, e := range kinds {
		r.Revision++
		switch e.Kind {
		case "":
			continue
		case mcpreplay.EventApply, mcpreplay.EventClaim, mcpreplay.EventTakeover:
			r.Attempt++
		}
		b.info.Position++
		e.Position, e.Revision, e.At = b.info.Position, r.Revision, b.info.Time
		b.events[id] = append(b.events[id], e)
		r.State, r.Position, r.UpdatedAt = e.State, e.Position, e.At
		b.info.Time = b.info.Time.Add(time.Second)
	}
	if r.State.Final() {
		r.Result = &mcpreplay.Result{Body: []byte("{}"), Digest: sum("{}"), Size: 2}
	}
	b.recs = append(b.recs, r)
	return r
}

// newBooks is a consistent ledger with an operation of each kind.
func newBooks() *books {
	b := &books{
		info:   mcpreplay.Info{Backend: "b", Instance: "i", Incarnation: 1, Time: time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)},
		events: map[string][]mcpreplay.Event{},
	}
	event := func(kind mcpreplay.EventKind, state mcpreplay.State) mcpreplay.Event {
		return mcpreplay.Event{Kind: kind, State: state}
	}
	claim := event(mcpreplay.EventClaim, mcpreplay.StateInProgress)
	step := event(mcpreplay.EventStep, mcpreplay.StateInProgress)
	ask := event(mcpreplay.EventFinish, mcpreplay.StateAwaitingInput)
	b.write("op-atomic", event(mcpreplay.EventApply, mcpreplay.StateApplied))
	b.write("op-steps", claim, step, mcpreplay.Event{}, event(mcpreplay.EventCompensation, mcpreplay.StateInProgress),
		event(mcpreplay.EventFinish, mcpreplay.StatePartial), event(mcpreplay.EventCompensation, mcpreplay.StatePartial))
	fence := b.write("op-fence", event(mcpreplay.EventFence, mcpreplay.StateNotApplied))
	fence.Fenced, fence.Tool, fence.Digests, fence.Result = true, "", mcpreplay.Digests{}, nil
	b.write("op-fenced-later", claim, ask, event(mcpreplay.EventFence, mcpreplay.StateNotApplied)).Fenced = true
	b.write("op-declined", event(mcpreplay.EventDecline, mcpreplay.StateNotApplied))
	b.write("op-dead", claim, mcpreplay.Event{})
	b.write("op-live", claim, mcpreplay.Event{}, mcpreplay.Event{}).Live = true
	b.write("op-asked", claim, ask, claim, ask, claim, event(mcpreplay.EventFinish, mcpreplay.StateApplied))
	b.write("op-asking", claim, ask)
	b.write("op-released", claim, event(mcpreplay.EventRelease, mcpreplay.StateReleased))
	reconcile, takeover := event(mcpreplay.EventReconcile, mcpreplay.StateInProgress), event(mcpreplay.EventTakeover, mcpreplay.StateInProgress)
	b.write("op-settled", claim, event(mcpreplay.EventDoubt, mcpreplay.StateInProgress), takeover, reconcile, reconcile,
		event(mcpreplay.EventSettle, mcpreplay.StateApplied), event(mcpreplay.EventConfirmation, mcpreplay.StateApplied),
		event(mcpreplay.EventAcknowledge, mcpreplay.StateApplied))
	b.write("op-dropped", event(mcpreplay.EventApply, mcpreplay.StateApplied)).Result.Body = nil
	bounded := b.write("op-bounded", event(mcpreplay.EventApply, mcpreplay.StateApplied))
	bounded.Authority, bounded.Retention = bounded.CreatedAt.Add(time.Microsecond), bounded.CreatedAt // may be shorter
	late := b.write("op-late", event(mcpreplay.EventFence, mcpreplay.StateNotApplied))
	late.Fenced, late.Authority = true, late.CreatedAt.Add(-time.Hour) // a fence needs no right to write
	b.write("op-empty", event(mcpreplay.EventApply, mcpreplay.StateApplied)).Result = &mcpreplay.Result{Body: []byte{}, Digest: sum(""), Size: 0}
	return b
}

// step appends one event to an operation in progress.
func (b *books) step(id string) {
	r := b.record(id)
	r.Revision++
	b.info.Position++
	b.info.Time = b.info.Time.Add(time.Second)
	b.events[id] = append(b.events[id], mcpreplay.Event{
		Kind: mcpreplay.EventStep, State: r.State, Position: b.info.Position, Revision: r.Revision, At: b.info.Time,
	})
	r.Position, r.UpdatedAt = b.info.Position, b.info.Time
}

// restore declares one, which passes over so many positions.
func (b *books) restore(incarnation, ahead int64) {
	after := b.info.Position
	b.info.Incarnation, b.info.Position = incarnation, after+max(ahead, 0)
	b.info.Restores = append(b.info.Restores, mcpreplay.Restore{Incarnation: incarnation, After: after, Until: after + ahead, At: b.info.Time})
}

// forget takes operations out and says so.
func (b *books) forget(ids ...string) {
	f := &b.info.Forgotten
	for _, id := range ids {
		f.Operations++
		f.Events += int64(len(b.events[id]))
		f.Until = max(f.Until, b.record(id).Position)
		b.remove(id)
	}
}

// remove takes an operation out with all that tells of it.
func (b *books) remove(id string) {
	b.recs = slices.DeleteFunc(b.recs, func(r *mcpreplay.Record) bool { return r.ID == id })
	delete(b.events, id)
}

// move makes at the time of an operation with one event.
func (b *books) move(id string, at time.Time) {
	r := b.record(id)
	r.CreatedAt, r.UpdatedAt, b.events[id][0].At = at, at, at
}

func rules(r mcpreplay.Report) (rules []string) {
	for _, f := range r.Findings {
		rules = append(rules, cmp.Or(f.OperationID, "the ledger")+" "+f.Rule)
	}
	return rules
}

func TestVerifyAcceptsAConsistentLedger(t *testing.T) {
	b := newBooks()
	b.restore(2, 1000)
	b.restore(3, 0)
	b.write("op-restored", mcpreplay.Event{Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied})
	b.restore(4, 7)
	report, err := mcpreplay.Verify(t.Context(), b)
	if err != nil || !report.Consistent() {
		t.Fatalf("Verify() = %v, %v; want no findings", report.Findings, err)
	}
	events := 0
	for _, evs := range b.events {
		events += len(evs)
	}
	if report.Operations != len(b.recs) || report.Events != events || report.Unsettled != 1 {
		t.Errorf("Verify() = %+v, want %d operations, %d events, 1 unsettled", report, len(b.recs), events)
	}
}

// Whole records may go if the ledger says how many events they had, also around what
// a restore passed over, and as the proof is made.
func TestVerifyAcceptsWhatWasForgotten(t *testing.T) {
	tests := map[string]func(b *books){
		"the oldest": func(b *books) { b.forget("op-atomic", "op-steps") },
		"in between": func(b *books) { b.forget("op-declined", "op-released", "op-settled") },
		"with restores": func(b *books) {
			b.write("op-last", mcpreplay.Event{Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied})
			b.restore(2, 100)
			b.write("op-first", mcpreplay.Event{Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied})
			b.write("op-next", mcpreplay.Event{Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied})
			b.forget("op-empty", "op-last", "op-first")
		},
		"after the ledger was looked at": func(b *books) {
			b.before = func() { b.before = nil; b.forget("op-asked") }
		},
		"after it was listed": func(b *books) {
			b.during = func(string) { b.during = nil; b.forget("op-atomic") }
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBooks()
			change(b)
			report, err := mcpreplay.Verify(t.Context(), b)
			if err != nil || !report.Consistent() || report.Operations != len(b.recs) {
				t.Errorf("Verify() = %+v, %v; want no findings in %d operations", report, err, len(b.recs))
			}
		})
	}
}

func TestVerifyFindsEachBrokenRule(t *testing.T) {
	tests := []struct {
		name    string
		falsify func(b *books)
		want    []string
	}{
		{"a malformed id", func(b *books) {
			b.events["a b c d"] = b.events["op-atomic"]
			b.record("op-atomic").ID = "a b c d"
		}, []string{"a b c d id"}},
		{"no principal", func(b *books) { b.record("op-atomic").Principal = "" }, []string{"op-atomic id"}},
		{"a sequence twice", func(b *books) { b.record("op-empty").Seq = b.record("op-late").Seq }, []string{"op-late order"}},
		{"created after what is newer", func(b *books) { b.move("op-declined", b.record("op-dead").CreatedAt.Add(time.Microsecond)) },
			[]string{"op-declined time"}},
		{"fenced without a fence", func(b *books) { b.record("op-declined").Fenced = true }, []string{"op-declined state"}},
		{"a fence that is not fenced", func(b *books) { b.record("op-fenced-later").Fenced = false }, []string{"op-fenced-later state"}},
		{"fenced and applied", func(b *books) { b.record("op-atomic").Fenced = true }, []string{"op-atomic state"}},
		{"a live owner after the end", func(b *books) { b.record("op-steps").Live = true }, []string{"op-steps state"}},
		{"another state than its last event", func(b *books) { b.record("op-atomic").State = mcpreplay.StatePartial }, []string{"op-atomic state"}},
		{"no events", func(b *books) { b.events["op-atomic"] = nil }, []string{"op-atomic history", "the ledger position"}},
		{"a missing first event", func(b *books) { b.events["op-asking"] = b.events["op-asking"][1:] },
			[]string{"op-asking history", "op-asking time", "op-asking attempt", "the ledger position"}},
		{"a missing event in between", func(b *books) { b.events["op-asked"] = slices.Delete(b.events["op-asked"], 2, 3) },
			[]string{"op-asked history", "op-asked attempt", "the ledger position"}},
		{"a missing step", func(b *books) { b.events["op-steps"] = slices.Delete(b.events["op-steps"], 1, 2) }, []string{"the ledger position"}},
		{"a missing oldest operation", func(b *books) { b.remove("op-atomic") }, []string{"the ledger position"}},
		{"a missing operation in between", func(b *books) { b.remove("op-steps") }, []string{"the ledger position"}},
		{"a missing newest operation", func(b *books) { b.remove("op-empty") }, []string{"the ledger position"}},
		{"two missing operations", func(b *books) { b.remove("op-steps"); b.remove("op-dropped") }, []string{"the ledger position", "the ledger position"}},
		{"no operations at all", func(b *books) { b.recs = nil }, []string{"the ledger position"}},
		{"a missing operation beside a forgotten one", func(b *books) { b.forget("op-late"); b.remove("op-dead") }, []string{"the ledger position"}},
		{"a missing operation behind a forgotten one", func(b *books) { b.forget("op-atomic"); b.remove("op-dead") }, []string{"the ledger position"}},
		{"forgotten and still there", func(b *books) { b.info.Forgotten.Events, b.info.Forgotten.Until = 1, 9 }, []string{"the ledger position"}},
		{"a ledger ahead of its events", func(b *books) { b.info.Position = math.MaxInt64 }, []string{"the ledger position"}},
		{"an event of no state", func(b *books) { b.events["op-steps"][1].State = "nonsense" }, []string{"op-steps history", "op-steps history"}},
		{"an event of no kind", func(b *books) { b.events["op-atomic"][0].Kind = "nonsense" }, []string{"op-atomic history", "op-atomic attempt"}},
		{"a step after the end", func(b *books) { b.events["op-steps"][4].Kind = mcpreplay.EventStep }, []string{"op-steps history"}},
		{"two outcomes", func(b *books) { b.events["op-steps"][4].Kind = mcpreplay.EventFinish }, []string{"op-steps history", "op-steps once"}},
		{"an outcome of both kinds", func(b *books) { b.events["op-steps"][4].Kind = mcpreplay.EventApply }, []string{"op-steps history", "op-steps once", "op-steps attempt"}},
		{"settled twice", func(b *books) { b.events["op-settled"][6].Kind = mcpreplay.EventSettle }, []string{"op-settled history", "op-settled once"}},
		{"a write that is not counted", func(b *books) { b.record("op-settled").Attempt = 1 }, []string{"op-settled attempt"}},
		{"an incarnation that nobody declared", func(b *books) { b.info.Incarnation = 2 }, []string{"the ledger incarnation"}},
		{"a restore that skips an incarnation", func(b *books) { b.restore(3, 0) }, []string{"the ledger incarnation"}},
		{"a restore that goes back", func(b *books) { b.restore(2, -1) }, []string{"the ledger incarnation"}},
		{"a restore that passes over less than is missing", func(b *books) {
			b.restore(2, 100)
			b.info.Position++
		}, []string{"the ledger position"}},
		{"an event where a restore passed over", func(b *books) {
			b.restore(2, 100)
			b.info.Position -= 50
			b.write("op-passed", mcpreplay.Event{Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied})
			b.info.Position += 49
		}, []string{"the ledger position", "the ledger position"}},
		{"a contradiction", func(b *books) {
			b.events["op-steps"][4].Kind, b.record("op-steps").Contradicted = mcpreplay.EventContradiction, true
		}, []string{"op-steps contradiction"}},
		{"a contradiction that nothing tells of", func(b *books) { b.record("op-steps").Contradicted = true }, []string{"op-steps state"}},
		{"a revision twice", func(b *books) { b.events["op-steps"][1].Revision = 1 }, []string{"op-steps revision"}},
		{"a first revision of nothing", func(b *books) {
			b.events["op-atomic"][0].Revision, b.record("op-atomic").Revision = 0, 0
		}, []string{"op-atomic revision"}},
		{"a final record that was renewed", func(b *books) { b.record("op-atomic").Revision++ }, []string{"op-atomic revision"}},
		{"a record behind its events", func(b *books) { b.record("op-dead").Revision = 0 }, []string{"op-dead revision"}},
		{"positions out of order", func(b *books) {
			e := b.events["op-steps"]
			e[1].Position, e[2].Position = e[2].Position, e[1].Position
		}, []string{"op-steps position"}},
		{"a position of nothing", func(b *books) {
			b.events["op-atomic"][0].Position, b.record("op-atomic").Position = 0, 0
		}, []string{"op-atomic position", "the ledger position"}},
		{"a position below nothing", func(b *books) {
			b.events["op-atomic"][0].Position, b.record("op-atomic").Position = -1, -1
		}, []string{"op-atomic position", "the ledger position"}},
		{"a position used by two", func(b *books) {
			b.events["op-fence"][0].Position = b.record("op-declined").Position
			b.record("op-fence").Position = b.record("op-declined").Position
		}, []string{"op-fence position", "the ledger position"}},
		{"a record at another position", func(b *books) { b.record("op-dead").Position-- }, []string{"op-dead position"}},
		{"an event beyond the ledger", func(b *books) { b.info.Position = b.record("op-empty").Position - 1 }, []string{"op-empty position"}},
		{"created before its first event", func(b *books) {
			b.record("op-fence").CreatedAt = b.record("op-fence").CreatedAt.Add(-1)
		}, []string{"op-fence time"}},
		{"created at no time", func(b *books) { b.move("op-atomic", time.Time{}) }, []string{"op-atomic time"}},
		{"updated before its last event", func(b *books) {
			b.record("op-steps").UpdatedAt = b.record("op-steps").CreatedAt
		}, []string{"op-steps time"}},
		{"updated after its last event", func(b *books) {
			b.record("op-steps").UpdatedAt = b.record("op-steps").UpdatedAt.Add(time.Microsecond)
		}, []string{"op-steps time"}},
		{"updated in the future", func(b *books) { b.move("op-empty", b.info.Time.Add(1)) }, []string{"op-empty time"}},
		{"applied when the authority ended", func(b *books) { b.record("op-bounded").Authority = b.record("op-bounded").CreatedAt },
			[]string{"op-bounded authority"}},
		{"claimed after the authority ended", func(b *books) { b.record("op-asked").Authority = b.record("op-asked").CreatedAt.Add(-time.Second) },
			[]string{"op-asked authority"}},
		{"events back in time", func(b *books) { b.events["op-steps"][2].At = b.events["op-steps"][1].At.Add(-1) }, []string{"op-steps time"}},
		{"final without a result", func(b *books) { b.record("op-declined").Result = nil }, []string{"op-declined result"}},
		{"a result of other bytes", func(b *books) { b.record("op-atomic").Result.Body = []byte("[]") }, []string{"op-atomic result"}},
		{"a result of another size", func(b *books) { b.record("op-atomic").Result.Size = 3 }, []string{"op-atomic result"}},
		{"a result without digest", func(b *books) { b.record("op-atomic").Result.Digest = nil }, []string{"op-atomic result"}},
		{"a dropped result of a short digest", func(b *books) { b.record("op-dropped").Result.Digest = sum("")[:31] }, []string{"op-dropped result"}},
		{"a dropped result of no size", func(b *books) { b.record("op-dropped").Result.Size = -1 }, []string{"op-dropped result"}},
		{"no key id", func(b *books) { b.record("op-dead").Digests.KeyID = "" }, []string{"op-dead digests"}},
		{"no fingerprint", func(b *books) { b.record("op-dead").Digests.Fingerprint = nil }, []string{"op-dead digests"}},
		{"short arguments digest", func(b *books) { b.record("op-dead").Digests.Arguments = sum("")[1:] }, []string{"op-dead digests"}},
		{"no answers digest", func(b *books) { b.record("op-dead").Digests.Answers = []byte{} }, []string{"op-dead digests"}},
		{"no state digest", func(b *books) { b.record("op-dead").Digests.State = nil }, []string{"op-dead digests"}},
		{"a fence of a tool without digests", func(b *books) { b.record("op-fence").Tool = "x" },
			slices.Repeat([]string{"op-fence digests"}, 6)},
		{"no fence and no tool either", func(b *books) {
			b.record("op-declined").Tool, b.record("op-declined").Digests.KeyID = "", ""
		}, []string{"op-declined digests"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBooks()
			tt.falsify(b)
			report, err := mcpreplay.Verify(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			if got := rules(report); !slices.Equal(got, tt.want) {
				t.Errorf("Verify() found %v, want %v", report.Findings, tt.want)
			}
			if report.Consistent() {
				t.Error("Consistent() = true")
			}
		})
	}
}

func TestVerifyReadsAllPages(t *testing.T) {
	b := newBooks()
	n := len(b.recs)
	for i := range 250 {
		b.write(fmt.Sprintf("op-page-%03d", i), mcpreplay.Event{Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied})
	}
	b.record("op-atomic").Result.Size = 99 // on the last page
	report, err := mcpreplay.Verify(t.Context(), b)
	if err != nil || report.Operations != n+250 || !slices.Equal(rules(report), []string{"op-atomic result"}) {
		t.Errorf("Verify() = %+v, %v; want %d operations and one finding", report, err, n+250)
	}
}

// TestVerifyKnowsWhereEachKindLeads has the table of EventKind.Transition once
// more, so that a change of it is a change of two places.
func TestVerifyKnowsWhereEachKindLeads(t *testing.T) {
	const (
		none       = mcpreplay.StateNone
		progress   = mcpreplay.StateInProgress
		applied    = mcpreplay.StateApplied
		partial    = mcpreplay.StatePartial
		notApplied = mcpreplay.StateNotApplied
		awaiting   = mcpreplay.StateAwaitingInput
	)
	type move struct {
		kind     mcpreplay.EventKind
		from, to mcpreplay.State
	}
	legal := []move{
		{mcpreplay.EventClaim, none, progress},
		{mcpreplay.EventClaim, awaiting, progress},
		{mcpreplay.EventApply, none, applied},
		{mcpreplay.EventStep, progress, progress},
		{mcpreplay.EventCompensation, progress, progress},
		{mcpreplay.EventCompensation, applied, applied},
		{mcpreplay.EventCompensation, partial, partial},
		{mcpreplay.EventFinish, progress, applied},
		{mcpreplay.EventFinish, progress, partial},
		{mcpreplay.EventFinish, progress, notApplied},
		{mcpreplay.EventFinish, progress, awaiting},
		{mcpreplay.EventDecline, none, notApplied},
		{mcpreplay.EventDecline, awaiting, notApplied},
		{mcpreplay.EventFence, none, notApplied},
		{mcpreplay.EventFence, awaiting, notApplied},
		{mcpreplay.EventContradiction, applied, applied},
		{mcpreplay.EventContradiction, partial, partial},
		{mcpreplay.EventContradiction, notApplied, notApplied},
	}
	kinds := []mcpreplay.EventKind{
		mcpreplay.EventClaim, mcpreplay.EventApply, mcpreplay.EventStep, mcpreplay.EventCompensation, mcpreplay.EventFinish,
		mcpreplay.EventDecline, mcpreplay.EventFence, mcpreplay.EventContradiction, "", "nonsense",
	}
	claim, outcome := mcpreplay.Event{Kind: mcpreplay.EventClaim, State: progress}, mcpreplay.EventFinish
	reach := map[mcpreplay.State][]mcpreplay.Event{
		none: nil, progress: {claim},
		applied: {claim, {Kind: outcome, State: applied}}, partial: {claim, {Kind: outcome, State: partial}},
		notApplied: {claim, {Kind: outcome, State: notApplied}}, awaiting: {claim, {Kind: outcome, State: awaiting}},
	}
	for _, kind := range kinds {
		for from, history := range reach {
			for to := range reach {
				m := move{kind, from, to}
				err := kind.Transition(from, to)
				var te *mcpreplay.TransitionError
				if slices.Contains(legal, m) != (err == nil) || err != nil && (!errors.As(err, &te) || *te != mcpreplay.TransitionError{From: from, To: to, Kind: kind}) {
					t.Errorf("%q.Transition(%q, %q) = %v", kind, from, to, err)
				}
				b := &books{events: map[string][]mcpreplay.Event{}, info: mcpreplay.Info{Time: time.Unix(1e9, 0)}}
				b.write("op-moved", append(history[:len(history):len(history)], mcpreplay.Event{Kind: cmp.Or(kind, "none"), State: to})...).Fenced = kind == mcpreplay.EventFence
				report, err := mcpreplay.Verify(t.Context(), b)
				if err != nil {
					t.Fatal(err)
				}
				if found := slices.Contains(rules(report), "op-moved history"); found == slices.Contains(legal, m) {
					t.Errorf("Verify() of %s from %q to %q found %v", kind, from, to, report.Findings)
				}
			}
		}
	}
}

// TestVerifyRunsBesideWriters: a record that changes between reading it and its
// events is no fault, and one that changes for ever is not waited for.
func TestVerifyRunsBesideWriters(t *testing.T) {
	b := newBooks()
	changes := 0
	b.during = func(id string) {
		if id == "op-live" && changes < 3 {
			changes++
			b.step(id)
		}
	}
	report, err := mcpreplay.Verify(t.Context(), b)
	if err != nil || !report.Consistent() {
		t.Errorf("Verify() = %v, %v; want no findings", report.Findings, err)
	}
	if changes != 3 {
		t.Fatalf("the record changed %d times, want 3", changes)
	}
	b = newBooks()
	b.during = func(id string) {
		if id == "op-dead" && changes < 4 {
			changes++
			b.step("op-live") // after it was read
			b.step(id)
		}
	}
	if report, err = mcpreplay.Verify(t.Context(), b); err != nil || !report.Consistent() {
		t.Errorf("Verify() without an event it came too early for = %v, %v; want no findings", report.Findings, err)
	}
	b = newBooks()
	b.before = func() {
		b.write("op-newer", mcpreplay.Event{Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied})
	}
	if report, err = mcpreplay.Verify(t.Context(), b); err != nil || !report.Consistent() {
		t.Errorf("Verify() while an operation is added = %v, %v; want no findings", report.Findings, err)
	}
	b = newBooks()
	b.during = func(id string) {
		if id == "op-live" {
			b.record(id).Revision++
			b.events[id] = nil
		}
	}
	if report, err = mcpreplay.Verify(t.Context(), b); err != nil || report.Consistent() || b.read > len(b.recs)+20 {
		t.Errorf("Verify() = %v, %v after %d reads; want a finding, soon", report.Findings, err, b.read)
	}
}

func TestVerifyReportsWhatItCannotRead(t *testing.T) {
	disk := errors.New("disk")
	for _, b := range []*books{{err: disk}, {infoErr: disk}} {
		if _, err := mcpreplay.Verify(t.Context(), b); !errors.Is(err, disk) {
			t.Errorf("Verify() = %v, want %v", err, disk)
		}
	}
}
