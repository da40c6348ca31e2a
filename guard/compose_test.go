package guard_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func askFor(name string) func(context.Context, *guard.Op, payment) (guard.Questions, error) {
	return func(context.Context, *guard.Op, payment) (guard.Questions, error) {
		return guard.Questions{name: {Message: name + "?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}`)}}, nil
	}
}

// Ask adds: the questions of an effect that asks already are asked too.
func TestQuestionsAdd(t *testing.T) {
	f := newFixture(t)
	atomic := guard.Atomic(f.store, pay)
	chosen := guard.Choose(func(payment) string { return "a" }, map[string]guard.Effect[payment, receipt]{"a": guard.Ask(askFor("confirm"), atomic)})
	for name, e := range map[string]guard.Effect[payment, receipt]{
		"ask of ask":    guard.Ask(askFor("account"), guard.Ask(askFor("confirm"), atomic)),
		"ask of choose": guard.Ask(askFor("account"), chosen),
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer()
			guard.AddTool(f.guard(f.store, nil), server, payTool(), e)
			var asked []string
			cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: elicit(&asked)})
			mustCall(t, cs, "pay", fmt.Sprintf(`{"operation_id":%q,"amount":1}`, strings.ReplaceAll(name, " ", "-")))
			if len(asked) != 2 {
				t.Errorf("asked %q, want both questions", asked)
			}
		})
	}
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Ask(askFor("confirm"), guard.Ask(askFor("confirm"), atomic)))
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: elicit(new([]string))})
	if res := mustCall(t, cs, "pay", `{"operation_id":"same-name","amount":1}`); !res.IsError || f.payments("same-name") != "" {
		t.Errorf("two questions of one name: %s", text(res))
	}
}

// What Choose could not keep is refused when the tool is added.
func TestChoicesThatCannotWorkAreRefused(t *testing.T) {
	f := newFixture(t)
	atomic := guard.Atomic(f.store, pay)
	look := func(context.Context, *sqlite.Tx, mcpreplay.Record) (bool, error) { return true, nil }
	for name, e := range map[string]guard.Effect[payment, receipt]{
		"a version": guard.Version("2", atomic),
		"a check":   guard.Check(f.store, look, atomic),
		"nothing":   {},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "choice") {
					t.Errorf("panic = %v, want one about the choice", p)
				}
			}()
			guard.AddTool(f.guard(f.store, nil), newServer(), payTool(), guard.Choose(func(payment) string { return "a" }, map[string]guard.Effect[payment, receipt]{"a": e}))
		})
	}
}

type explosive struct{}

func (*explosive) UnmarshalJSON([]byte) error { panic("secret detail") }

// Until the store is asked to write, whatever goes wrong is definite.
func TestPanicsBeforeAnythingWasSentAreDefinite(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, func(context.Context, *sqlite.Tx, *guard.Op, explosive) (any, error) { return nil, nil }))
	picking := payTool()
	picking.Name = "pick"
	guard.AddTool(g, server, picking, guard.Choose(func(payment) string { panic("secret detail") }, map[string]guard.Effect[payment, receipt]{"a": guard.Atomic(f.store, pay)}))
	cs := connect(t, server, nil)
	for _, tool := range []string{"pay", "pick"} {
		res := mustCall(t, cs, tool, `{"operation_id":"boom-1","amount":1}`)
		if !res.IsError || text(res) != "The tool failed inside. Nothing was done." || res.StructuredContent != nil {
			t.Errorf("%s: %s %v", tool, text(res), res.StructuredContent)
		}
	}
	if got := f.operations(); got != "" {
		t.Errorf("recorded: %q", got)
	}
}

// What an effect returns is held against what later replies and status need, while
// it can still be refused.
func TestResultsThatCouldNotBeReplayedAreRefused(t *testing.T) {
	results := map[string]*mcp.CallToolResult{
		"a nil block":          {Content: []mcp.Content{nil}},
		"a request state":      {RequestState: "x"},
		"a mark of its own":    {Meta: mcp.Meta{mcpreplay.MetaOperation: "x"}},
		"broken JSON":          {StructuredContent: json.RawMessage(`{`)},
		"a cycle in its _meta": {Meta: mcp.Meta{"f": func() {}}},
	}
	for name, res := range results {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			server := newServer()
			guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Atomic(f.store, func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in payment) (*mcp.CallToolResult, error) {
				_, err := pay(ctx, tx, op, in)
				return res, err
			}))
			got := mustCall(t, connect(t, server, nil), "pay", `{"operation_id":"pay-1","amount":1}`)
			if !got.IsError || f.payments("")+f.operations() != "" {
				t.Errorf("%s; the file holds %s%s", text(got), f.payments(""), f.operations())
			}
		})
	}
}

