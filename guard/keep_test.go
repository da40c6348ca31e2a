package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// touchy is a result that cannot be encoded.
type touchy struct {
	Broken any `json:"broken"`
}

func (touchy) MarshalJSON() ([]byte, error) { panic("no") }

// An effect that ended is applied, whatever its result does to whoever keeps it.
func TestAResultThatPanicsIsRecordedAllTheSame(t *testing.T) {
	f := newFixture(t)
	g := f.guard(f.store, nil)
	server := newServer()
	runs := 0
	guard.AddTool(g, server, payTool(), guard.External(func(context.Context, *guard.Op, payment) (touchy, error) {
		runs++
		return touchy{}, nil
	}))
	g.Install(server)
	cs := connect(t, server, nil)
	for range 2 {
		if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); !res.IsError || !strings.Contains(text(res), "was done, but its result cannot be kept") {
			t.Errorf("told %s", text(res))
		}
	}
	if got := f.row("state, result_is_error"); got != "applied | 1" || runs != 1 {
		t.Errorf("recorded %q after %d runs", got, runs)
	}
	if o := observed(t, cs, "pay-1"); o.State != "applied" || !o.ResultIsError {
		t.Errorf("status: %s, %s", o.State, o.Detail)
	}
}

// An error that an effect means for the wire proves no more than any other.
func TestAWireErrorOfAnEffectIsUnknown(t *testing.T) {
	for _, end := range []error{
		&jsonrpc.Error{Code: -32602, Message: "operation_forbidden", Data: json.RawMessage(`{"reason":"operation_forbidden"}`)},
		&jsonrpc.Error{Code: -32601, Message: "method not found"},
		mcpreplay.ErrUnavailable, mcpreplay.ErrConflict, mcpreplay.ErrExpired, mcpreplay.ErrNotFound, context.Canceled,
		&mcpreplay.EffectError{Err: errors.New("rolled back, it says")},
	} {
		t.Run(fmt.Sprintf("%T %v", end, end), func(t *testing.T) {
			f := newFixture(t)
			runs := 0
			cs, _ := f.external(guard.External(func(context.Context, *guard.Op, payment) (receipt, error) {
				runs++
				return receipt{}, end
			}), func(o *guard.Options) { o.Lease = time.Minute }) // which doubt ends
			for range 2 {
				if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); !isUnknown(res) {
					t.Errorf("told %s", text(res))
				}
			}
			if o := observed(t, cs, "pay-1"); o.State != "unknown" || !strings.Contains(o.Detail, "no live owner") || runs != 1 {
				t.Errorf("status: %s, %s, after %d runs", o.State, o.Detail, runs)
			}
		})
	}
}

// A whole result that is nil is that of an effect that has nothing to say.
func TestAnEffectWithNothingToSayIsApplied(t *testing.T) {
	f := newFixture(t)
	g := f.guard(f.store, nil)
	server := newServer()
	runs := 0
	guard.AddTool(g, server, payTool(), guard.ExternalHandler(func(context.Context, *guard.Op, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		runs++
		return nil, nil
	}))
	g.Install(server)
	cs := connect(t, server, nil)
	for i := range 2 {
		if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); res.IsError || replayed(res) != (i > 0) {
			t.Errorf("call %d: %s", i, text(res))
		}
	}
	if got := f.row("state"); got != "applied" || runs != 1 {
		t.Errorf("recorded %q after %d runs", got, runs)
	}
}

// A claim whose commit was not confirmed is given back though its caller has gone: its
// id is not lost to an operation that never began.
func TestAnUnconfirmedClaimIsGivenBackForACallerThatLeft(t *testing.T) {
	f := newFixture(t)
	runs := 0
	effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		runs++
		return paid(op, in)
	})
	ctx, cancel := context.WithCancel(t.Context())
	store := &leaving{Store: f.store, leave: cancel}
	cs, _ := f.externalOver(store, effect, func(o *guard.Options) { o.Lease = time.Minute })
	if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"operation_id":"pay-1","amount":1}`)}); err == nil {
		t.Error("the cancelled call had a reply")
	}
	eventually(t, "the release", func() bool { return f.row("state") == "released" })
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); res.IsError || replayed(res) || runs != 1 {
		t.Errorf("sent again: %s, after %d runs", text(res), runs)
	}
}

// leaving is a store whose first claim is made and not confirmed, to a caller that has
// gone by then.
type leaving struct {
	mcpreplay.Store
	leave context.CancelFunc
	left  bool
}

func (s *leaving) Begin(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
	rec, started, err := s.Store.Begin(ctx, op, c)
	if s.left || err != nil {
		return rec, started, err
	}
	s.left = true
	s.leave()
	<-ctx.Done()
	return mcpreplay.Record{}, false, fmt.Errorf("commit: %w", mcpreplay.ErrUnknown)
}
