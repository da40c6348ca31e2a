package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// passed is what the steps of these tests know of each other.
type passed struct {
	By []string `json:"by"`
}

// ended is their result.
type ended struct {
	State mcpreplay.State `json:"state"`
	By    []string        `json:"by"`
	Steps mcpreplay.Steps `json:"steps"`
}

// trip is a tool of the steps a, b and c. Those that are not outside leave a row, and
// their compensations remove it.
type trip struct {
	f       *fixture
	store   mcpreplay.Applier[*sqlite.Tx]
	outside string                                                // the names of steps that are not in the ledger's transaction
	noUndo  string                                                // the names of those that nothing compensates for
	then    map[string]func() error                               // what a step, or "undo " and a step, does in the end
	finish  func(context.Context, *guard.Op, passed) (any, error) // nil: ended

	mu    sync.Mutex
	calls []string
}

func (f *fixture) trip(then map[string]func() error) *trip {
	return &trip{f: f, store: f.store, then: then}
}

// ran notes that a part ran, and does what it does in the end, the first time.
func (tr *trip) ran(name string) error {
	tr.mu.Lock()
	tr.calls = append(tr.calls, name)
	then := tr.then[name]
	delete(tr.then, name)
	tr.mu.Unlock()
	if then == nil {
		return nil
	}
	return then()
}

func (tr *trip) called() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return strings.Join(tr.calls, ", ")
}

func (tr *trip) step(name string) guard.Step[payment, passed] {
	if strings.Contains(tr.outside, name) {
		do := func(what string) func(context.Context, *guard.Op, payment, *passed) error {
			return func(_ context.Context, _ *guard.Op, _ payment, p *passed) error {
				p.By = append(p.By, what)
				return tr.ran(what)
			}
		}
		if strings.Contains(tr.noUndo, name) {
			return guard.Do(name, do(name), nil)
		}
		return guard.Do(name, do(name), do("undo "+name))
	}
	run := func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, _ payment, p *passed) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO payments (operation_id, amount) VALUES (?, ?)`, op.ID, name); err != nil {
			return err
		}
		p.By = append(p.By, name)
		op.Effect(name)
		return tr.ran(name)
	}
	undo := func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, _ payment, p *passed) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM payments WHERE operation_id = ? AND amount = ?`, op.ID, name); err != nil {
			return err
		}
		p.By = append(p.By, "undo "+name)
		return tr.ran("undo " + name)
	}
	if strings.Contains(tr.noUndo, name) {
		undo = nil
	}
	return guard.DoTx(tr.store, name, run, undo)
}

func (tr *trip) effect() guard.Effect[payment, any] {
	return guard.Steps(func(ctx context.Context, op *guard.Op, _ payment, p passed) (any, error) {
		if tr.finish != nil {
			return tr.finish(ctx, op, p)
		}
		return ended{State: op.State(), By: p.By, Steps: op.Steps()}, nil
	}, tr.step("a"), tr.step("b"), tr.step("c"))
}

// serve connects a client to a server of the tool.
func (tr *trip) serve(change func(*guard.Options)) *mcp.ClientSession {
	tr.f.t.Helper()
	server := newServer()
	g := tr.f.guard(tr.store, change)
	guard.AddTool(g, server, payTool(), tr.effect())
	g.Install(server)
	return connect(tr.f.t, server, nil)
}

const tripCall = `{"operation_id":"trip-1","amount":1}`

// told is what stands in the ledger of an operation, without who did it and why.
func (f *fixture) told() string {
	db := openRaw(f.t, f.path)
	defer db.Close()
	text := dump(f.t, db, `SELECT trim(kind || ' ' || step || ' ' || outcome) || CASE state WHEN 'in_progress' THEN '' ELSE ' -> ' || state END FROM mcpreplay_events ORDER BY position`)
	return strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(text), "  ", " "), "\n", "; ")
}

