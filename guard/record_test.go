package guard_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// claim puts an operation of the pay tool in progress, as the owner of a longer
// effect would.
func (f *fixture) claim(id, args string, lease time.Duration) mcpreplay.Record {
	f.t.Helper()
	digests, err := ring(f.t, stateSecret).Digest(mcpreplay.Binding{Principal: "alice", Tool: "pay", Version: "1", Arguments: json.RawMessage(args)})
	if err != nil {
		f.t.Fatal(err)
	}
	rec, started, err := f.store.Begin(context.Background(), mcpreplay.Operation{
		Key: mcpreplay.Key{Principal: "alice", ID: id}, Tool: "pay", Version: "1", Digests: digests,
	}, mcpreplay.Change{To: mcpreplay.StateInProgress, Owner: "other", Lease: lease, Event: mcpreplay.Event{Kind: mcpreplay.EventClaim, Actor: "other"}})
	if err != nil || !started {
		f.t.Fatalf("claim: %v, %v", started, err)
	}
	return rec
}

func payServer(f *fixture, change func(*guard.Options)) *mcp.Server {
	server := newServer()
	g := f.guard(f.store, change)
	guard.AddTool(g, server, payTool(), guard.Check(f.store, func(ctx context.Context, tx *sqlite.Tx, rec mcpreplay.Record) (bool, error) {
		var n int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM payments WHERE operation_id = ?`, rec.ID).Scan(&n)
		return n == 1, err
	}, guard.Atomic(f.store, pay)))
	g.Install(server)
	return server
}

func status(t testing.TB, cs *mcp.ClientSession, id string) mcpreplay.Observation {
	t.Helper()
	res := mustCall(t, cs, "get_operation_status", `{"operation_id":"`+id+`"}`)
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	obs, err := mcpreplay.ParseObservation(raw, mcpreplay.Scope{OperationID: id, Principal: "alice", Backend: "app"})
	if err != nil {
		t.Fatalf("status of %s: %v\n%s", id, err, raw)
	}
	return obs
}

func TestALiveOwnerIsWaitedFor(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	rec := f.claim("claimed", `{"amount":1}`, time.Minute)
	body := []byte(`{"content":[{"type":"text","text":"by the owner"}]}`)

	answered := make(chan *mcp.CallToolResult)
	go func() {
		res, err := call(cs, "pay", `{"operation_id":"claimed","amount":1}`, nil)
		if err != nil {
			t.Error(err)
		}
		answered <- res
	}()
	if _, err := f.store.Advance(context.Background(), mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision, To: mcpreplay.StateApplied, Owner: "other",
		Result: &mcpreplay.Result{Body: body}, Event: mcpreplay.Event{Kind: mcpreplay.EventFinish, Actor: "other"},
	}); err != nil {
		t.Fatal(err)
	}
	if res := <-answered; res == nil || !strings.HasPrefix(text(res), "by the owner") || !replayed(res) {
		t.Errorf("the second attempt got %+v, want the owner's result", res)
	}
	if got := f.payments(""); got != "" {
		t.Errorf("the second attempt did the work: %q", got)
	}
}

func TestAnOwnerThatTakesTooLongIsInProgress(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, func(o *guard.Options) { o.Wait = 50 * time.Millisecond }), nil)
	f.claim("claimed", `{"amount":1}`, time.Minute)
	_, err := call(cs, "pay", `{"operation_id":"claimed","amount":1}`, nil)
	if reason(err) != "operation_in_progress" {
		t.Errorf("error = %v, want operation_in_progress", err)
	}
	if _, err := call(cs, "pay", `{"operation_id":"claimed","amount":2}`, nil); reason(err) != "operation_conflict" {
		t.Errorf("other arguments: %v, want a conflict at once", err)
	}
}

func TestAnOwnerThatIsGoneLeavesAnUnknown(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	f.claim("orphaned", `{"amount":1}`, 0)
	for range 2 {
		res := mustCall(t, cs, "pay", `{"operation_id":"orphaned","amount":1}`)
		said, _ := json.Marshal(res.StructuredContent)
		want := `{"code":"operation_unknown","nextAction":"get_operation_status","operationId":"orphaned","retryable":false,"state":"unknown"}`
		if !res.IsError || string(said) != want {
			t.Errorf("got %s, want %s", said, want)
		}
	}
	if obs := status(t, cs, "orphaned"); obs.State != mcpreplay.StateUnknown || obs.NewOperationSafe {
		t.Errorf("status = %+v", obs)
	}
	// A fence cannot settle what may have happened.
	mustCall(t, cs, "fence_operation", `{"operation_id":"orphaned"}`)
	if obs := status(t, cs, "orphaned"); obs.State != mcpreplay.StateUnknown || obs.NewOperationSafe {
		t.Errorf("status after a fence = %+v", obs)
	}
	if got := f.payments(""); got != "" {
		t.Errorf("somebody did the work: %q", got)
	}
}

// A record whose effect is gone is no proof of the effect.
func TestAMissingEffectReadsAsUnknown(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	if obs := status(t, cs, "pay-1"); obs.State != mcpreplay.StateApplied || len(obs.StoredResult) == 0 {
		t.Fatalf("status = %+v", obs)
	}
	err := f.store.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM payments`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if obs := status(t, cs, "pay-1"); obs.State != mcpreplay.StateUnknown || len(obs.StoredResult) != 0 {
		t.Errorf("status without the effect = %+v", obs)
	}
}

func TestWithoutQuestionsRetentionRefusesAndAuthorityDoesNot(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, func(o *guard.Options) { o.AuthorityTTL, o.Retention = time.Minute, time.Hour }), nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	f.clock.Add(61)
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); !replayed(res) {
		t.Error("past authority, within retention: not replayed")
	}
	f.clock.Add(3600 - 61)
	if _, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil); reason(err) != "operation_retention_expired" {
		t.Errorf("at the retention deadline: %v", err)
	}
	if obs := status(t, cs, "pay-1"); obs.State != mcpreplay.StateApplied {
		t.Errorf("status = %+v", obs)
	}
	// A commit makes its time the ledger's: a clock set back revives nothing.
	mustCall(t, cs, "pay", `{"operation_id":"pay-2","amount":2}`)
	f.clock.Store(1790035200)
	if _, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil); reason(err) != "operation_retention_expired" {
		t.Errorf("with the clock set back: %v", err)
	}
	if got := f.payments("pay-1"); got != "pay-1 | 1\n" {
		t.Errorf("effects: %q", got)
	}
}

