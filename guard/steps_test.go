package guard_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// walk is what the steps of the tests know of each other.
type walk struct {
	Names []string `json:"names"`
}

type walked struct {
	State string `json:"state"`
	Names string `json:"names"`
	Steps string `json:"steps"`
}

// path builds an effect of steps named by letters, and tells what ran. A small letter
// is a step in the ledger's transaction, a capital one is somewhere else.
type path struct {
	f     *fixture
	store mcpreplay.Applier[*sqlite.Tx]
	ends  map[string]func() error // by what runs: "b", or "undo b"

	mu  sync.Mutex
	ran []string
}

func (p *path) run(what string) error {
	p.mu.Lock()
	p.ran = append(p.ran, what)
	p.mu.Unlock()
	if end := p.ends[what]; end != nil {
		return end()
	}
	return nil
}

func (p *path) told() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.ran, ", ")
}

func (p *path) effect(names string) guard.Effect[payment, walked] {
	var steps []guard.Step[payment, walk]
	for _, name := range strings.Split(names, "") {
		if strings.ToUpper(name) == name {
			steps = append(steps, guard.Do(name,
				func(_ context.Context, _ *guard.Op, _ payment, w *walk) error {
					w.Names = append(w.Names, name)
					return p.run(name)
				},
				func(context.Context, *guard.Op, payment, *walk) error { return p.run("undo " + name) }))
			continue
		}
		steps = append(steps, guard.DoTx(p.store, name,
			func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, _ payment, w *walk) error {
				w.Names = append(w.Names, name)
				if _, err := tx.ExecContext(ctx, `INSERT INTO payments (operation_id, amount) VALUES (?, ?)`, op.ID, name); err != nil {
					return err
				}
				return p.run(name)
			},
			func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, _ payment, _ *walk) error {
				if _, err := tx.ExecContext(ctx, `DELETE FROM payments WHERE operation_id = ? AND amount = ?`, op.ID, name); err != nil {
					return err
				}
				return p.run("undo " + name)
			}))
	}
	return guard.Steps(func(_ context.Context, op *guard.Op, _ payment, w walk) (walked, error) {
		return walked{State: string(op.State()), Names: strings.Join(w.Names, ""), Steps: fmt.Sprint(op.Steps())}, nil
	}, steps...)
}

// server serves the steps over a store of its own, as another process would.
func (p *path) server(names string, change func(*guard.Options)) (*mcp.ClientSession, *guard.Guard) {
	p.f.t.Helper()
	g := p.f.guard(p.store, func(o *guard.Options) {
		o.Lease, o.Wait = time.Second, 20*time.Second
		if change != nil {
			change(o)
		}
	})
	server := newServer()
	guard.AddTool(g, server, payTool(), p.effect(names))
	g.Install(server)
	return connect(p.f.t, server, nil), g
}

