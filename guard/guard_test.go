package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// fixture is a ledger with one table of the application's own.
type fixture struct {
	t     testing.TB
	path  string
	store *sqlite.Store
	clock atomic.Int64 // seconds

	disputed bool // the ledger has a contradiction, as it must
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "app.db")}
	f.clock.Store(1790035200)
	f.store = f.open()
	err := f.store.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, operation_id TEXT, amount TEXT) STRICT`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// open opens the fixture's file once more, as another process would.
func (f *fixture) open() *sqlite.Store {
	f.t.Helper()
	store, err := sqlite.Open(f.path, &sqlite.Options{Backend: "app", Clock: func() time.Time { return time.Unix(f.clock.Load(), 0) }})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		report, err := mcpreplay.Verify(context.Background(), store)
		if f.disputed {
			report.Findings = slices.DeleteFunc(report.Findings, func(f mcpreplay.Finding) bool { return f.Rule == mcpreplay.RuleContradiction })
		}
		if err != nil && !errors.Is(err, mcpreplay.ErrUnavailable) || len(report.Findings) > 0 {
			f.t.Errorf("the ledger does not verify: %v %v", report.Findings, err)
		}
		store.Close()
	})
	return store
}

func (f *fixture) guard(store mcpreplay.Store, change func(*guard.Options)) *guard.Guard {
	f.t.Helper()
	o := &guard.Options{Keys: ring(f.t, stateSecret), Principal: "alice", Wait: 3 * time.Second}
	if change != nil {
		change(o)
	}
	g, err := guard.New(store, o)
	if err != nil {
		f.t.Fatal(err)
	}
	return g
}

// payments reads the effects of an operation, or of all, by its own connection.
func (f *fixture) payments(operation string) string {
	db := openRaw(f.t, f.path)
	defer db.Close()
	return dump(f.t, db, `SELECT operation_id, amount FROM payments WHERE ?1 = '' OR operation_id = ?1 ORDER BY id`, operation)
}

func (f *fixture) operations() string {
	db := openRaw(f.t, f.path)
	defer db.Close()
	return dump(f.t, db, `SELECT operation_id, state FROM mcpreplay_operations ORDER BY seq`)
}

type payment struct {
	Amount json.Number `json:"amount"`
}

type receipt struct {
	Operation string `json:"operation"`
	Paid      string `json:"paid"`
}

// pay is an atomic effect of one row.
func pay(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in payment) (receipt, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (operation_id, amount) VALUES (?, ?)`, op.ID, in.Amount.String())
	return receipt{Operation: op.ID, Paid: in.Amount.String()}, err
}

func payTool() *mcp.Tool {
	return &mcp.Tool{Name: "pay", InputSchema: json.RawMessage(`{"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"],"additionalProperties":false}`)}
}

func newServer() *mcp.Server {
	return mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
}

// connect connects an unmodified SDK client to server, in memory.
func connect(t testing.TB, server *mcp.Server, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	ct, st := mcp.NewInMemoryTransports()
	if _, err := server.Connect(context.Background(), st, nil); err != nil {
		t.Fatal(err)
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, o).Connect(context.Background(), ct, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

func call(cs *mcp.ClientSession, tool, args string, meta mcp.Meta) (*mcp.CallToolResult, error) {
	return cs.CallTool(context.Background(), &mcp.CallToolParams{Meta: meta, Name: tool, Arguments: json.RawMessage(args)})
}

func mustCall(t testing.TB, cs *mcp.ClientSession, tool, args string) *mcp.CallToolResult {
	t.Helper()
	res, err := call(cs, tool, args, nil)
	if err != nil {
		t.Fatalf("call %s %s: %v", tool, args, err)
	}
	return res
}

// reason is the stable code of a refusal.
func reason(err error) string {
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) {
		return fmt.Sprint(err)
	}
	var data struct{ Reason string }
	if json.Unmarshal(wire.Data, &data) != nil || data.Reason == "" {
		return wire.Error()
	}
	return data.Reason
}

func text(res *mcp.CallToolResult) string {
	var parts []string
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			parts = append(parts, t.Text)
		}
	}
	return strings.Join(parts, "\n")
}

func replayed(res *mcp.CallToolResult) bool {
	mark, _ := res.Meta[mcpreplay.MetaOperation].(map[string]any)
	again, _ := mark["replayed"].(bool)
	return again
}