// A version that changed is another request, not a new operation.
func TestAnotherToolOrVersionIsAConflict(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)

	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Version("2", guard.Atomic(f.store, pay)))
	other := payTool()
	other.Name = "refund"
	guard.AddTool(g, server, other, guard.Atomic(f.store, pay))
	later := connect(t, server, nil)
	for _, tool := range []string{"pay", "refund"} {
		if _, err := call(later, tool, `{"operation_id":"pay-1","amount":1}`, nil); reason(err) != "operation_conflict" {
			t.Errorf("%s: %v, want a conflict", tool, err)
		}
	}
	if got := f.payments(""); got != "pay-1 | 1\n" {
		t.Errorf("effects: %q", got)
	}
}

// A schema that got stricter does not lose an old result.
func TestALaterSchemaDoesNotLoseAnEarlierResult(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":100}`)
	server := newServer()
	g := f.guard(f.store, nil)
	strict := payTool()
	strict.InputSchema = json.RawMessage(`{"type":"object","properties":{"amount":{"type":"number","maximum":10}},"required":["amount"]}`)
	guard.AddTool(g, server, strict, guard.Atomic(f.store, pay))
	later := connect(t, server, nil)
	if res := mustCall(t, later, "pay", `{"operation_id":"pay-1","amount":100}`); !replayed(res) {
		t.Errorf("the old result is lost: %s", text(res))
	}
	if res := mustCall(t, later, "pay", `{"operation_id":"pay-2","amount":100}`); !res.IsError {
		t.Error("the new schema does not hold for new operations")
	}
}

func TestALedgerThatCannotBeUsedIsADefiniteRefusal(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	f.store.Close()
	for _, tool := range []string{"pay", "get_operation_status", "fence_operation"} {
		args := `{"operation_id":"pay-1"}`
		if tool == "pay" {
			args = `{"operation_id":"pay-1","amount":1}`
		}
		if _, err := call(cs, tool, args, nil); reason(err) != "ledger_unavailable" {
			t.Errorf("%s: %v, want ledger_unavailable", tool, err)
		}
	}
}

// blocked is a store whose Apply says that a commit was sent and not confirmed.
type blocked struct {
	mcpreplay.Applier[*sqlite.Tx]
	err error
}

func (b blocked) Apply(context.Context, mcpreplay.Operation, func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error)) (mcpreplay.Record, bool, error) {
	return mcpreplay.Record{}, false, b.err
}

func TestOnlyWhatProvesThatNothingHappenedIsAFailure(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{mcpreplay.ErrUnknown, "operation_unknown"},
		{context.DeadlineExceeded, "operation_unknown"}, // not known to be definite
		{mcpreplay.ErrUnavailable, "ledger_unavailable"},
		{mcpreplay.ErrClock, "ledger_unavailable"},
		{mcpreplay.ErrExpired, "operation_authority_expired"},
		{mcpreplay.ErrConflict, "operation_conflict"},
	}
	for _, tt := range tests {
		t.Run(tt.err.Error(), func(t *testing.T) {
			f := newFixture(t)
			server := newServer()
			g := f.guard(f.store, nil)
			guard.AddTool(g, server, payTool(), guard.Atomic[*sqlite.Tx](blocked{f.store, tt.err}, pay))
			res, err := call(connect(t, server, nil), "pay", `{"operation_id":"pay-1","amount":1}`, nil)
			got := reason(err)
			if err == nil {
				said, _ := res.StructuredContent.(map[string]any)
				got, _ = said["code"].(string)
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestACancelledCallThatDidNotStartLeavesNothing(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	entered, release := make(chan struct{}), make(chan struct{})
	go f.store.Setup(context.Background(), func(context.Context, *sqlite.Tx) error { // holds the one writer
		close(entered)
		<-release
		return nil
	})
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"operation_id":"pay-1","amount":1}`)})
		done <- err
	}()
	cancel()
	<-done
	close(release)
	// The same id is free: whatever is left of the cancelled call did nothing or
	// everything, and the next one tells which.
	res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	if res.IsError {
		t.Errorf("the next call: %s", text(res))
	}
	if got := f.payments(""); got != "pay-1 | 1\n" {
		t.Errorf("effects: %q", got)
	}
}
