package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
	"mcpreplay/internal/lab"
)

// connect starts "lab serve" on a ledger and connects a client that answers its
// questions. The server is stopped by the function returned, which wants an exit
// code.
func connect(t *testing.T, dir, ledger, transcript string, extra ...string) (*consumer.Session, func(code int)) {
	t.Helper()
	p := lab.NewProcess(newRecorder(t, filepath.Join(dir, transcript)), os.Stderr, dir, binary, append([]string{"lab", "serve",
		"--ledger", "sqlite:" + ledger, "--backend", "b", "--principal", "alice"}, extra...)...)
	client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"body": "x"}}, nil
		},
	})
	session, err := consumer.Connect(t.Context(), client, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session, func(want int) {
		t.Helper()
		session.Close()
		if code, err := p.Stop(10 * time.Second); err != nil || code != want {
			t.Errorf("the server ended with %d, %v, want %d", code, err, want)
		}
	}
}

// The reply is lost after the commit, and the server comes back on the wrong file.
// A fence there proves nothing of what happened in the right one.
func TestALostReplyIsNotSettledByAFenceInAnotherLedger(t *testing.T) {
	dir, journal := t.TempDir(), consumer.NewMemoryJournal()
	c := consumer.New(&consumer.Options{Journal: journal})
	in := consumer.Intent{
		Scope: mcpreplay.Scope{OperationID: "op-1", Principal: "alice", Backend: "b"},
		Tool:  "create_guarded_issue", Arguments: json.RawMessage(`{"title":"t","operation_id":"op-1"}`),
	}
	session, stop := connect(t, dir, "right.sqlite3", "lost", "--fault", "drop-after-commit")
	if out := c.Call(t.Context(), session, in); out.Kind != consumer.KindUnknown {
		t.Errorf("outcome = %+v, want unknown", out)
	}
	stop(70)
	inDoubt := func(want int) []consumer.Intent {
		t.Helper()
		list, err := journal.Unsettled()
		if err != nil || len(list) != want {
			t.Fatalf("in doubt: %+v, %v, want %d", list, err, want)
		}
		return list
	}
	found := inDoubt(1)[0]
	if found.Ledger == nil {
		t.Error("the journal does not know the ledger that asked")
	}

	session, stop = connect(t, dir, "wrong.sqlite3", "fenced")
	fenced, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "fence_operation", Arguments: json.RawMessage(`{"operation_id":"op-1"}`)})
	if err != nil || fenced.IsError {
		t.Fatalf("fence_operation: %+v, %v", fenced, err)
	}
	for _, intent := range []consumer.Intent{in, found} {
		out, err := c.Reconcile(t.Context(), session, intent)
		var oe *mcpreplay.ObservationError
		if !errors.As(err, &oe) || oe.Rule != "ledger_changed" || out.Kind != consumer.KindUnknown || out.Action != mcpreplay.ActionReconcile {
			t.Errorf("Reconcile() = %+v, %v, want ledger_changed", out, err)
		}
	}
	stop(0)
	inDoubt(1)

	session, stop = connect(t, dir, "right.sqlite3", "right")
	if out, err := c.Reconcile(t.Context(), session, in); err != nil || out.Effect != mcpreplay.StateApplied || out.Action != mcpreplay.ActionReturnResult {
		t.Errorf("Reconcile() = %+v, %v, want the stored result", out, err)
	}
	stop(0)
	inDoubt(0)
}