// rows are what the steps have left.
func (f *fixture) rows() string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(f.payments("trip-1")), "trip-1 | ", ""), "\n", " ")
}

// said is a result as the client sees it: its outcome, or what it knows of it.
func said(res *mcp.CallToolResult, err error) string {
	if err != nil {
		return reason(err)
	}
	if body, _ := res.StructuredContent.(map[string]any); body["code"] != nil {
		return fmt.Sprint(body["code"])
	}
	if res.IsError {
		return "error: " + strings.Split(text(res), "\n")[0]
	}
	b, _ := json.Marshal(res.StructuredContent)
	var e ended
	if json.Unmarshal(b, &e) != nil {
		return string(b)
	}
	return fmt.Sprintf("%s by %s", e.State, strings.Join(e.By, ", "))
}

// statusSays is what status says, with the steps that it tells of.
func statusSays(t *testing.T, cs *mcp.ClientSession) string {
	t.Helper()
	res := mustCall(t, cs, "get_operation_status", `{"operation_id":"trip-1"}`)
	b, err := json.Marshal(res.StructuredContent)
	var o struct {
		State string
		Steps mcpreplay.Steps
	}
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	words := []string{o.State}
	for _, s := range o.Steps {
		words = append(words, strings.TrimSpace(s.Name+" "+s.Outcome+" "+s.Compensation))
	}
	return strings.Join(words, "; ")
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestStepsAreDoneInOrderAndOnce(t *testing.T) {
	f := newFixture(t)
	tr := f.trip(nil)
	tr.outside = "b"
	cs := tr.serve(nil)
	for i := range 3 {
		res, err := call(cs, "pay", tripCall, nil)
		equal(t, "the result", said(res, err), "applied by a, b, c")
		if replayed(res) != (i > 0) {
			t.Errorf("call %d is a replay: %v", i, replayed(res))
		}
	}
	equal(t, "what ran", tr.called(), "a, b, c")
	equal(t, "the rows", f.rows(), "a c")
	equal(t, "the events", f.told(), "claim; step a succeeded; step b attempted; step b succeeded; step c succeeded; finish -> applied")
	equal(t, "status", statusSays(t, cs), "applied")
}

// failures are the ways in which a step can end without having been done.
var failures = map[string]func() error{
	"an error": func() error { return errors.New("no") },
	"a panic":  func() error { panic("secret") },
	"an exit":  func() error { runtime.Goexit(); return nil },
}

// A step inside the ledger that fails, in whichever way, is rolled back; what came
// before is compensated, newest first; and nothing is done again.
func TestAFailedStepIsCompensatedNewestFirst(t *testing.T) {
	wants := []struct{ step, said, rows, ran, history, status string }{
		{"b", "partial by a, undo a", "", "a, b, undo a",
			"claim; step a succeeded; step b failed; compensation a succeeded; finish -> partial", "partial; a succeeded succeeded; b failed"},
		{"c", "partial by a, b, undo b, undo a", "", "a, b, c, undo b, undo a",
			"claim; step a succeeded; step b succeeded; step c failed; compensation b succeeded; compensation a succeeded; finish -> partial",
			"partial; a succeeded succeeded; b succeeded succeeded; c failed"},
	}
	for name, fail := range failures {
		for _, want := range wants {
			t.Run(want.step+" with "+name, func(t *testing.T) {
				f := newFixture(t)
				tr := f.trip(map[string]func() error{want.step: fail})
				cs := tr.serve(nil)
				equal(t, "the result", said(call(cs, "pay", tripCall, nil)), want.said)
				equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), want.said)
				equal(t, "the rows", f.rows(), want.rows)
				equal(t, "what ran", tr.called(), want.ran)
				equal(t, "the events", f.told(), want.history)
				equal(t, "status", statusSays(t, cs), want.status)
			})
		}
	}
}

