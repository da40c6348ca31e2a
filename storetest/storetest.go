// Package storetest is the contract of mcpreplay.Store as a test. Every store
// runs it, and so does what wraps one.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mcpreplay"
)

// Run tests a store. open returns one over a ledger of its own that is empty,
// and registers its Close with t.Cleanup. The ledger is verified before that.
func Run(t *testing.T, open func(t *testing.T) mcpreplay.Store) {
	s := suite[mcpreplay.Store]{open: open}
	s.run(t, []test[mcpreplay.Store]{
		{"an empty ledger knows itself", testEmpty},
		{"begin records everything it was given", testBegin},
		{"begin keeps nil, empty and precision apart", testValues},
		{"begin returns a known operation as it is", testBeginKnown},
		{"a foreign principal learns nothing", testForeign},
		{"a fence is final and idempotent", testFence},
		{"expired authority writes nothing but a fence", testExpired},
		{"advance compares the revision", testAdvance},
		{"every first event is taken or refused as the table says", testFirst},
		{"every transition is made or refused as the table says", testTransitions},
		{"a final record takes only what came after", testAfterFinal},
		{"a renewal keeps a claim alive and is no event", testRenew},
		{"a record is taken only from an owner that is gone", testTaking},
		{"a released claim may be claimed again", testRelease},
		{"the right to write is asked for each time", testExpiredAgain},
		{"a claimed effect has a deadline", testDeadline},
		{"an acknowledgement is kept", testAcknowledge},
		{"a sweep drops bytes and nothing else", testSweep},
		{"a sweep forgets only what may be forgotten", testForget},
		{"nobody does again what is being forgotten", testForgetBeside},
		{"steps are events", testSteps},
		{"rounds of questions end in one outcome", testRounds},
		{"a result can be recorded without its bytes", testDropped},
		{"a change that contradicts itself is refused", testMisuse},
		{"list filters", testFilters},
		{"list pages", testPages},
		{"time and positions only grow", testGrows},
		{"one of many racers starts", testRacers},
		{"a cancelled caller writes nothing", testCancelled},
		{"a closed store refuses", testClosed},
		{"histories are linearizable", testHistory},
		{"a ledger is proved while others write", testBeside},
	})
}

type test[S mcpreplay.Store] struct {
	name string
	run  func(t *testing.T, s *suite[S])
}

type suite[S mcpreplay.Store] struct {
	open func(t *testing.T) S
}

func (s *suite[S]) run(t *testing.T, tests []test[S]) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, s)
		})
	}
}

// store opens a store that must be consistent when the test ends.
func (s *suite[S]) store(t *testing.T) S {
	t.Helper()
	store := s.open(t)
	t.Cleanup(func() { verify(t, store, "") })
	return store
}

// verify proves the ledger consistent, but for findings of one rule, of which
// there must be some.
func verify(t *testing.T, store mcpreplay.Store, but string) {
	t.Helper()
	report, err := mcpreplay.Verify(context.Background(), store)
	if err != nil {
		t.Errorf("verify: %v", err)
		return
	}
	expected := 0
	for _, f := range report.Findings {
		if f.Rule == but {
			expected++
			continue
		}
		t.Errorf("verify: %v", f)
	}
	if but != "" && expected == 0 {
		t.Errorf("verify: no finding of rule %s", but)
	}
}

func digest(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

func key(id string) mcpreplay.Key { return mcpreplay.Key{Principal: "alice", ID: id} }

func operation(id string) mcpreplay.Operation {
	return mcpreplay.Operation{
		Key: key(id), Tool: "create_issue", Version: "3",
		Digests: mcpreplay.Digests{
			KeyID: "k1", Fingerprint: digest("fingerprint " + id), Arguments: digest("arguments " + id),
			Answers: digest("answers"), State: digest("state"), Sent: digest("sent " + id),
		},
	}
}

func claim() mcpreplay.Change {
	return mcpreplay.Change{
		To: mcpreplay.StateInProgress, Owner: "owner-1", Lease: time.Hour,
		Event: mcpreplay.Event{Kind: mcpreplay.EventClaim, Actor: "owner-1"},
	}
}

func fence() mcpreplay.Change {
	return mcpreplay.Change{
		To: mcpreplay.StateNotApplied, Fence: true,
		Event: mcpreplay.Event{Kind: mcpreplay.EventFence, Actor: "alice", Evidence: "asked to"},
	}
}

func finish(rec mcpreplay.Record, to mcpreplay.State) mcpreplay.Change {
	return mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision, To: to,
		Result: &mcpreplay.Result{Body: []byte(`{"content":[]}`)},
		Event:  mcpreplay.Event{Kind: mcpreplay.EventFinish, Actor: "owner-1"},
	}
}