func TestStepsRunInOrderAndEndAsTheLedgerKnows(t *testing.T) {
	fail := func(err error) func() error { return func() error { return err } }
	broken := errors.New("broken")
	refused := guard.NotApplied(errors.New("refused"))
	for _, tt := range []struct {
		name    string
		steps   string
		ends    map[string]func() error
		ran     string
		state   string // in the ledger
		rows    string // of the application
		history string
		result  string // part of the first reply
	}{
		{"all", "aBc", nil, "a, B, c", "applied", "ac", "claim step:succeeded step:attempted step:succeeded step:succeeded finish", "names:aBc state:applied"},
		{"the first fails, inside", "abc", map[string]func() error{"a": fail(broken)}, "a", "released", "", "claim release", "broken"},
		{"the first is refused, inside", "abc", map[string]func() error{"a": fail(refused)}, "a", "not_applied", "", "claim finish", "refused"},
		{"the first panics, inside", "abc", map[string]func() error{"a": func() error { panic("x") }}, "a", "released", "", "claim release", "The tool failed inside. Nothing was done."},
		{"the first is refused, outside", "Abc", map[string]func() error{"A": fail(refused)}, "A", "not_applied", "", "claim step:attempted finish", "refused"},
		{"the first may be tried again, outside", "Abc", map[string]func() error{"A": fail(guard.TryAgain(broken))}, "A", "released", "", "claim step:attempted release", "broken"},
		{"nobody knows of the first", "Abc", map[string]func() error{"A": fail(broken)}, "A", "in_progress", "", "claim step:attempted doubt", "not known"},
		{"the last fails, inside", "aBc", map[string]func() error{"c": fail(broken)}, "a, B, c, undo B, undo a", "partial", "",
			"claim step:succeeded step:attempted step:succeeded step:failed compensation:attempted compensation:succeeded compensation:succeeded finish", "names:aB state:partial"},
		{"the last is refused, outside", "abC", map[string]func() error{"C": fail(refused)}, "a, b, C, undo b, undo a", "partial", "",
			"claim step:succeeded step:succeeded step:attempted step:failed compensation:succeeded compensation:succeeded finish", "names:ab state:partial"},
		{"nobody knows of the last", "abC", map[string]func() error{"C": fail(broken)}, "a, b, C", "in_progress", "ab",
			"claim step:succeeded step:succeeded step:attempted doubt", "not known"},
		{"the last panics, outside", "aB", map[string]func() error{"B": func() error { panic("x") }}, "a, B", "in_progress", "a", "claim step:succeeded step:attempted doubt", "not known"},
		{"the last ends its goroutine", "aB", map[string]func() error{"B": func() error { runtime.Goexit(); return nil }}, "a, B", "in_progress", "a", "claim step:succeeded step:attempted doubt", "not known"},
		{"a compensation fails, inside", "abc", map[string]func() error{"c": fail(broken), "undo b": fail(broken)}, "a, b, c, undo b, undo a", "partial", "b",
			"claim step:succeeded step:succeeded step:failed compensation:failed compensation:succeeded finish", "state:partial"},
		{"a compensation is refused, outside", "aBc", map[string]func() error{"c": fail(broken), "undo B": fail(refused)}, "a, B, c, undo B, undo a", "partial", "",
			"claim step:succeeded step:attempted step:succeeded step:failed compensation:attempted compensation:failed compensation:succeeded finish", "state:partial"},
		{"nobody knows of a compensation", "aBc", map[string]func() error{"c": fail(broken), "undo B": fail(broken)}, "a, B, c, undo B", "partial", "a",
			"claim step:succeeded step:attempted step:succeeded step:failed compensation:attempted finish", "state:partial"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := &path{f: f, store: f.store, ends: tt.ends}
			cs, _ := p.server(tt.steps, nil)
			res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
			if said := text(res) + fmt.Sprint(res.StructuredContent); !strings.Contains(said, tt.result) {
				t.Errorf("the reply is %s, want %s in it", said, tt.result)
			}
			if got := p.told(); got != tt.ran {
				t.Errorf("ran %s, want %s", got, tt.ran)
			}
			if got := f.row("state"); got != tt.state {
				t.Errorf("the record is %s, want %s", got, tt.state)
			}
			rows := strings.NewReplacer("pay-1 | ", "", "\n", "").Replace(f.payments("pay-1"))
			if rows != tt.rows {
				t.Errorf("rows %q, want %q", rows, tt.rows)
			}
			if got := f.history(); got != tt.history {
				t.Errorf("history: %s\nwant:    %s", got, tt.history)
			}
			if tt.state == "released" {
				return
			}
			ran := p.told()
			again := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
			if p.told() != ran {
				t.Errorf("sent again, it ran %s", p.told())
			}
			if replayed(again) != (tt.state != "in_progress") {
				t.Errorf("sent again: %s", text(again))
			}
			o := observed(t, cs, "pay-1")
			if tt.state == "partial" && len(o.Steps) != len(tt.steps) {
				t.Errorf("status tells of steps %v", o.Steps)
			}
		})
	}
}