// If the first step fails nothing happened: the client is told so, without what is
// for the log alone, and the same call does the work.
func TestAFailedFirstStepGivesTheOperationBack(t *testing.T) {
	for name, want := range map[string]string{
		"an error": "error: no", "a panic": "error: The tool failed inside. Nothing was done.", "an exit": "error: The tool failed inside. Nothing was done.",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			tr := f.trip(map[string]func() error{"a": failures[name]})
			cs := tr.serve(nil)
			equal(t, "the result", said(call(cs, "pay", tripCall, nil)), want)
			equal(t, "status", statusSays(t, cs), "unknown")
			equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), "applied by a, b, c")
			equal(t, "the rows", f.rows(), "a b c")
			equal(t, "the events", f.told(), "claim; release -> released; claim; step a succeeded; step b succeeded; step c succeeded; finish -> applied")
		})
	}
}

// A step outside that does not say that it was not done stops everything, and nobody
// settles it; one that says so is like one inside.
func TestHowAnOutsideStepFails(t *testing.T) {
	no := errors.New("no")
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	doubt := "claim; step a succeeded; step b attempted; doubt; reconcile attempted; reconcile failed"
	undone := "claim; step a succeeded; step b attempted; step b failed; compensation a succeeded; finish -> partial"
	tests := []struct {
		name          string
		fail          func() error
		said, history string
	}{
		{"not applied", func() error { return guard.NotApplied(no) }, "partial by a, undo a", undone},
		{"try again", func() error { return guard.TryAgain(no) }, "partial by a, undo a", undone},
		{"an error", failures["an error"], "operation_unknown", doubt},
		{"a panic", failures["a panic"], "operation_unknown", doubt},
		{"an exit", failures["an exit"], "operation_unknown", doubt},
		{"no end", func() error { <-hang; return nil }, "operation_unknown", doubt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tr := f.trip(map[string]func() error{"b": tt.fail})
			tr.outside = "b"
			cs := tr.serve(func(o *guard.Options) { o.EffectTimeout = 50 * time.Millisecond })
			equal(t, "the result", said(call(cs, "pay", tripCall, nil)), tt.said)
			equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), tt.said)
			equal(t, "the events", f.told(), tt.history)
			if tt.history == doubt {
				equal(t, "status", statusSays(t, cs), "unknown; a succeeded; b attempted")
				equal(t, "what ran", tr.called(), "a, b")
				equal(t, "the rows", f.rows(), "a")
			}
		})
	}
	for name, want := range map[string][2]string{
		"not applied": {"error: no", "error: no"},
		"try again":   {"error: no", "applied by a, b, c"},
	} {
		t.Run("the first, "+name, func(t *testing.T) {
			f := newFixture(t)
			tr := f.trip(map[string]func() error{"a": func() error {
				if name == "try again" {
					return guard.TryAgain(no)
				}
				return guard.NotApplied(no)
			}})
			tr.outside = "a"
			cs := tr.serve(nil)
			equal(t, "the result", said(call(cs, "pay", tripCall, nil)), want[0])
			equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), want[1])
		})
	}
}

// What cannot be undone is told. Nothing is undone after a compensation of which
// nobody knows whether it happened.
func TestHowACompensationFails(t *testing.T) {
	tests := []struct {
		name, outside, noUndo string
		fail                  func() error
		history               string // after c has failed
	}{
		{"inside", "", "", failures["an error"], "compensation b failed; compensation a succeeded"},
		{"inside, a panic", "", "", failures["a panic"], "compensation b failed; compensation a succeeded"},
		{"outside, definite", "b", "", func() error { return guard.NotApplied(errors.New("no")) }, "compensation b attempted; compensation b failed; compensation a succeeded"},
		{"outside, an error", "b", "", failures["an error"], "compensation b attempted"},
		{"outside, a panic", "b", "", failures["a panic"], "compensation b attempted"},
		{"none for b", "", "b", nil, "compensation a succeeded"},
		{"none at all", "", "ab", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			tr := f.trip(map[string]func() error{"c": failures["an error"], "undo b": tt.fail})
			tr.outside, tr.noUndo = tt.outside, tt.noUndo
			cs := tr.serve(nil)
			first := said(call(cs, "pay", tripCall, nil))
			if !strings.HasPrefix(first, "partial by a, b") {
				t.Errorf("the result is %s", first)
			}
			equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), first)
			_, after, _ := strings.Cut(f.told(), "step c failed; ")
			equal(t, "the events", after, strings.TrimPrefix(tt.history+"; finish -> partial", "; "))
		})
	}
}

