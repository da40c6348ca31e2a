package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"mcpreplay"
	"mcpreplay/consumer"
	"mcpreplay/faults"
	"mcpreplay/internal/evidence"
	"mcpreplay/internal/issues"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The demo's operation.
const (
	demoOperation = "case-03"
	demoPrincipal = "alice"
	demoBackend   = "sqlite:demo"
	demoTitle     = "Reply lost on the way"
	demoBody      = "alpha"
	statusTool    = "get_operation_status"
)

// callLimit bounds one call, stopLimit the end of a process.
const (
	callLimit = 30 * time.Second
	stopLimit = 10 * time.Second
)

// Summary is what the demo found out. Its members are a contract (docs/cli.md).
type Summary struct {
	Case                     string        `json:"case"`
	InputRequired            bool          `json:"input_required"`
	OperationID              string        `json:"operation_id"`
	TransportAfterCommit     string        `json:"transport_after_commit"`
	RecoveredBy              string        `json:"recovered_by"`
	RestartCallsBeforeReplay []string      `json:"restart_calls_before_replay"`
	Status                   SummaryStatus `json:"status"`
	Replay                   SummaryReplay `json:"replay"`
	PhysicalIssueRows        int           `json:"physical_issue_rows"`
	PhysicalOperationRows    int           `json:"physical_operation_rows"`
	RawArtifacts             string        `json:"raw_artifacts"`
}

// SummaryStatus is what the restarted server said of the lost operation.
type SummaryStatus struct {
	OperationID          string          `json:"operationId"`
	Principal            string          `json:"principal"`
	Backend              string          `json:"backend"`
	State                mcpreplay.State `json:"state"`
	Authoritative        bool            `json:"authoritative"`
	FreshWriteAuthorized bool            `json:"freshWriteAuthorized"`
	MatchingIDs          []string        `json:"matchingIds"`
	StoredResult         json.RawMessage `json:"storedResult"`
}

// SummaryReplay is what an exact repeat of the lost call was answered with.
type SummaryReplay struct {
	OperationID string          `json:"operationId"`
	EffectID    int64           `json:"effectId"`
	Replayed    bool            `json:"replayed"`
	State       mcpreplay.State `json:"state"`
}

// Demo loses a reply for real and recovers it. Exe is a mcpreplay binary.
type Demo struct {
	Exe    string
	Dir    string // new; transcripts and database stay in it
	Story  io.Writer
	Stderr io.Writer // of the servers

	consumer *consumer.Consumer
	intent   consumer.Intent
	journal  *lastRequest
	clock    *evidence.Clock
	summary  Summary
}

// lastRequest is a journal that remembers what was sent last.
type lastRequest struct {
	*consumer.MemoryJournal
	mu      sync.Mutex
	request []byte
}

func (j *lastRequest) Sending(ctx context.Context, scope mcpreplay.Scope, request []byte, ledger *mcpreplay.LedgerRef) (consumer.Known, error) {
	j.mu.Lock()
	j.request = append([]byte(nil), request...)
	j.mu.Unlock()
	return j.MemoryJournal.Sending(ctx, scope, request, ledger)
}

// Run plays the demo. It fails if anything is not as it should be.
func (d *Demo) Run(ctx context.Context) (Summary, error) {
	if err := os.Mkdir(d.Dir, 0o755); err != nil {
		return Summary{}, err
	}
	d.clock = evidence.NewClock()
	d.journal = &lastRequest{MemoryJournal: consumer.NewMemoryJournal()}
	d.consumer = consumer.New(&consumer.Options{Journal: d.journal})
	arguments, err := json.Marshal(map[string]string{"operation_id": demoOperation, "title": demoTitle})
	if err != nil {
		return Summary{}, err
	}
	d.intent = consumer.Intent{
		Scope: mcpreplay.Scope{OperationID: demoOperation, Principal: demoPrincipal, Backend: demoBackend},
		Tool:  issues.Tool, Arguments: arguments,
	}
	d.summary = Summary{Case: "03: reply lost after the commit, recovered by status", OperationID: demoOperation, RawArtifacts: d.Dir}
	for _, act := range []func(context.Context) error{d.lose, d.recover, d.readBack} {
		if err := act(ctx); err != nil {
			return Summary{}, err
		}
	}
	return d.summary, nil
}

