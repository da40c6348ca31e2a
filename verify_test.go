package mcpreplay_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
	err             error

	listed, read int
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
	return b.stamp(*b.record(key.ID)), nil
}

func (b *books) Events(_ context.Context, key mcpreplay.Key) ([]mcpreplay.Event, error) {
	b.read++
	if b.during != nil {
		b.during(key.ID)
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
		if e.Kind == "" {
			continue
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
	b.write("op-atomic", event(mcpreplay.EventApply, mcpreplay.StateApplied))
	b.write("op-steps", claim, step, mcpreplay.Event{}, event(mcpreplay.EventCompensation, mcpreplay.StateInProgress),
		event(mcpreplay.EventFinish, mcpreplay.StatePartial), event(mcpreplay.EventCompensation, mcpreplay.StatePartial))
	fence := b.write("op-fence", event(mcpreplay.EventFence, mcpreplay.StateNotApplied))
	fence.Fenced, fence.Tool, fence.Digests, fence.Result = true, "", mcpreplay.Digests{}, nil
	b.write("op-fenced-later", claim, event(mcpreplay.EventFence, mcpreplay.StateNotApplied)).Fenced = true
	b.write("op-declined", event(mcpreplay.EventDecline, mcpreplay.StateNotApplied))
	b.write("op-dead", claim, mcpreplay.Event{})
	b.write("op-live", claim, mcpreplay.Event{}, mcpreplay.Event{}).Live = true
	b.write("op-asked", claim, event(mcpreplay.EventStep, mcpreplay.StateAwaitingInput), claim, event(mcpreplay.EventFinish, mcpreplay.StateApplied))
	b.write("op-asking", claim, event(mcpreplay.EventStep, mcpreplay.StateAwaitingInput))
	b.write("op-dropped", event(mcpreplay.EventApply, mcpreplay.StateApplied)).Result.Body = nil
	b.write("op-empty", event(mcpreplay.EventApply, mcpreplay.StateApplied)).Result = &mcpreplay.Result{Body: []byte{}, Digest: sum(""), Size: 0}
	return b
}

func rules(r mcpreplay.Report) (rules []string) {
	for _, f := range r.Findings {
		rules = append(rules, f.OperationID+" "+f.Rule)
	}
	return rules
}

func TestVerifyAcceptsAConsistentLedger(t *testing.T) {
	b := newBooks()
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
		{"a sequence twice", func(b *books) { b.record("op-empty").Seq = b.record("op-dropped").Seq }, []string{"op-dropped order"}},
		{"created after what is newer", func(b *books) {
			b.record("op-declined").CreatedAt = b.record("op-dead").CreatedAt.Add(-time.Microsecond)
			b.record("op-fenced-later").CreatedAt = b.record("op-dead").CreatedAt
			b.record("op-fenced-later").UpdatedAt = b.record("op-dead").CreatedAt
			for i := range b.events["op-fenced-later"] {
				b.events["op-fenced-later"][i].At = b.record("op-dead").CreatedAt
			}
			b.events["op-declined"][0].At = b.record("op-dead").CreatedAt
			b.record("op-declined").UpdatedAt = b.record("op-dead").CreatedAt
		}, []string{"op-fenced-later time"}},
		{"fenced and applied", func(b *books) { b.record("op-atomic").Fenced = true }, []string{"op-atomic state"}},
		{"another state than its last event", func(b *books) { b.record("op-atomic").State = mcpreplay.StatePartial }, []string{"op-atomic state"}},
		{"no events", func(b *books) { b.events["op-atomic"] = nil }, []string{"op-atomic history"}},
		{"a first event that keeps no state", func(b *books) { b.events["op-asking"] = b.events["op-asking"][1:] }, []string{"op-asking history"}},
		{"a missing event in between", func(b *books) { b.events["op-asked"] = slices.Delete(b.events["op-asked"], 2, 3) }, []string{"op-asked history"}},
		{"an event of no state", func(b *books) { b.events["op-steps"][1].State = "nonsense" }, []string{"op-steps history", "op-steps history"}},
		{"a step after the end", func(b *books) { b.events["op-steps"][4].Kind = mcpreplay.EventStep }, []string{"op-steps history"}},
		{"two outcomes", func(b *books) { b.events["op-asked"][1].Kind = mcpreplay.EventFinish }, []string{"op-asked once"}},
		{"an outcome of both kinds", func(b *books) { b.events["op-steps"][2].Kind = mcpreplay.EventApply }, []string{"op-steps once"}},
		{"a contradiction", func(b *books) { b.events["op-steps"][4].Kind = mcpreplay.EventContradiction }, []string{"op-steps contradiction"}},
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
		}, []string{"op-atomic position"}},
		{"a position used by two", func(b *books) {
			b.events["op-fence"][0].Position = b.record("op-declined").Position
			b.record("op-fence").Position = b.record("op-declined").Position
		}, []string{"op-fence position"}},
		{"a record at another position", func(b *books) { b.record("op-dead").Position-- }, []string{"op-dead position"}},
		{"an event beyond the ledger", func(b *books) { b.info.Position = b.record("op-empty").Position - 1 }, []string{"op-empty position"}},
		{"updated before created", func(b *books) {
			b.record("op-fence").UpdatedAt = b.record("op-fence").CreatedAt.Add(-1)
			b.events["op-fence"][0].At = b.record("op-fence").UpdatedAt
		}, []string{"op-fence time", "op-fence time"}},
		{"updated before its last event", func(b *books) {
			b.record("op-steps").UpdatedAt = b.record("op-steps").CreatedAt
		}, []string{"op-steps time"}},
		{"updated in the future", func(b *books) { b.record("op-empty").UpdatedAt = b.info.Time.Add(1) }, []string{"op-empty time"}},
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

// TestVerifyRunsBesideWriters: a record that changes between reading it and its
// events is no fault, and one that changes for ever is not waited for.
func TestVerifyRunsBesideWriters(t *testing.T) {
	b := newBooks()
	changes := 0
	b.during = func(id string) {
		if r := b.record(id); id == "op-live" && changes < 3 {
			changes++
			r.Revision++
			b.info.Position++
			b.info.Time = b.info.Time.Add(time.Second)
			b.events[id] = append(b.events[id], mcpreplay.Event{
				Kind: mcpreplay.EventStep, State: r.State, Position: b.info.Position, Revision: r.Revision, At: b.info.Time,
			})
			r.Position, r.UpdatedAt = b.info.Position, b.info.Time
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
	b := newBooks()
	b.err = errors.New("disk")
	if _, err := mcpreplay.Verify(t.Context(), b); !errors.Is(err, b.err) {
		t.Errorf("Verify() = %v, want %v", err, b.err)
	}
}