func begin(t *testing.T, s mcpreplay.Store, op mcpreplay.Operation, c mcpreplay.Change) mcpreplay.Record {
	t.Helper()
	rec, started, err := s.Begin(t.Context(), op, c)
	if err != nil || !started {
		t.Fatalf("Begin(%s) = started %v, %v; want true, nil", op.ID, started, err)
	}
	return rec
}

func advance(t *testing.T, s mcpreplay.Store, c mcpreplay.Change) mcpreplay.Record {
	t.Helper()
	rec, err := s.Advance(t.Context(), c)
	if err != nil {
		t.Fatalf("Advance(%s to %q): %v", c.Key.ID, c.To, err)
	}
	return rec
}

func get(t *testing.T, s mcpreplay.Store, k mcpreplay.Key) mcpreplay.Record {
	t.Helper()
	rec, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatalf("Get(%s): %v", k.ID, err)
	}
	return rec
}

func events(t *testing.T, s mcpreplay.Store, k mcpreplay.Key) []mcpreplay.Event {
	t.Helper()
	evs, err := s.Events(t.Context(), k)
	if err != nil {
		t.Fatalf("Events(%s): %v", k.ID, err)
	}
	return evs
}

func position(t *testing.T, s mcpreplay.Store) int64 {
	t.Helper()
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatalf("Info(): %v", err)
	}
	return info.Position
}

// columns are digests as they are kept: digests as such are not equal when they
// are not there.
type columns mcpreplay.Digests

var asColumns = cmp.Transformer("columns", func(d mcpreplay.Digests) columns { return columns(d) })

// asWhole compares bytes at once: one by one, a large result takes seconds.
var asWhole = cmp.Comparer(func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) })

// same compares whole values. nil and empty differ.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, asColumns, asWhole); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// sameRecord compares records but for the moment they were read at.
func sameRecord(t *testing.T, what string, got, want mcpreplay.Record) {
	t.Helper()
	got.Ledger, want.Ledger = mcpreplay.Info{}, mcpreplay.Info{}
	same(t, what, got, want)
}

