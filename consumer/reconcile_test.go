package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

const storedResult = `{"content":[{"type":"text","text":"é"}],"structuredContent":{"id":9007199254740993}}`

// observation is what a status tool answers; rest are further members.
func observation(state, storedResult, rest string) string {
	return fmt.Sprintf(`{"operationId":"op-1","principal":"alice","backend":"issues",
		"scopeBinding":{"operationId":"op-1","principal":"alice","backend":"issues"},"scope":"op-1",
		"state":%q,"authoritative":true,"freshWriteAuthorized":false,"matchingIds":[],"storedResult":%s,
		"observedAt":"2026-08-01T12:00:00Z","ledger":{"instance":"i","incarnation":1,"position":8}%s}`, state, storedResult, rest)
}

// telling is a status tool that answers with structured content as it is.
func telling(text string) handler {
	return answer(&mcp.CallToolResult{StructuredContent: json.RawMessage(text)}, nil)
}

func TestReconcile(t *testing.T) {
	dropped := `,"resultDropped":{"digest":"` + strings.Repeat("ab", 32) + `","size":9}`
	tests := []struct {
		name, status string
		kind         consumer.Kind
		effect       mcpreplay.State
		action       mcpreplay.Action
		result       string
	}{
		{"applied", observation("applied", storedResult, ""), "observed", "applied", "return_stored_result", storedResult},
		{"dropped", observation("applied", "null", dropped), "observed", "applied", "stop", ""},
		{"partial", observation("partial", storedResult, ""), "observed", "partial", "stop", ""},
		{"declined", observation("not_applied", "null", `,"newOperationSafe":true,"nextAction":"stop"`), "observed", "not_applied", "stop", ""},
		{"fenced", observation("not_applied", "null", `,"newOperationSafe":true,"nextAction":"start_new_operation"`), "observed", "not_applied", "start_new_operation", ""},
		{"unknown", observation("unknown", "null", `,"detail":"no record"`), "unknown", "unknown", "reconcile", ""},
		{"unknown that wants more", observation("unknown", "null", `,"nextAction":"start_new_operation"`), "unknown", "unknown", "reconcile", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := func(effects *atomic.Int64) *mcp.Server { return newServer(effects, nil, telling(tt.status)) }
			overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, effects *atomic.Int64) {
				in := intent()
				in.Ledger = &known
				journal := &spy{}
				out, err := consumer.New(&consumer.Options{Journal: journal}).Reconcile(t.Context(), open(newClient(nil)), in)
				if err != nil {
					t.Fatal(err)
				}
				if out.Kind != tt.kind || out.Effect != tt.effect || out.Action != tt.action || out.FreshWriteAuthorized {
					t.Errorf("outcome = %+v, want %q, %q, %q", out, tt.kind, tt.effect, tt.action)
				}
				if string(out.Result) != tt.result {
					t.Errorf("result = %s, want %s", out.Result, tt.result)
				}
				if out.Observation == nil || out.Ledger().Position != 8 {
					t.Errorf("observation = %+v", out.Observation)
				}
				want := "settled " + string(tt.effect)
				if tt.kind == consumer.KindUnknown {
					want = "observed"
				}
				if got := strings.Join(journal.told, ","); got != want {
					t.Errorf("the journal was told %q, want %q", got, want)
				}
				checkEffects(t, effects, 0)
			})
		})
	}
}

