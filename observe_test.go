package mcpreplay_test

import (
	"encoding/json"
	"errors"
	"slices"
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
		{name: "released", rec: newRecord("released", nil), state: "unknown", action: "reconcile", detail: "may be sent again"},
		{name: "contradicted", rec: newRecord("not_applied", func(r *mcpreplay.Record) { r.Contradicted = true }), state: "unknown", action: "reconcile", detail: "says otherwise"},
		{name: "applied and contradicted", rec: newRecord("applied", func(r *mcpreplay.Record) { r.Contradicted = true }), state: "unknown", action: "reconcile", detail: `"issue-1"`},
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

var aliceScope = mcpreplay.Scope{OperationID: "op-1", Principal: "alice", Backend: "issues"}

const storedJSON = `{"content":[{"type":"text","text":"created 1"}],"structuredContent":{"id":9007199254740993}}`

// hexDigest is the digest of nothing in particular, in the right form.
const hexDigest = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// members are the members of an observation as raw JSON, in the order written.
type members [][2]string

func (m members) with(name, value string) members {
	out := slices.Clone(m)
	for i := range out {
		if out[i][0] == name {
			out[i][1] = value
			return out
		}
	}
	return append(out, [2]string{name, value})
}

func (m members) without(name string) members {
	return slices.DeleteFunc(slices.Clone(m), func(p [2]string) bool { return p[0] == name })
}

// renamed keeps the value under another name.
func (m members) renamed(from, to string) members {
	out := slices.Clone(m)
	for i := range out {
		if out[i][0] == from {
			out[i][0] = to
		}
	}
	return out
}

func (m members) json() string {
	var parts []string
	for _, p := range m {
		parts = append(parts, `"`+p[0]+`":`+p[1])
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// applied is an observation that is believed, and the rest are derived from it.
var applied = members{
	{"operationId", `"op-1"`}, {"principal", `"alice"`}, {"backend", `"issues"`},
	{"scopeBinding", `{"operationId":"op-1","principal":"alice","backend":"issues"}`},
	{"scope", `"op-1 of alice in issues"`},
	{"state", `"applied"`}, {"authoritative", `true`}, {"freshWriteAuthorized", `false`},
	{"matchingIds", `["issue-1"]`}, {"storedResult", storedJSON}, {"detail", `"done"`},
	{"observedAt", `"2026-08-01T12:00:00.25+02:00"`}, {"nextAction", `"return_stored_result"`},
	{"ledger", `{"instance":"i","incarnation":0,"position":7}`},
	{"resultIsError", `false`}, {"newOperationSafe", `false`},
}

var (
	unsettled  = applied.with("state", `"unknown"`).with("matchingIds", `[]`).with("storedResult", `null`)
	partial    = applied.with("state", `"partial"`)
	notApplied = unsettled.with("state", `"not_applied"`).with("newOperationSafe", `true`)
	dropped    = applied.with("storedResult", `null`).with("resultDropped", `{"digest":"`+hexDigest+`","size":12}`)
)

func TestParseObservationRejects(t *testing.T) {
	ledger := func(s string) members { return applied.with("ledger", s) }
	tests := []struct {
		rule, name string
		text       string
	}{
		{"json", "no object", `[]`},
		{"json", "null", `null`},
		{"json", "nothing", ``},
		{"json", "truncated", `{"operationId":"op-1"`},
		{"json", "bytes after it", applied.json() + `{}`},
		{"json", "invalid UTF-8", applied.with("detail", "\"\xff\"").json()},
		{"json", "duplicate member", applied.with("detail", `"a"`).json()[:len(applied.with("detail", `"a"`).json())-1] + `,"state":"unknown"}`},
		{"json", "duplicate member written with an escape", strings.TrimSuffix(applied.json(), "}") + `,"st\u0061te":"unknown"}`},

		{"identity", "no operation id", applied.without("operationId").json()},
		{"identity", "empty principal", applied.with("principal", `""`).json()},
		{"identity", "backend of another type", applied.with("backend", `7`).json()},
		{"identity", "wrong case", applied.renamed("operationId", "operationID").json()},
		{"identity_mismatch", "another operation", applied.with("operationId", `"op-2"`).json()},
		{"identity_mismatch", "another principal", applied.with("principal", `"bob"`).json()},
		{"identity_mismatch", "another backend", applied.with("backend", `"other"`).json()},

		{"scope_binding", "none", applied.without("scopeBinding").json()},
		{"scope_binding", "null", applied.with("scopeBinding", `null`).json()},
		{"scope_binding", "a fourth member", applied.with("scopeBinding", `{"operationId":"op-1","principal":"alice","backend":"issues","tool":"x"}`).json()},
		{"scope_binding", "two members", applied.with("scopeBinding", `{"operationId":"op-1","principal":"alice"}`).json()},
		{"scope_binding", "a duplicate member", applied.with("scopeBinding", `{"operationId":"op-1","principal":"bob","principal":"alice","backend":"issues"}`).json()},
		{"scope_binding", "another principal", applied.with("scopeBinding", `{"operationId":"op-1","principal":"bob","backend":"issues"}`).json()},

		{"authoritative", "false", applied.with("authoritative", `false`).json()},
		{"authoritative", "absent", applied.without("authoritative").json()},
		{"authoritative", "truthy", applied.with("authoritative", `1`).json()},
		{"authoritative", "a string", applied.with("authoritative", `"true"`).json()},
		{"authoritative", "wrong case", applied.renamed("authoritative", "Authoritative").json()},
		{"fresh_write", "true", applied.with("freshWriteAuthorized", `true`).json()},
		{"fresh_write", "absent", applied.without("freshWriteAuthorized").json()},
		{"fresh_write", "null", applied.with("freshWriteAuthorized", `null`).json()},
		{"fresh_write", "falsy", applied.with("freshWriteAuthorized", `0`).json()},

		{"state", "absent", applied.without("state").json()},
		{"state", "a ledger state", applied.with("state", `"in_progress"`).json()},
		{"state", "empty", applied.with("state", `""`).json()},
		{"state", "an array", applied.with("state", `["applied"]`).json()},
		{"state", "an object", applied.with("state", `{"applied":true}`).json()},

		{"effect_ids", "absent", applied.without("matchingIds").json()},
		{"effect_ids", "null", applied.with("matchingIds", `null`).json()},
		{"effect_ids", "a string", applied.with("matchingIds", `"issue-1"`).json()},
		{"effect_ids", "a number in it", applied.with("matchingIds", `[1]`).json()},
		{"effect_ids", "an empty one", applied.with("matchingIds", `[""]`).json()},
		{"effect_ids_unique", "twice the same", applied.with("matchingIds", `["a","b","\u0061"]`).json()},
		{"effect_ids_state", "unknown with effects", unsettled.with("matchingIds", `["a"]`).json()},
		{"effect_ids_state", "not applied with effects", notApplied.with("matchingIds", `["a"]`).json()},

		{"stored_result_missing", "applied, null", applied.with("storedResult", `null`).json()},
		{"stored_result_missing", "applied, absent", applied.without("storedResult").json()},
		{"stored_result_unsettled", "unknown", unsettled.with("storedResult", storedJSON).json()},
		{"stored_result_unsettled", "not applied", notApplied.with("storedResult", storedJSON).json()},
		{"stored_result_unsettled", "unknown with a string", unsettled.with("storedResult", `""`).json()},
		{"stored_result", "a string", applied.with("storedResult", `"created 1"`).json()},
		{"stored_result", "partial with a string", partial.with("storedResult", `"partial 1"`).json()},
		{"stored_result", "a list", applied.with("storedResult", `[]`).json()},
		{"stored_result", "without content", applied.with("storedResult", `{"structuredContent":{}}`).json()},
		{"stored_result", "null content", applied.with("storedResult", `{"content":null}`).json()},
		{"stored_result", "partial without content", partial.with("storedResult", `{}`).json()},
		{"stored_result", "a question", applied.with("storedResult", `{"resultType":"input_required","content":[],"inputRequests":{}}`).json()},
		{"stored_result", "isError of another type", applied.with("storedResult", `{"content":[],"isError":"no"}`).json()},
		{"stored_result", "an error it does not tell of", applied.with("storedResult", `{"content":[],"isError":true}`).json()},
		{"stored_result", "no error although it tells of one", applied.with("resultIsError", `true`).json()},
		{"stored_result", "an outcome that is not known", applied.with("resultIsError", `true`).
			with("storedResult", `{"content":[],"isError":true,"structuredContent":{"code":"operation_unknown"}}`).json()},
		{"result_is_error", "of another type", applied.with("resultIsError", `0`).json()},
		{"result_is_error", "null", applied.with("resultIsError", `null`).json()},
		{"result_is_error", "without a result", unsettled.with("resultIsError", `true`).json()},

		{"result_dropped", "beside a stored result", dropped.with("storedResult", storedJSON).json()},
		{"result_dropped", "unknown", unsettled.with("resultDropped", `{"digest":"`+hexDigest+`","size":12}`).json()},
		{"result_dropped", "not applied", notApplied.with("resultDropped", `{"digest":"`+hexDigest+`","size":12}`).json()},
		{"result_dropped", "of another type", dropped.with("resultDropped", `true`).json()},
		{"result_dropped", "no digest", dropped.with("resultDropped", `{"size":12}`).json()},
		{"result_dropped", "a short digest", dropped.with("resultDropped", `{"digest":"0011","size":12}`).json()},
		{"result_dropped", "an upper-case digest", dropped.with("resultDropped", `{"digest":"`+strings.ToUpper(hexDigest)+`","size":12}`).json()},
		{"result_dropped", "a negative size", dropped.with("resultDropped", `{"digest":"`+hexDigest+`","size":-1}`).json()},

		{"new_operation", "applied", applied.with("newOperationSafe", `true`).json()},
		{"new_operation", "partial", partial.with("newOperationSafe", `true`).json()},
		{"new_operation", "unknown", unsettled.with("newOperationSafe", `true`).json()},
		{"new_operation", "of another type", notApplied.with("newOperationSafe", `"true"`).json()},

		{"metadata", "no scope", applied.without("scope").json()},
		{"metadata", "an empty scope", applied.with("scope", `""`).json()},
		{"metadata", "detail of another type", applied.with("detail", `{}`).json()},
		{"observed_at", "absent", applied.without("observedAt").json()},
		{"observed_at", "a number", applied.with("observedAt", `1754000000`).json()},
		{"observed_at", "no time", applied.with("observedAt", `"yesterday"`).json()},
		{"observed_at", "no offset", applied.with("observedAt", `"2026-08-01T12:00:00"`).json()},
		{"observed_at", "another separator", applied.with("observedAt", `"2026-08-01 12:00:00Z"`).json()},
		{"observed_at", "an hour of one digit", applied.with("observedAt", `"2026-08-01T2:00:00Z"`).json()},
		{"observed_at", "a day that does not exist", applied.with("observedAt", `"2026-02-30T12:00:00Z"`).json()},
		{"observed_at", "a comma fraction", applied.with("observedAt", `"2026-08-01T12:00:00,5Z"`).json()},

		{"ledger", "absent", applied.without("ledger").json()},
		{"ledger", "null", ledger(`null`).json()},
		{"ledger", "no instance", ledger(`{"incarnation":0,"position":7}`).json()},
		{"ledger", "an empty instance", ledger(`{"instance":"","incarnation":0,"position":7}`).json()},
		{"ledger", "a negative incarnation", ledger(`{"instance":"i","incarnation":-1,"position":7}`).json()},
		{"ledger", "a negative position", ledger(`{"instance":"i","incarnation":0,"position":-7}`).json()},
		{"ledger", "a fraction", ledger(`{"instance":"i","incarnation":0,"position":7.5}`).json()},
		{"ledger", "no position", ledger(`{"instance":"i","incarnation":0}`).json()},
		{"ledger", "wrong case", ledger(`{"instance":"i","incarnation":0,"Position":7}`).json()},
	}
	for _, tt := range tests {
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			obs, err := mcpreplay.ParseObservation([]byte(tt.text), aliceScope)
			var oe *mcpreplay.ObservationError
			if !errors.As(err, &oe) {
				t.Fatalf("ParseObservation() = %+v, %v, want an *ObservationError", obs, err)
			}
			if oe.Rule != tt.rule {
				t.Errorf("rule = %q (%v), want %q", oe.Rule, err, tt.rule)
			}
			if obs.State != "" {
				t.Errorf("a rejected observation says %q", obs.State)
			}
		})
	}
}

func TestParseObservationAccepts(t *testing.T) {
	tests := []struct {
		name   string
		m      members
		state  mcpreplay.State
		action mcpreplay.Action
		ids    int
	}{
		{"applied", applied, "applied", "return_stored_result", 1},
		{"applied with no reference to the effect", applied.with("matchingIds", `[]`), "applied", "return_stored_result", 0},
		{"applied with several effects", applied.with("matchingIds", `["a","b"]`), "applied", "return_stored_result", 2},
		{"applied with an error as its result", applied.with("storedResult", `{"content":[],"isError":true}`).with("resultIsError", `true`), "applied", "return_stored_result", 1},
		{"a dropped result", dropped, "applied", "stop", 1},
		{"partial", partial, "partial", "stop", 1},
		{"partial without a result", partial.with("storedResult", `null`), "partial", "stop", 1},
		{"partial with a dropped result", dropped.with("state", `"partial"`), "partial", "stop", 1},
		{"unknown", unsettled, "unknown", "reconcile", 0},
		{"unknown with absent optional members", unsettled.without("storedResult").without("detail").without("resultIsError").without("newOperationSafe").without("nextAction"), "unknown", "reconcile", 0},
		{"declined", notApplied.with("nextAction", `"stop"`), "not_applied", "stop", 0},
		{"fenced", notApplied.with("nextAction", `"start_new_operation"`), "not_applied", "start_new_operation", 0},
		{"fenced, and the action of another type", notApplied.with("nextAction", `["start_new_operation"]`), "not_applied", "stop", 0},
		{"not applied, and not said to be safe", notApplied.without("newOperationSafe").with("nextAction", `"start_new_operation"`), "not_applied", "stop", 0},
		{"unknown with an action that it does not allow", unsettled.with("nextAction", `"start_new_operation"`), "unknown", "reconcile", 0},
		{"partial with an action that it does not allow", partial.with("nextAction", `"return_stored_result"`), "partial", "stop", 1},
		{"members that are not known", applied.with("colour", `{"a":1,"a":2}`), "applied", "return_stored_result", 1},
		{"a lone surrogate in the text of the tool", applied.with("storedResult", `{"content":[{"type":"text","text":"\ud83d"}]}`), "applied", "return_stored_result", 1},
		{"an old observation", applied.with("observedAt", `"2000-01-01T00:00:00Z"`), "applied", "return_stored_result", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obs, err := mcpreplay.ParseObservation([]byte(tt.m.json()), aliceScope)
			if err != nil {
				t.Fatal(err)
			}
			if obs.State != tt.state || obs.NextAction != tt.action || len(obs.MatchingIDs) != tt.ids {
				t.Errorf("ParseObservation() = %q, %q, %q, want %q, %q and %d references",
					obs.State, obs.NextAction, obs.MatchingIDs, tt.state, tt.action, tt.ids)
			}
			if obs.FreshWriteAuthorized {
				t.Error("an observation authorises a write")
			}
			if obs.Scope != aliceScope || obs.Binding != aliceScope {
				t.Errorf("scope = %+v, binding %+v, want %+v", obs.Scope, obs.Binding, aliceScope)
			}
		})
	}
}