func TestIntegersBeyondFloatsAreTheRequestAndReachTheEffect(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	g.Install(server)
	cs := connect(t, server, nil)

	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":9007199254740993}`)
	if got := f.payments("pay-1"); got != "pay-1 | 9007199254740993\n" {
		t.Errorf("the effect got %q", got)
	}
	if _, err := call(cs, "pay", `{"operation_id":"pay-1","amount":9007199254740992}`, nil); reason(err) != "operation_conflict" {
		t.Errorf("another amount under the same id: %v, want a conflict", err)
	}
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":9007199254740993.0}`); !replayed(res) {
		t.Error("the same amount spelt otherwise was not a repeat")
	}
	if got := f.payments(""); got != "pay-1 | 9007199254740993\n" {
		t.Errorf("effects: %q", got)
	}
}

// An int64 field, too, gets what was sent: the SDK's own AddTool rounds it.
func TestTypedIntegersAreExact(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	type in struct {
		N int64 `json:"n"`
	}
	var got int64
	guard.AddTool(g, server, &mcp.Tool{Name: "count"}, guard.Atomic(f.store, func(_ context.Context, _ *sqlite.Tx, _ *guard.Op, in in) (any, error) {
		got = in.N
		return nil, nil
	}))
	mustCall(t, connect(t, server, nil), "count", `{"operation_id":"n-001","n":9007199254740993}`)
	if got != 9007199254740993 {
		t.Errorf("the effect got %d", got)
	}
}

func TestKeylessCallsAreGivenAnID(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	g.Install(server)
	cs := connect(t, server, nil) // continues by itself, and notices nothing

	first := mustCall(t, cs, "pay", `{"amount":1}`)
	second := mustCall(t, cs, "pay", `{"amount":1}`)
	if replayed(first) || replayed(second) {
		t.Error("two calls without an id were taken for one operation")
	}
	if n := strings.Count(f.payments(""), "\n"); n != 2 {
		t.Errorf("%d effects, want one for each of two calls:\n%s", n, f.payments(""))
	}
	if n := strings.Count(f.operations(), "applied"); n != 2 {
		t.Errorf("operations:\n%s", f.operations())
	}
}

// The handshake's continuation may be repeated by whatever is in between.
func TestRepeatedHandshakeContinuationIsOneOperation(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	cs := connect(t, server, &mcp.ClientOptions{MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}})

	asked := mustCall(t, cs, "pay", `{"amount":5}`)
	if !asked.NeedsInput() || asked.InputRequests == nil || len(asked.InputRequests) != 0 {
		t.Fatalf("the first round is not a state-only round: %+v", asked)
	}
	p := &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"amount":5}`), RequestState: asked.RequestState}
	for i := range 3 {
		res, err := cs.CallTool(context.Background(), p)
		if err != nil {
			t.Fatal(err)
		}
		if replayed(res) != (i > 0) {
			t.Errorf("attempt %d: replayed = %v", i, replayed(res))
		}
	}
	if n := strings.Count(f.payments(""), "\n"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

func TestTheIDThatReachesTheEffectIsTheOneSent(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	cs := connect(t, server, nil)
	mustCall(t, cs, "pay", `{"operation_id":"by-argument","amount":1}`)
	if _, err := call(cs, "pay", `{"amount":2}`, mcp.Meta{"mcpreplay/operation-id": "by-meta"}); err != nil {
		t.Fatal(err)
	}
	res := mustCall(t, cs, "pay", `{"amount":3}`)
	var minted receipt
	if err := json.Unmarshal([]byte(text(res)), &minted); err != nil {
		t.Fatal(err)
	}
	want := "by-argument | 1\nby-meta | 2\n" + minted.Operation + " | 3\n"
	if got := f.payments(""); got != want {
		t.Errorf("effects:\n%swant:\n%s", got, want)
	}
}

func TestConcurrentCallsHaveOneEffect(t *testing.T) {
	f := newFixture(t)
	var sessions []*mcp.ClientSession
	for range 4 { // four servers on one file, as four processes would be
		store := f.open()
		server := newServer()
		g := f.guard(store, func(o *guard.Options) { o.Wait = 30 * time.Second })
		guard.AddTool(g, server, payTool(), guard.Atomic(store, pay))
		sessions = append(sessions, connect(t, server, nil))
	}
	const callers = 32
	results := make([]*mcp.CallToolResult, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			res, err := call(sessions[i%len(sessions)], "pay", `{"operation_id":"all-at-once","amount":7}`, nil)
			if err != nil {
				t.Error(err)
				return
			}
			results[i] = res
		})
	}
	wg.Wait()
	fresh := 0
	for _, res := range results {
		if res == nil {
			continue
		}
		if !replayed(res) {
			fresh++
		}
		if got := fmt.Sprint(res.StructuredContent); got != "map[operation:all-at-once paid:7]" {
			t.Errorf("a caller got %s", got)
		}
	}
	if fresh != 1 {
		t.Errorf("%d callers were told that theirs was the first, want 1", fresh)
	}
	if got := f.payments(""); got != "all-at-once | 7\n" {
		t.Errorf("effects: %q", got)
	}
}