// A status that is not believed, or does not come, settles nothing.
func TestReconcileLeavesUnknown(t *testing.T) {
	applied := observation("applied", storedResult, "")
	other := func(from, to string) string {
		if !strings.Contains(applied, from) {
			t.Fatalf("no %s in %s", from, applied)
		}
		return strings.Replace(applied, from, to, 1)
	}
	failed := &mcp.CallToolResult{IsError: true, StructuredContent: json.RawMessage(applied)}
	asks := &mcp.CallToolResult{RequestState: "s", InputRequests: mcp.InputRequestMap{"a": &mcp.ElicitParams{Message: "?"}}}
	tests := []struct {
		name   string
		status handler
		ledger mcpreplay.LedgerRef
		rule   string // "" for a failure that is no rejection
	}{
		{"no status tool", nil, known, ""},
		{"an error", answer(nil, errors.New("no")), known, ""},
		{"a refusal", refuseWith(mcpreplay.ReasonPrincipal), known, ""},
		{"an error that is made up", answer(nil, &jsonrpc.Error{Code: -32005, Message: "rejected by transport"}), known, ""},
		{"a question", answer(asks, nil), known, ""},
		{"the status tool fails", answer(failed, nil), known, "status"},
		{"text alone", answer(&mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "applied"}}}, nil), known, "json"},
		{"another operation", telling(other(`"op-1"`, `"op-2"`)), known, "identity_mismatch"},
		{"another principal", telling(other(`"alice"`, `"bob"`)), known, "identity_mismatch"},
		{"not authoritative", telling(other(`"authoritative":true`, `"authoritative":false`)), known, "authoritative"},
		{"a fresh write", telling(other(`"freshWriteAuthorized":false`, `"freshWriteAuthorized":true`)), known, "fresh_write"},
		{"two states", telling(other(`"state"`, `"state":"unknown","state"`)), known, "json"},
		{"another instance", telling(applied), mcpreplay.LedgerRef{Instance: "j", Incarnation: 1, Position: 7}, "ledger_changed"},
		{"another incarnation", telling(applied), mcpreplay.LedgerRef{Instance: "i", Incarnation: 0, Position: 7}, "ledger_changed"},
		{"a lower position", telling(applied), mcpreplay.LedgerRef{Instance: "i", Incarnation: 1, Position: 9}, "ledger_changed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := func(effects *atomic.Int64) *mcp.Server { return newServer(effects, nil, tt.status) }
			leaves := func(t *testing.T, open func(*mcp.Client) *consumer.Session, byCaller bool) {
				journal := &spy{}
				in := intent()
				if byCaller {
					in.Ledger = &tt.ledger
				} else {
					journal.known.Ledger = &tt.ledger
				}
				out, err := consumer.New(&consumer.Options{Journal: journal}).Reconcile(t.Context(), open(newClient(nil)), in)
				checkUnknown(t, out)
				var oe *mcpreplay.ObservationError
				switch {
				case err == nil:
					t.Error("Reconcile() says nothing of it")
				case errors.As(err, &oe) != (tt.rule != "") || oe != nil && oe.Rule != tt.rule:
					t.Errorf("error = %v, want the rule %q", err, tt.rule)
				}
				if out.Observation != nil || len(journal.told) != 0 {
					t.Errorf("believed %+v; the journal was told %q", out.Observation, journal.told)
				}
			}
			overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, _ *atomic.Int64) {
				t.Run("known to the caller", func(t *testing.T) { leaves(t, open, true) })
				t.Run("known to the journal", func(t *testing.T) { leaves(t, open, false) })
			})
		})
	}
}

func TestReconcileLeavesUnknownWhenTheJournalCannotBeRead(t *testing.T) {
	var effects atomic.Int64
	journal := &spy{unreadable: errors.New("disk gone")}
	session := connectMemory(t, newClient(nil), newServer(&effects, nil, telling(observation("applied", storedResult, ""))))
	out, err := consumer.New(&consumer.Options{Journal: journal}).Reconcile(t.Context(), session, intent())
	checkUnknown(t, out)
	if !errors.Is(err, journal.unreadable) || len(journal.told) != 0 {
		t.Errorf("error = %v; the journal was told %q", err, journal.told)
	}
}

// A question about the status is no reply to the call that is still under way.
func TestReconcileLeavesACallUnderWayInDoubt(t *testing.T) {
	var effects atomic.Int64
	running, end := make(chan struct{}), make(chan struct{})
	server := newServer(&effects, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		close(running)
		<-end
		return nil, &jsonrpc.Error{Code: -32601, Message: "no"}
	}, telling(observation("unknown", "null", "")))
	journal := consumer.NewMemoryJournal()
	c, session := consumer.New(&consumer.Options{Journal: journal}), connectMemory(t, newClient(nil), server)
	inDoubt := func(when string, want int) {
		t.Helper()
		if list, err := journal.Unsettled(); err != nil || len(list) != want {
			t.Errorf("%s: in doubt: %v, %v, want %d", when, list, err, want)
		}
	}
	ended := make(chan consumer.Outcome, 1)
	go func() { ended <- c.Call(t.Context(), session, intent()) }()
	<-running
	for range 2 {
		out, err := c.Reconcile(t.Context(), session, intent())
		if err != nil {
			t.Error(err)
		}
		checkUnknown(t, out)
	}
	inDoubt("under way", 1)
	close(end)
	if out := <-ended; out.Kind != consumer.KindVerdict {
		t.Errorf("outcome = %+v, want that nothing was dispatched", out)
	}
	inDoubt("after its end", 0)
}