// An owner that sleeps between two steps finds that the operation was settled without
// him: he does not run the next one. Whoever settled it knows what the steps knew.
func TestAnOwnerWhoSleepsBetweenStepsStops(t *testing.T) {
	for steps, want := range map[string]string{"ab": "partial", "aB": "partial", "Ab": "partial"} {
		t.Run(steps, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			between, release := make(chan struct{}), make(chan struct{})
			asleep := &dozing{Applier: f.store, between: between, release: release}
			p := &path{f: f, store: asleep}
			owner, _ := p.server(steps, func(o *guard.Options) { o.Wait = 2 * time.Second })
			q := &path{f: f, store: f.open()}
			other, _ := q.server(steps, nil)
			ended := make(chan *mcp.CallToolResult, 1)
			go func() { ended <- mustCall(t, owner, "pay", `{"operation_id":"pay-1","amount":1}`) }()
			<-between // the first step is done, and he sleeps
			eventually(t, "the settlement", func() bool { return observed(t, other, "pay-1").State == mcpreplay.State(want) })
			close(release)
			<-ended
			if got := p.told(); got != steps[:1] {
				t.Errorf("the owner ran %s", got)
			}
			res := mustCall(t, other, "pay", `{"operation_id":"pay-1","amount":1}`)
			if said := fmt.Sprint(res.StructuredContent); !replayed(res) || !strings.Contains(said, "names:"+steps[:1]+" state:partial") {
				t.Errorf("sent again: %s", said)
			}
			if q.told() != "" {
				t.Errorf("the other ran %s", q.told())
			}
		})
	}
}

// dozing is a store whose owner falls asleep once his first step is recorded.
type dozing struct {
	mcpreplay.Applier[*sqlite.Tx]
	between, release chan struct{}
	once             sync.Once
	mu               sync.Mutex
	asleep           bool
}

func (d *dozing) doze(err error, c mcpreplay.Change) {
	if err == nil && c.Event.Kind == mcpreplay.EventStep && c.Event.Outcome == mcpreplay.OutcomeSucceeded {
		d.once.Do(func() {
			d.mu.Lock()
			d.asleep = true
			d.mu.Unlock()
			close(d.between)
			<-d.release
		})
	}
}

func (d *dozing) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	d.mu.Lock()
	asleep := d.asleep
	d.mu.Unlock()
	if asleep && c.Event.Kind == "" { // who sleeps renews nothing
		return mcpreplay.Record{}, mcpreplay.ErrUnavailable
	}
	rec, err := d.Applier.Advance(ctx, c)
	d.doze(err, c)
	return rec, err
}

func (d *dozing) ApplyStep(ctx context.Context, c mcpreplay.Change, fn func(context.Context, *sqlite.Tx, *mcpreplay.Change) error) (mcpreplay.Record, error) {
	rec, err := d.Applier.ApplyStep(ctx, c, fn)
	d.doze(err, c)
	return rec, err
}

// shakySteps is shaky with the writes of steps.
type shakySteps struct {
	shaky
	steps mcpreplay.Applier[*sqlite.Tx]
}

func (s *shakySteps) Apply(ctx context.Context, op mcpreplay.Operation, fn func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error)) (mcpreplay.Record, bool, error) {
	return s.steps.Apply(ctx, op, fn)
}

func (s *shakySteps) View(ctx context.Context, key mcpreplay.Key, look func(context.Context, *sqlite.Tx, mcpreplay.Record) error) (mcpreplay.Record, error) {
	return s.steps.View(ctx, key, look)
}

func (s *shakySteps) ApplyStep(ctx context.Context, c mcpreplay.Change, fn func(context.Context, *sqlite.Tx, *mcpreplay.Change) error) (mcpreplay.Record, error) {
	if !s.fails("step " + c.Event.Step) {
		return s.steps.ApplyStep(ctx, c, fn)
	}
	if s.made {
		if _, err := s.steps.ApplyStep(ctx, c, fn); err != nil {
			return mcpreplay.Record{}, err
		}
	}
	return mcpreplay.Record{}, s.err
}

