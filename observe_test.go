package mcpreplay_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mcpreplay"
)

func newRecord(state mcpreplay.State, change func(*mcpreplay.Record)) mcpreplay.Record {
	rec := mcpreplay.Record{
		State: state,
		Ledger: mcpreplay.Info{
			Backend: "issues", Instance: "i", Incarnation: 2, Position: 9,
			Time: time.Date(2026, 8, 1, 14, 0, 0, 0, time.FixedZone("", 7200)),
		},
	}
	rec.Key = mcpreplay.Key{Principal: "alice", ID: "op-1"}
	if state == mcpreplay.StateApplied || state == mcpreplay.StatePartial {
		rec.Effect = "issue-1"
		rec.Result = &mcpreplay.Result{Body: []byte(storedJSON), Digest: make([]byte, 32), Size: int64(len(storedJSON))}
	}
	if change != nil {
		change(&rec)
	}
	return rec
}

func TestObserve(t *testing.T) {
	no, yes := false, true
	tests := []struct {
		name     string
		rec      mcpreplay.Record
		absent   bool
		physical *bool
		state    mcpreplay.State
		action   mcpreplay.Action
		ids      string
		result   string // "", "stored" or "dropped"
		newSafe  bool
		detail   string
	}{
		{name: "absent", rec: newRecord("", nil), absent: true, state: "unknown", action: "reconcile", detail: "no proof"},
		{name: "foreign", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Principal = "bob" }), state: "unknown", action: "reconcile", detail: "no proof"},
		{name: "another backend", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Ledger.Backend = "b" }), state: "unknown", action: "reconcile", detail: "no proof"},
		{name: "in progress, live", rec: newRecord("in_progress", func(r *mcpreplay.Record) { r.Live = true }), state: "unknown", action: "reconcile", detail: "A live owner"},
		{name: "in progress, orphaned", rec: newRecord("in_progress", nil), state: "unknown", action: "reconcile", detail: "no live owner"},
		{name: "in progress with a known effect", rec: newRecord("in_progress", func(r *mcpreplay.Record) { r.Effect = "issue-1" }), state: "unknown", action: "reconcile", detail: `"issue-1"`},
		{name: "in progress with a result", rec: newRecord("in_progress", func(r *mcpreplay.Record) { r.Result = &mcpreplay.Result{Body: []byte(storedJSON)} }), state: "unknown", action: "reconcile"},
		{name: "awaiting input, live", rec: newRecord("awaiting_input", func(r *mcpreplay.Record) { r.Live = true }), state: "unknown", action: "reconcile", detail: "a live owner"},
		{name: "awaiting input, orphaned", rec: newRecord("awaiting_input", nil), state: "unknown", action: "reconcile", detail: "no live owner"},
		{name: "applied", rec: newRecord("applied", nil), state: "applied", action: "return_stored_result", ids: "issue-1", result: "stored"},
		{name: "applied and looked for", rec: newRecord("applied", nil), physical: &yes, state: "applied", action: "return_stored_result", ids: "issue-1", result: "stored"},
		{name: "applied without a reference", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Effect = "" }), state: "applied", action: "return_stored_result", result: "stored"},
		{name: "applied but not found", rec: newRecord("applied", nil), physical: &no, state: "unknown", action: "reconcile", detail: `not found. An effect is known already: "issue-1"`},
		{name: "applied with a dropped result", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Result.Body = nil }), state: "applied", action: "stop", ids: "issue-1", result: "dropped"},
		{name: "applied without a result", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Result = nil }), state: "unknown", action: "reconcile", detail: "cannot be used"},
		{name: "applied with a damaged result", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Result.Body = []byte(`{"content":[`) }), state: "unknown", action: "reconcile", detail: "cannot be used"},
		{name: "applied with a result that says error where the record does not", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Result.IsError = true }), state: "unknown", action: "reconcile", detail: "isError"},
		{name: "partial", rec: newRecord("partial", nil), state: "partial", action: "stop", ids: "issue-1", result: "stored"},
		{name: "partial without a result", rec: newRecord("partial", func(r *mcpreplay.Record) { r.Result = nil }), state: "partial", action: "stop", ids: "issue-1"},
		{name: "partial but not found", rec: newRecord("partial", nil), physical: &no, state: "unknown", action: "reconcile", detail: "not found"},
		{name: "fenced", rec: newRecord("not_applied", func(r *mcpreplay.Record) { r.Fenced = true }), state: "not_applied", action: "start_new_operation", newSafe: true, detail: "new operation id"},
		{name: "declined", rec: newRecord("not_applied", func(r *mcpreplay.Record) { r.Result = &mcpreplay.Result{Body: []byte(storedJSON)} }), state: "not_applied", action: "stop", newSafe: true},
		{name: "declined and looked for", rec: newRecord("not_applied", nil), physical: &no, state: "not_applied", action: "stop", newSafe: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obs := mcpreplay.Observe(aliceScope, tt.rec, !tt.absent, tt.physical)
			if obs.State != tt.state || obs.NextAction != tt.action || strings.Join(obs.MatchingIDs, ",") != tt.ids || obs.NewOperationSafe != tt.newSafe {
				t.Errorf("Observe() = %+v", obs)
			}
			if got := obs.StoredResult != nil; got != (tt.result == "stored") {
				t.Errorf("stored result = %s, want %q", obs.StoredResult, tt.result)
			}
			if got := obs.ResultDropped != nil; got != (tt.result == "dropped") {
				t.Errorf("dropped result = %v, want %q", obs.ResultDropped, tt.result)
			}
			if !strings.Contains(obs.Detail, tt.detail) || obs.Detail == "" {
				t.Errorf("detail = %q, want %q in it", obs.Detail, tt.detail)
			}
			if obs.ObservedAt != "2026-08-01T12:00:00Z" || !obs.Authoritative || obs.FreshWriteAuthorized {
				t.Errorf("Observe() = %+v", obs)
			}
			// A client believes every observation, and derives the same action.
			text, err := json.Marshal(obs)
			if err != nil {
				t.Fatal(err)
			}
			read, err := mcpreplay.ParseObservation(text, aliceScope)
			if err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			if read.State != obs.State || read.NextAction != obs.NextAction {
				t.Errorf("read back as %q, %q, want %q, %q", read.State, read.NextAction, obs.State, obs.NextAction)
			}
		})
	}
}