// matches requires an error and a record that says nothing.
func matches(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

// nothing requires that there is no record, and that the ledger has not moved.
func nothing(t *testing.T, s mcpreplay.Store, k mcpreplay.Key, at int64) {
	t.Helper()
	rec, err := s.Get(t.Context(), k)
	matches(t, "Get("+k.ID+")", err, mcpreplay.ErrNotFound)
	sameRecord(t, "Get("+k.ID+")", rec, mcpreplay.Record{Operation: mcpreplay.Operation{Key: k}})
	if got := position(t, s); got != at {
		t.Errorf("the ledger is at %d, want %d: something was written", got, at)
	}
}

// unchanged returns a check that the record and its events are what they are now.
func unchanged(t *testing.T, s mcpreplay.Store, k mcpreplay.Key) func() {
	t.Helper()
	rec, evs := get(t, s, k), events(t, s, k)
	return func() {
		t.Helper()
		sameRecord(t, "the record after an error", get(t, s, k), rec)
		same(t, "the events after an error", events(t, s, k), evs)
	}
}

func testEmpty(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	info, err := store.Info(t.Context())
	if err != nil {
		t.Fatalf("Info(): %v", err)
	}
	if info.Backend == "" || info.Instance == "" || info.Incarnation != 1 || info.Position != 0 || info.Time.IsZero() {
		t.Errorf("Info() = %+v, want an identity, incarnation 1, position 0 and a time", info)
	}
	rec, err := store.Get(t.Context(), key("op-absent"))
	matches(t, "Get()", err, mcpreplay.ErrNotFound)
	if rec.Ledger.Time.Before(info.Time) {
		t.Errorf("Get() reads the ledger at %v, before %v", rec.Ledger.Time, info.Time)
	}
	rec.Ledger.Time = info.Time
	same(t, "Get()", rec, mcpreplay.Record{Operation: mcpreplay.Operation{Key: key("op-absent")}, Ledger: info})
	_, err = store.Events(t.Context(), key("op-absent"))
	matches(t, "Events()", err, mcpreplay.ErrNotFound)
	if recs, err := store.List(t.Context(), mcpreplay.Filter{}); err != nil || len(recs) != 0 {
		t.Errorf("List() = %v, %v; want none", recs, err)
	}
}

func testBegin(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	op := operation("op-begin")
	op.Authority = time.Date(2999, 1, 2, 3, 4, 5, 678901000, time.UTC)
	op.Retention = time.Date(2999, 2, 2, 3, 4, 5, 1000, time.UTC)
	c := claim()
	c.Effect = "issue/7"
	c.Event.Evidence = "first"
	rec := begin(t, store, op, c)

	want := mcpreplay.Record{
		Operation: op, State: mcpreplay.StateInProgress, Owner: "owner-1", Live: true, Attempt: 1, Effect: "issue/7",
		// What the store decides:
		Revision: rec.Revision, Seq: rec.Seq, Position: rec.Position,
		CreatedAt: rec.CreatedAt, UpdatedAt: rec.CreatedAt, Ledger: rec.Ledger,
	}
	same(t, "Begin()", rec, want)
	if rec.Revision < 1 || rec.Seq < 1 || rec.Position < 1 || rec.Ledger.Position != rec.Position || rec.CreatedAt.IsZero() {
		t.Errorf("Begin() = %+v, want revision, sequence, position and time", rec)
	}
	if at := rec.CreatedAt; at.Location() != time.UTC || at != at.Truncate(time.Microsecond) {
		t.Errorf("created at %v, want UTC in microseconds", at)
	}
	sameRecord(t, "Get()", get(t, store, op.Key), rec)
	recs, err := store.List(t.Context(), mcpreplay.Filter{})
	if err != nil || len(recs) != 1 {
		t.Fatalf("List() = %d records, %v; want 1", len(recs), err)
	}
	sameRecord(t, "List()", recs[0], rec)
	same(t, "Events()", events(t, store, op.Key), []mcpreplay.Event{{
		Position: rec.Position, Kind: mcpreplay.EventClaim, State: mcpreplay.StateInProgress, Revision: rec.Revision,
		Actor: "owner-1", Evidence: "first", At: rec.CreatedAt,
	}})
}

func testValues(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.open(t) // not verified: the digests here are no digests
	zone := time.FixedZone("east", 5*3600)
	tests := []struct {
		name          string
		digests       mcpreplay.Digests
		authority     time.Time
		wantAuthority time.Time
		result, want  *mcpreplay.Result
	}{
		{name: "nil"},
		{
			name:    "empty",
			digests: mcpreplay.Digests{Fingerprint: []byte{}, Arguments: []byte{}, Answers: []byte{}, State: []byte{}, Sent: []byte{}},
			result:  &mcpreplay.Result{Body: []byte{}},
			want:    &mcpreplay.Result{Body: []byte{}, Digest: digest(""), Size: 0},
		},
		{
			name:    "nil body",
			digests: mcpreplay.Digests{Fingerprint: []byte{0}, Arguments: nil, Answers: []byte{}, State: []byte{0, 255}, Sent: []byte{1}},
			result:  &mcpreplay.Result{IsError: true},
			want:    &mcpreplay.Result{Body: []byte{}, IsError: true, Digest: digest(""), Size: 0},
		},
		{
			name:          "precision and zone",
			authority:     time.Date(2999, 1, 1, 5, 0, 0, 1999, zone),
			wantAuthority: time.Date(2999, 1, 1, 0, 0, 0, 1000, time.UTC),
			result:        &mcpreplay.Result{Body: []byte("x"), Digest: []byte("wrong"), Size: 99},
			want:          &mcpreplay.Result{Body: []byte("x"), Digest: digest("x"), Size: 1},
		},
		{
			name:   "large",
			result: &mcpreplay.Result{Body: bytes.Repeat([]byte("0123456789abcdef"), 1<<16)},
			want: &mcpreplay.Result{
				Body:   bytes.Repeat([]byte("0123456789abcdef"), 1<<16),
				Digest: digest(strings.Repeat("0123456789abcdef", 1<<16)), Size: 1 << 20,
			},
		},
	}
	for i, tt := range tests {
		op := operation(fmt.Sprintf("op-value-%d", i))
		op.Digests, op.Authority = tt.digests, tt.authority
		c := claim()
		c.Result = tt.result
		rec := begin(t, store, op, c)
		op.Authority = tt.wantAuthority
		for _, r := range []mcpreplay.Record{rec, get(t, store, op.Key)} {
			same(t, tt.name+": operation", r.Operation, op)
			same(t, tt.name+": result", r.Result, tt.want)
		}
	}
}

func testBeginKnown(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	rec := begin(t, store, operation("op-known"), claim())
	check := unchanged(t, store, rec.Key)
	other := operation("op-known")
	other.Tool, other.Version, other.Digests = "another", "9", mcpreplay.Digests{}
	other.Authority = time.Unix(1, 0) // a known operation is no write
	for _, c := range []mcpreplay.Change{claim(), fence(), {To: mcpreplay.StateNotApplied, Event: mcpreplay.Event{Kind: mcpreplay.EventDecline}}} {
		got, started, err := store.Begin(t.Context(), other, c)
		if started || err != nil {
			t.Fatalf("Begin() = started %v, %v; want false, nil", started, err)
		}
		sameRecord(t, "Begin()", got, rec)
	}
	check()
}