// Whatever a ledger answers to any one of the writes of steps, none is done twice, and
// in the end the ledger knows exactly which rows there are.
func TestALedgerThatFailsAtAnyWriteOfSteps(t *testing.T) {
	for n := range 14 {
		broken := n < 7
		n := n % 7
		for _, f := range []struct {
			name string
			err  error
			made bool
		}{
			{"unavailable", mcpreplay.ErrUnavailable, false}, {"unknown and made", mcpreplay.ErrUnknown, true}, {"unknown and not made", mcpreplay.ErrUnknown, false},
		} {
			t.Run(fmt.Sprintf("write %d, %s, broken %t", n+1, f.name, broken), func(t *testing.T) {
				t.Parallel()
				fx := newFixture(t)
				ends := map[string]func() error{"c": func() error {
					if broken {
						return errors.New("broken")
					}
					return nil
				}}
				p := &path{f: fx, store: &shakySteps{shaky: shaky{Store: fx.store, n: n, times: 1, err: fmt.Errorf("injected: %w", f.err), made: f.made}, steps: fx.store}, ends: ends}
				cs, _ := p.server("aBc", nil)
				call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
				q := &path{f: fx, store: fx.open(), ends: ends}
				again, _ := q.server("aBc", nil)
				call(again, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
				ran := p.told() + ", " + q.told()
				if n := strings.Count(ran, "B") - strings.Count(ran, "undo B"); n > 1 {
					t.Errorf("B ran %d times: %s", n, ran)
				}
				rows := strings.NewReplacer("pay-1 | ", "", "\n", "").Replace(fx.payments("pay-1"))
				rec, err := fx.store.Get(t.Context(), mcpreplay.Key{Principal: "alice", ID: "pay-1"})
				if err != nil {
					if n > 0 || rows != "" {
						t.Errorf("no record, and rows %q: %v", rows, err)
					}
					return
				}
				events, err := fx.store.Events(t.Context(), rec.Key)
				if err != nil {
					t.Fatal(err)
				}
				known := ""
				for _, s := range mcpreplay.StepsOf(events) {
					if s.Name != "B" && s.Outcome == mcpreplay.OutcomeSucceeded && s.Compensation != mcpreplay.OutcomeSucceeded {
						known += s.Name
					}
				}
				if known != rows {
					t.Errorf("the ledger knows of %q, there is %q (%s; %s)", known, rows, rec.State, fx.history())
				}
				if want := map[bool]mcpreplay.State{true: mcpreplay.StatePartial, false: mcpreplay.StateApplied}[broken]; rec.State != want && rec.State != mcpreplay.StateInProgress {
					t.Errorf("in the end it is %s: %s", rec.State, fx.history())
				}
			})
		}
	}
}

func TestStepsThatCannotWorkAreRefused(t *testing.T) {
	f := newFixture(t)
	finish := func(context.Context, *guard.Op, payment, walk) (walked, error) { return walked{}, nil }
	do := func(context.Context, *guard.Op, payment, *walk) error { return nil }
	for name, e := range map[string]guard.Effect[payment, walked]{
		"none":       guard.Steps(finish),
		"twice":      guard.Steps(finish, guard.Do("a", do, nil), guard.Do("a", do, nil)),
		"long name":  guard.Steps(finish, guard.Do(strings.Repeat("n", 65), do, nil)),
		"no run, tx": guard.Steps(finish, guard.DoTx[*sqlite.Tx, payment, walk](f.store, "a", nil, nil)),
		"nameless":   guard.Steps(finish, guard.Do("", do, nil)),
		"nothing":    guard.Steps(finish, guard.Do[payment, walk]("a", nil, nil)),
		"idempotent": guard.Idempotent(guard.Steps(finish, guard.Do("a", do, nil))),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was accepted", name)
				}
			}()
			guard.AddTool(f.guard(f.store, nil), newServer(), payTool(), e)
		}()
	}
}