func TestReconcileWithoutAReply(t *testing.T) {
	var effects atomic.Int64
	for name, f := range map[string]front{
		"dropped":   func(w httpWriter, _ *httpRequest, run func() *httptest.ResponseRecorder) { run(); cut(w, false) },
		"504":       replace(504, "text/plain", "gateway timeout"),
		"truncated": truncate(-3),
		"HTML":      replace(200, "text/html", "<html>"),
	} {
		t.Run(name, func(t *testing.T) {
			web := serveHTTP(t, newServer(&effects, nil, telling(observation("applied", storedResult, ""))), false, f)
			out, err := consumer.New(nil).Reconcile(t.Context(), connectHTTP(t, newClient(nil), web.URL, nil), intent())
			checkUnknown(t, out)
			if err == nil {
				t.Error("Reconcile() says nothing of it")
			}
		})
	}
}

// What a middleware asks on the way is not the status.
func TestReconcileIsNotMixedWithOtherCalls(t *testing.T) {
	server := func(effects *atomic.Int64) *mcp.Server {
		return newServer(effects, telling(observation("applied", storedResult, "")), telling(observation("unknown", "null", "")))
	}
	overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, _ *atomic.Int64) {
		var session *consumer.Session
		client := newClient(nil)
		client.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if p, ok := req.GetParams().(*mcp.CallToolParams); ok && p.Name == "get_operation_status" {
					if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "effect"}); err != nil {
						return nil, err
					}
				}
				return next(ctx, method, req)
			}
		})
		session = open(client)
		out, err := consumer.New(nil).Reconcile(t.Context(), session, intent())
		if err != nil {
			t.Fatal(err)
		}
		checkUnknown(t, out)
	})
}

// The whole way: the reply is lost, another session asks, and the result comes
// back byte for byte.
func TestALostReplyIsRecoveredByStatusAlone(t *testing.T) {
	var effects atomic.Int64
	var stored atomic.Value
	stored.Store("")
	status := func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		text := observation("unknown", "null", "")
		if s := stored.Load().(string); s != "" {
			text = observation("applied", s, "")
		}
		return &mcp.CallToolResult{StructuredContent: json.RawMessage(text)}, nil
	}
	server := newServer(&effects, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		stored.Store(storedResult)
		return &mcp.CallToolResult{}, nil
	}, status)
	losing := serveHTTP(t, server, false, func(w httpWriter, _ *httpRequest, run func() *httptest.ResponseRecorder) { run(); cut(w, false) })
	working := serveHTTP(t, server, false, nil)

	journal := consumer.NewMemoryJournal()
	c := consumer.New(&consumer.Options{Journal: journal})
	checkUnknown(t, c.Call(t.Context(), connectHTTP(t, newClient(nil), losing.URL, nil), intent()))

	list, err := journal.Unsettled()
	if err != nil || len(list) != 1 || list[0].Tool != "effect" || list[0].Scope != scope || string(list[0].Arguments) != string(intent().Arguments) {
		t.Fatalf("in doubt: %+v, %v", list, err)
	}
	out, err := c.Reconcile(t.Context(), connectHTTP(t, newClient(nil), working.URL, nil), list[0])
	if err != nil || out.Action != mcpreplay.ActionReturnResult || string(out.Result) != storedResult {
		t.Fatalf("outcome = %+v, %v", out, err)
	}
	checkEffects(t, &effects, 1)
	if list, err := journal.Unsettled(); err != nil || len(list) != 0 {
		t.Errorf("still in doubt: %+v, %v", list, err)
	}
	if in, found, err := journal.Intent(scope); err != nil || !found || in.Ledger == nil || in.Ledger.Position != 8 {
		t.Errorf("intent = %+v, %t, %v, want the ledger it was seen in", in, found, err)
	}
}