func (d *Demo) tell(format string, args ...any) { fmt.Fprintf(d.Story, format+"\n", args...) }

func (d *Demo) database() string { return filepath.Join(d.Dir, "store.sqlite3") }
func (d *Demo) log(which string) string {
	return filepath.Join(d.Dir, which+evidence.TranscriptExtension)
}

// session starts a server, with or without a fault, and connects to it.
func (d *Demo) session(ctx context.Context, which string, extra ...string) (*Process, *consumer.Session, error) {
	rec, err := evidence.NewRecorder(d.log(which), d.clock)
	if err != nil {
		return nil, nil, err
	}
	args := append([]string{"lab", "serve", "--ledger", "sqlite:" + filepath.Base(d.database()), "--backend", demoBackend, "--principal", demoPrincipal}, extra...)
	p := NewProcess(rec, d.Stderr, d.Dir, d.Exe, args...)
	client := mcp.NewClient(&mcp.Implementation{Name: "mcpreplay-demo", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			d.tell("  the server asks: %s  We answer %q.", req.Params.Message, demoBody)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"body": demoBody}}, nil
		},
	})
	s, err := consumer.Connect(ctx, client, p, nil)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("connect to the server: %w", err), d.stop(p, 0))
	}
	return p, s, nil
}

// stop ends a server and holds its exit code against what it must be.
func (d *Demo) stop(p *Process, want int) error {
	code, err := p.Stop(stopLimit)
	if err == nil && code != want {
		err = fmt.Errorf("the server ended with exit code %d, not %d", code, want)
	}
	return errors.Join(err, p.rec.Close())
}

// lose calls the tool of a server that dies between its commit and its reply.
func (d *Demo) lose(ctx context.Context) error {
	d.tell("1. A guarded MCP server, in a process of its own. It will die between committing and replying.")
	p, s, err := d.session(ctx, "crash", "--fault", faults.DropAfterCommit)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	d.tell("2. We call %s with operation_id %q.", issues.Tool, demoOperation)
	out := d.consumer.Call(ctx, s, d.intent)
	err = d.stop(p, 70)
	s.Close()
	if err != nil {
		return err
	}
	if out.Kind != consumer.KindUnknown || out.Action != mcpreplay.ActionReconcile || out.FreshWriteAuthorized {
		return fmt.Errorf("a lost reply was taken for %s (%s, action %s)", out.Kind, out.Detail, out.Action)
	}
	d.summary.TransportAfterCommit = "unknown; no reply"
	d.tell("  the connection closed; the server is gone (exit code 70). Was the issue created?")
	d.tell("3. Nobody here can know. The call counts as %s: not as failed, and it is not sent again.", out.Kind)
	return d.checkCrash()
}

// checkCrash reads from the raw transcript that the question was asked, the answer
// sent, and no reply received.
func (d *Demo) checkCrash() error {
	calls, err := evidence.ReadCalls(d.log("crash"))
	if err != nil {
		return err
	}
	var continued bool
	for _, c := range calls {
		switch {
		case c.Params.InputResponses != nil && c.Reply != nil:
			return errors.New("the crash transcript has a reply to the continuation: nothing was lost")
		case c.Params.InputResponses != nil:
			continued = true
		case c.Reply != nil && mcpreplay.ClassifyResult(c.Reply.Result).Kind == mcpreplay.VerdictInputRequired:
			d.summary.InputRequired = true
		}
	}
	if !d.summary.InputRequired || !continued {
		return errors.New("the crash transcript lacks the question or its answer")
	}
	return nil
}

// recover restarts the server and asks for the status, which settles the call.
func (d *Demo) recover(ctx context.Context) error {
	d.tell("4. The server is started again on the same file. We ask only for the status.")
	p, s, err := d.session(ctx, "restart")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	out, err := d.consumer.Reconcile(ctx, s, d.intent)
	if err == nil && (out.Action != mcpreplay.ActionReturnResult || out.Observation == nil) {
		err = fmt.Errorf("the status is %s (%s), action %s", out.Effect, out.Detail, out.Action)
	}
	if err == nil {
		d.settled(*out.Observation)
		err = d.replay(ctx, s)
	}
	err = errors.Join(err, d.stop(p, 0))
	s.Close()
	return err
}