// The result is made when everything has happened: whatever is wrong with it, the
// operation is told as it is, and not as one that was not done.
func TestAResultThatCannotBeMade(t *testing.T) {
	for name, finish := range map[string]func(context.Context, *guard.Op, passed) (any, error){
		"an error":  func(context.Context, *guard.Op, passed) (any, error) { return nil, errors.New("secret") },
		"a panic":   func(context.Context, *guard.Op, passed) (any, error) { panic("secret") },
		"too large": func(context.Context, *guard.Op, passed) (any, error) { return strings.Repeat("secret", 1000), nil },
	} {
		for fails, want := range map[string]string{
			"":  "error: The operation is applied: a succeeded; b succeeded; c succeeded. Do not repeat it.",
			"b": "error: The operation is partial: a succeeded, and its compensation succeeded; b failed. Do not repeat it.",
		} {
			t.Run(strings.TrimSpace(name+" "+fails), func(t *testing.T) {
				f := newFixture(t)
				tr := f.trip(map[string]func() error{fails: failures["an error"]})
				tr.finish = finish
				cs := tr.serve(func(o *guard.Options) { o.MaxResult = 500 })
				first := said(call(cs, "pay", tripCall, nil))
				if name == "too large" {
					want = "error: " + map[string]string{"": "The operation was", "b": "A part of the operation was"}[fails] + " done, but its result is not kept: it is too large. It had 12066 bytes with SHA-256 "
				}
				if !strings.HasPrefix(first, want) || strings.Contains(first, "secret") {
					t.Errorf("the result is %s, want %s", first, want)
				}
				equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), first)
			})
		}
	}
}

// A client that leaves does not stop what was claimed.
func TestACancelledCallGoesThroughItsSteps(t *testing.T) {
	f := newFixture(t)
	entered, release := make(chan struct{}), make(chan struct{})
	tr := f.trip(map[string]func() error{"b": func() error { close(entered); <-release; return nil }})
	tr.outside = "b"
	cs := tr.serve(nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(tripCall)})
		done <- err
	}()
	<-entered
	equal(t, "status while it runs", statusSays(t, cs), "unknown; a succeeded; b attempted")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call: %v", err)
	}
	close(release)
	equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), "applied by a, b, c")
	equal(t, "what ran", tr.called(), "a, b, c")
}

func TestConcurrentCallsDoTheStepsOnce(t *testing.T) {
	f := newFixture(t)
	var all []*trip
	var sessions []*mcp.ClientSession
	for range 4 { // servers on one file, as processes would be
		tr := f.trip(nil)
		tr.store, tr.outside = f.open(), "b"
		all, sessions = append(all, tr), append(sessions, tr.serve(func(o *guard.Options) { o.Wait = 30 * time.Second }))
	}
	answers := make([]string, 16)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = said(call(sessions[i%len(sessions)], "pay", tripCall, nil)) })
	}
	wg.Wait()
	if same := slices.Compact(answers); len(same) != 1 || same[0] != "applied by a, b, c" {
		t.Errorf("the callers got %q", same)
	}
	ran := ""
	for _, tr := range all {
		ran += tr.called()
	}
	equal(t, "what ran in all", ran, "a, b, c")
	equal(t, "the rows", f.rows(), "a c")
}