// Errors with codes that mean something to a client are not the effect's to send.
func TestAnEffectCannotForgeARefusal(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	var forged *jsonrpc.Error
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Atomic(f.store, func(context.Context, *sqlite.Tx, *guard.Op, payment) (any, error) { return nil, forged }))
	cs := connect(t, server, nil)
	for _, e := range []*jsonrpc.Error{
		{Code: -32602, Message: "operation_fenced", Data: json.RawMessage(`{"reason":"operation_fenced"}`)},
		{Code: 0, Message: "zero"}, {Code: -32005, Message: "made up"}, {Code: -32601, Message: "no such method"},
	} {
		forged = e
		res, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
		if err != nil || !res.IsError || text(res) != e.Message {
			t.Errorf("code %d: %+v, %v, want a result with isError", e.Code, res, err)
		}
	}
}

func TestStoreTextStaysInTheLog(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, func(ctx context.Context, tx *sqlite.Tx, _ *guard.Op, _ payment) (any, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO secret_table VALUES (1)`)
		return nil, fmt.Errorf("pay: %w", err)
	}))
	asking := payTool()
	asking.Name = "ask"
	guard.AddTool(g, server, asking, guard.Ask(func(context.Context, *guard.Op, payment) (guard.Questions, error) {
		return nil, errors.Join(errors.New("/var/lib/secret.db"), mcpreplay.ErrUnavailable)
	}, guard.Atomic(f.store, pay)))
	cs := connect(t, server, nil)
	for _, tool := range []string{"pay", "ask"} {
		res := mustCall(t, cs, tool, `{"operation_id":"pay-1","amount":1}`)
		if !res.IsError || strings.Contains(text(res), "secret") {
			t.Errorf("%s: the client was told %q", tool, text(res))
		}
	}
}

// A look that fails is not the ledger's word.
func TestALookThatFailsIsNotTakenForAnAbsentRecord(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	var failure error
	guard.AddTool(g, server, payTool(), guard.Check(f.store, func(context.Context, *sqlite.Tx, mcpreplay.Record) (bool, error) { return true, failure }, guard.Atomic(f.store, pay)))
	g.Install(server)
	cs := connect(t, server, nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	if obs := status(t, cs, "pay-1"); obs.State != mcpreplay.StateApplied {
		t.Fatalf("status = %+v", obs)
	}
	failure = sql.ErrNoRows
	if obs := status(t, cs, "pay-1"); obs.State != mcpreplay.StateUnknown || !strings.Contains(obs.Detail, "not found") {
		t.Errorf("no rows: %+v", obs)
	}
	failure = mcpreplay.ErrNotFound
	if _, err := call(cs, "get_operation_status", `{"operation_id":"pay-1"}`, nil); reason(err) != "ledger_unavailable" {
		t.Errorf("another error: %v, want a refusal", err)
	}
}

// A look that hangs does not hang the calls.
func TestAStuckLookIsNotWaitedForForever(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, func(o *guard.Options) { o.Wait = 100 * time.Millisecond })
	release := make(chan struct{})
	guard.AddTool(g, server, payTool(), guard.Check(f.store, func(context.Context, *sqlite.Tx, mcpreplay.Record) (bool, error) {
		<-release
		return true, nil
	}, guard.Atomic(f.store, pay)))
	g.Install(server)
	cs := connect(t, server, nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	looks := make(chan error)
	for range 4 {
		go func() {
			_, err := call(cs, "get_operation_status", `{"operation_id":"pay-1"}`, nil)
			looks <- err
		}()
	}
	for { // until every reader is stuck
		_, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
		if err != nil {
			if reason(err) != "ledger_unavailable" {
				t.Errorf("with all readers stuck: %v, want ledger_unavailable", err)
			}
			break
		}
	}
	close(release)
	for range 4 {
		<-looks
	}
}

// Even runtime.Goexit, in whatever is the author's, leaves no call without its
// reply.
func TestCodeThatEndsItsGoroutineIsAnswered(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Check(f.store, func(context.Context, *sqlite.Tx, mcpreplay.Record) (bool, error) {
		runtime.Goexit()
		return true, nil
	}, guard.Atomic(f.store, pay)))
	asking := payTool()
	asking.Name = "ask"
	guard.AddTool(g, server, asking, guard.Ask(func(context.Context, *guard.Op, payment) (guard.Questions, error) {
		runtime.Goexit()
		return nil, nil
	}, guard.Atomic(f.store, pay)))
	recording := payTool()
	recording.Name = "record"
	guard.AddTool(g, server, recording, guard.External(func(context.Context, *guard.Op, payment) (receipt, error) {
		runtime.Goexit()
		return receipt{}, nil
	}))
	g.Install(server)
	cs := connect(t, server, nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	for range 6 { // more often than there are readers
		if _, err := call(cs, "get_operation_status", `{"operation_id":"pay-1"}`, nil); err == nil || !strings.Contains(err.Error(), "internal error") {
			t.Fatalf("a look: %v, want an internal error", err)
		}
	}
	if res := mustCall(t, cs, "ask", `{"operation_id":"pay-2","amount":1}`); !res.IsError || text(res) != "The tool failed inside. Nothing was done." {
		t.Errorf("a question: %s", text(res))
	}
	res := mustCall(t, cs, "record", `{"operation_id":"pay-3","amount":1}`)
	if said, _ := json.Marshal(res.StructuredContent); !strings.Contains(string(said), `"operation_unknown"`) {
		t.Errorf("an external effect: %s", text(res))
	}
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); !replayed(res) {
		t.Errorf("afterwards: %s", text(res))
	}
}

// What ask does to its op is nobody's business.
func TestAskCannotChangeTheOperation(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Ask(func(_ context.Context, op *guard.Op, _ payment) (guard.Questions, error) {
		op.ID, op.Principal = "other-id", "bob"
		op.Effect("from ask")
		return nil, nil
	}, guard.Atomic(f.store, pay)))
	mustCall(t, connect(t, server, nil), "pay", `{"operation_id":"pay-1","amount":1}`)
	db := openRaw(t, f.path)
	defer db.Close()
	if got := dump(t, db, `SELECT operation_id, principal, effect FROM mcpreplay_operations`); got != "pay-1 | alice\n" {
		t.Errorf("recorded %q", got)
	}
}

func TestAnswersTooLongToCarryOnAreRefused(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Ask(askTwice, guard.Atomic(f.store, pay)))
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": strings.Repeat("x", 60_000)}}, nil
	}})
	if _, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil); reason(err) != "limit_exceeded" {
		t.Errorf("a long first answer: %v, want limit_exceeded", err)
	}
}

func TestSchemasThatWouldRoundOrHideTheIDAreRefused(t *testing.T) {
	f := newFixture(t)
	g := f.guard(f.store, nil)
	for name, schema := range map[string]string{
		"a default beyond floats": `{"type":"object","properties":{"n":{"type":"integer","default":9007199254740993}}}`,
		"a reference at its root": `{"type":"object","$ref":"#/$defs/in","$defs":{"in":{"type":"object"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("the tool was added")
				}
			}()
			tool := payTool()
			tool.InputSchema = json.RawMessage(schema)
			guard.AddTool(g, newServer(), tool, guard.Atomic(f.store, pay))
		})
	}
}