func TestObserveHasTheMembersOfTheContract(t *testing.T) {
	for name, rec := range map[string]mcpreplay.Record{
		"applied": newRecord("applied", nil),
		"dropped": newRecord("applied", func(r *mcpreplay.Record) { r.Result.Body = nil }),
		"unknown": newRecord("in_progress", nil),
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(mcpreplay.Observe(aliceScope, rec, true, nil))
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]json.RawMessage
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			members := []string{
				"operationId", "principal", "backend", "scopeBinding", "scope", "state", "authoritative", "freshWriteAuthorized",
				"matchingIds", "storedResult", "detail", "observedAt", "nextAction", "ledger", "resultIsError", "newOperationSafe",
			}
			if name == "dropped" {
				members = append(members, "resultDropped")
			}
			for _, m := range members {
				if _, ok := got[m]; !ok {
					t.Errorf("no member %q in %s", m, text)
				}
			}
			if len(got) != len(members) {
				t.Errorf("%d members, want %d: %s", len(got), len(members), text)
			}
			if name == "unknown" && (string(got["matchingIds"]) != "[]" || string(got["storedResult"]) != "null") {
				t.Errorf("matchingIds = %s, storedResult = %s, want [] and null", got["matchingIds"], got["storedResult"])
			}
		})
	}
}

// Nothing about an operation of somebody else may show: not that it exists, not
// how far it is, not what it did.
func TestObserveTellsForeignAndAbsentAlike(t *testing.T) {
	bob := mcpreplay.Scope{OperationID: "op-1", Principal: "bob", Backend: "issues"}
	carol := mcpreplay.Scope{OperationID: "op-1", Principal: "carol", Backend: "issues"}
	absent := mcpreplay.Observe(bob, newRecord("", nil), false, nil)
	wantText, err := json.Marshal(absent)
	if err != nil {
		t.Fatal(err)
	}
	yes, no := true, false
	for _, state := range mcpreplay.States {
		for _, physical := range []*bool{nil, &yes, &no} {
			foreign := mcpreplay.Observe(carol, newRecord(state, func(r *mcpreplay.Record) { r.Effect, r.Live, r.Fenced = "issue-1", true, true }), true, physical)
			text, err := json.Marshal(foreign)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.ReplaceAll(string(text), "carol", "bob"); got != string(wantText) {
				t.Errorf("%s: a foreign operation is told as\n%s\nwant\n%s", state, got, wantText)
			}
		}
	}
}
