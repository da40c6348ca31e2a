//go:build unix

package postgres_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/postgres"
)

type payment struct {
	Amount int `json:"amount"`
}

// serve is an MCP server with one guarded tool, and a client of it.
func serve(t *testing.T, s *postgres.Store, effect func(*postgres.Store) guard.Effect[payment, payment]) *mcp.ClientSession {
	t.Helper()
	keys, err := mcpreplay.NewKeyring([]byte("a secret of at least thirty-two bytes"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New(s, &guard.Options{Keys: keys, Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "pay"}, effect(s))
	g.Install(server)
	ct, st := mcp.NewInMemoryTransports()
	if _, err := server.Connect(context.Background(), st, nil); err != nil {
		t.Fatal(err)
	}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil).Connect(context.Background(), ct, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func pay(ctx context.Context, tx *postgres.Tx, op *guard.Op, in payment) (payment, error) {
	return in, writeRow(ctx, tx, op.ID)
}

func atomicPay(s *postgres.Store) guard.Effect[payment, payment] { return guard.Atomic(s, pay) }

func call(c *mcp.ClientSession, id string) (*mcp.CallToolResult, error) {
	return c.CallTool(context.Background(), &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"amount":7,"operation_id":"` + id + `"}`)})
}

// TestGuardedToolHasOneEffect goes through servers that share nothing but the ledger.
func TestGuardedToolHasOneEffect(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	var servers []*mcp.ClientSession
	for range 3 {
		servers = append(servers, serve(t, verified(t, url, nil), atomicPay))
	}
	var wg sync.WaitGroup
	for i := range 18 {
		wg.Go(func() {
			res, err := call(servers[i%3], "op-pay")
			if err != nil || res.IsError {
				t.Errorf("call: %+v, %v", res, err)
				return
			}
			if text, _ := json.Marshal(res.StructuredContent); string(text) != `{"amount":7}` {
				t.Errorf("the result is %s", text)
			}
		})
	}
	wg.Wait()
	if n := query[int](t, url, "SELECT count(*) FROM item"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// TestGuardedToolWhoseCommitIsLost: the caller is told that nobody can tell, and then
// what the ledger knows.
func TestGuardedToolWhoseCommitIsLost(t *testing.T) {
	t.Parallel()
	direct := newDatabase(t)
	verified(t, direct, nil)
	p := newProxy(t, direct)
	c := serve(t, openPool(t, newPool(t, p.url), nil), atomicPay)
	for _, how := range []cut{loseAsk, loseReply} {
		id := []string{"op-lost-ask", "op-lost-reply"}[how-loseAsk]
		p.next.Store(int32(how))
		res, err := call(c, id)
		if err != nil {
			t.Fatalf("cut %d: call: %v", how, err)
		}
		text, _ := json.Marshal(res)
		unknown := res.IsError && strings.Contains(string(text), "operation_unknown")
		if how == loseAsk && !unknown {
			t.Errorf("cut %d: call = %s, want that it is unknown", how, text)
		}
		if how == loseReply && !unknown && res.IsError {
			t.Errorf("cut %d: call = %s, want its result or that it is unknown", how, text)
		}
		if res, err = call(c, id); err != nil || res.IsError {
			t.Errorf("cut %d: the same again = %+v, %v", how, res, err)
		}
		if n := query[int](t, direct, "SELECT count(*) FROM item WHERE label = $1", id); n != 1 {
			t.Errorf("cut %d: %d effects, want 1", how, n)
		}
	}
}