func (d *Demo) settled(obs mcpreplay.Observation) {
	d.summary.RecoveredBy = "status"
	d.summary.Status = SummaryStatus{
		OperationID: obs.OperationID, Principal: obs.Principal, Backend: obs.Backend, State: obs.State,
		Authoritative: obs.Authoritative, FreshWriteAuthorized: obs.FreshWriteAuthorized,
		MatchingIDs: obs.MatchingIDs, StoredResult: obs.StoredResult,
	}
	d.tell("  status: %s. The stored result is returned; nothing was dispatched again:", obs.State)
	d.tell("  %s", obs.StoredResult)
}

// replay repeats the very request whose reply was lost, as an extra.
func (d *Demo) replay(ctx context.Context, s *consumer.Session) error {
	var request struct {
		InputResponses mcp.InputResponseMap `json:"inputResponses"`
		RequestState   string               `json:"requestState"`
	}
	d.journal.mu.Lock()
	err := json.Unmarshal(d.journal.request, &request)
	d.journal.mu.Unlock()
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	d.tell("5. As an extra, one exact repeat of the lost request: the same id, state and answers.")
	res, err := s.CallTool(ctx, &mcp.CallToolParams{
		Name: issues.Tool, Arguments: d.intent.Arguments,
		InputResponses: request.InputResponses, RequestState: request.RequestState,
	})
	if err != nil {
		return fmt.Errorf("the exact repeat: %w", err)
	}
	whole, err := json.Marshal(res)
	if err != nil {
		return err
	}
	mark, marked, err := mcpreplay.ReadMark(whole)
	if err != nil || !marked {
		return fmt.Errorf("the exact repeat has no mark: %v", err)
	}
	var result struct{ StructuredContent issues.Output }
	if err := json.Unmarshal(whole, &result); err != nil {
		return err
	}
	d.summary.Replay = SummaryReplay{
		OperationID: mark.OperationID, EffectID: result.StructuredContent.EffectID, Replayed: mark.Replayed, State: mark.State,
	}
	if !mark.Replayed {
		return errors.New("the exact repeat was not answered with the stored result")
	}
	d.tell("  answered with the stored result (replayed: %v, issue %d).", mark.Replayed, result.StructuredContent.EffectID)
	return nil
}

// readBack counts what is in the file and what was on the wire.
func (d *Demo) readBack(ctx context.Context) error {
	calls, err := evidence.ReadCalls(d.log("restart"))
	if err != nil {
		return err
	}
	d.summary.RestartCallsBeforeReplay = []string{}
	for _, c := range calls {
		if c.Params.Name == issues.Tool {
			break
		}
		if c.Params.Name != "" {
			d.summary.RestartCallsBeforeReplay = append(d.summary.RestartCallsBeforeReplay, c.Params.Name)
		}
	}
	store, err := sqlite.Open(d.database(), &sqlite.Options{Backend: demoBackend, ReadOnly: true})
	if err != nil {
		return err
	}
	defer store.Close()
	_, err = store.View(ctx, mcpreplay.Key{Principal: demoPrincipal, ID: demoOperation}, func(ctx context.Context, tx *sqlite.Tx, _ mcpreplay.Record) error {
		return errors.Join(
			tx.QueryRowContext(ctx, `SELECT count(*) FROM issues`).Scan(&d.summary.PhysicalIssueRows),
			tx.QueryRowContext(ctx, `SELECT count(*) FROM mcpreplay_operations`).Scan(&d.summary.PhysicalOperationRows))
	})
	if err != nil {
		return fmt.Errorf("read the file back: %w", err)
	}
	d.tell("6. The file, read independently: %d issue, %d operation.", d.summary.PhysicalIssueRows, d.summary.PhysicalOperationRows)
	if d.summary.PhysicalIssueRows != 1 || d.summary.PhysicalOperationRows != 1 {
		return fmt.Errorf("the file holds %d issues and %d operations, not one of each", d.summary.PhysicalIssueRows, d.summary.PhysicalOperationRows)
	}
	if calls := d.summary.RestartCallsBeforeReplay; len(calls) != 1 || calls[0] != statusTool {
		return fmt.Errorf("between restart and repeat were the calls %v, not the status alone", calls)
	}
	return nil
}