func TestParseObservationKeepsTheStoredResultByteForByte(t *testing.T) {
	text := `{ "content" : [ {"type":"text","text":"a<b&\u00e9"} ],"x":1.10 }`
	obs, err := mcpreplay.ParseObservation([]byte(applied.with("storedResult", text).json()), aliceScope)
	if err != nil {
		t.Fatal(err)
	}
	if string(obs.StoredResult) != text {
		t.Errorf("stored result = %s, want %s", obs.StoredResult, text)
	}
}

func FuzzParseObservation(f *testing.F) {
	for _, m := range []members{applied, unsettled, partial, notApplied, dropped} {
		f.Add([]byte(m.json()))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		obs, err := mcpreplay.ParseObservation(text, aliceScope)
		if err != nil {
			var oe *mcpreplay.ObservationError
			if !errors.As(err, &oe) {
				t.Fatalf("%v is not an *ObservationError", err)
			}
			return
		}
		if obs.FreshWriteAuthorized || obs.Scope != aliceScope || obs.NextAction == "" {
			t.Fatalf("believed: %+v", obs)
		}
		// What is believed is believed again after a round through JSON.
		again, err := json.Marshal(obs)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := mcpreplay.ParseObservation(again, aliceScope); err != nil || second.State != obs.State || second.NextAction != obs.NextAction {
			t.Fatalf("second reading = %+v, %v, want %+v", second, err, obs)
		}
	})
}