// Within the limit as sent is within the limit, however it is written anew.
func TestTheLimitIsForWhatWasSent(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	tool := payTool()
	tool.InputSchema = json.RawMessage(`{"type":"object"}`)
	guard.AddTool(f.guard(f.store, nil), server, tool, guard.Atomic(f.store, func(context.Context, *sqlite.Tx, *guard.Op, json.RawMessage) (any, error) { return nil, nil }))
	args := `{"operation_id":"long-1","s":"` + strings.Repeat("\u2028", 200_000) + `"}`
	if res := mustCall(t, connect(t, server, nil), "pay", args); res.IsError {
		t.Errorf("600 KB of line separators: %s", text(res))
	}
}

func TestANilOutputIsItsZeroValue(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Atomic(f.store, func(context.Context, *sqlite.Tx, *guard.Op, payment) (*receipt, error) { return nil, nil }))
	if res := mustCall(t, connect(t, server, nil), "pay", `{"operation_id":"nil-1","amount":1}`); res.IsError || text(res) != `{"operation":"","paid":""}` {
		t.Errorf("result: %s", text(res))
	}
}

func TestOptionsThatCannotWorkAreRefusedTogether(t *testing.T) {
	f := newFixture(t)
	_, err := guard.New(f.store, &guard.Options{Principal: "a\xff", AuthorityTTL: time.Hour, Retention: time.Minute, MaxResult: -1})
	for _, want := range []string{"Options.Keys", "Options.Principal", "Options.Retention", "Options.MaxResult"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want it to speak of %s", err, want)
		}
	}
}

func TestKeyFilesAreMadeOnceAndKeptPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	ids := make(chan string)
	for range 8 {
		go func() {
			keys, err := guard.KeyFile(path)
			if err != nil {
				t.Error(err)
				ids <- ""
				return
			}
			ids <- keys.IDs()[0]
		}()
	}
	first := <-ids
	for range 7 {
		if id := <-ids; id != first {
			t.Errorf("two creators have different keys: %s and %s", first, id)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/.*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.KeyFile(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others may read: %v", err)
	}
}