func TestParseStatus(t *testing.T) {
	tests := []struct{ name, result, rule string }{
		{"complete", `{"resultType":"complete","content":[],"structuredContent":` + applied.json() + `}`, ""},
		{"an error", `{"content":[],"isError":true,"structuredContent":` + applied.json() + `}`, "status"},
		{"a question", `{"resultType":"input_required","inputRequests":{},"structuredContent":` + applied.json() + `}`, "status"},
		{"an unknown type", `{"resultType":"task","content":[],"structuredContent":` + applied.json() + `}`, "status"},
		{"not JSON", `<html>`, "status"},
		{"text alone", `{"content":[{"type":"text","text":"applied"}]}`, "json"},
		{"wrong case", `{"content":[],"StructuredContent":` + applied.json() + `}`, "json"},
		{"two of them", `{"content":[],"structuredContent":{},"structuredContent":` + applied.json() + `}`, "status"},
		{"of another principal", `{"content":[],"structuredContent":` + applied.with("principal", `"bob"`).json() + `}`, "identity_mismatch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obs, err := mcpreplay.ParseStatus([]byte(tt.result), aliceScope)
			var oe *mcpreplay.ObservationError
			switch {
			case tt.rule == "" && (err != nil || obs.State != mcpreplay.StateApplied):
				t.Errorf("ParseStatus() = %+v, %v", obs, err)
			case tt.rule != "" && (!errors.As(err, &oe) || oe.Rule != tt.rule):
				t.Errorf("ParseStatus() = %v, want the rule %q", err, tt.rule)
			}
		})
	}
}

func TestLedgerFollows(t *testing.T) {
	seen := mcpreplay.LedgerRef{Instance: "i", Incarnation: 1, Position: 7}
	tests := []struct {
		name  string
		later mcpreplay.LedgerRef
		want  bool
	}{
		{"the same", seen, true},
		{"a later position", mcpreplay.LedgerRef{Instance: "i", Incarnation: 1, Position: 8}, true},
		{"an earlier position", mcpreplay.LedgerRef{Instance: "i", Incarnation: 1, Position: 6}, false},
		{"another instance", mcpreplay.LedgerRef{Instance: "j", Incarnation: 1, Position: 8}, false},
		{"a declared restore", mcpreplay.LedgerRef{Instance: "i", Incarnation: 2, Position: 8}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.later.Follows(seen); got != tt.want {
				t.Errorf("Follows() = %t, want %t", got, tt.want)
			}
		})
	}
}
