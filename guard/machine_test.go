package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"
)

// world is a system of record with one operation, and what really became of it.
type world struct {
	mu         sync.Mutex
	dice       *rand.Rand
	idempotent bool
	done       int  // how often the work was done
	fenced     bool // the system refuses it from now on
	running    int
	unsure     bool // the ledger's time went on without the effect that was running
	gate       chan struct{}
}

func (w *world) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dice.IntN(n)
}

// do does the work, and reports whether it is done.
func (w *world) do() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done > 0 && w.idempotent { // the system knows the id
		return true
	}
	if !w.fenced {
		w.done++
	}
	return !w.fenced
}

func (w *world) effect(_ context.Context, op *guard.Op, in payment) (receipt, error) {
	w.mu.Lock()
	w.running++
	gate := w.gate
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running--
		w.mu.Unlock()
	}()
	if w.roll(3) == 0 {
		<-gate // it hangs, whatever its context says
	}
	switch end := w.roll(6); {
	case end == 0:
		return receipt{}, guard.TryAgain(errors.New("never sent"))
	case end == 1:
		return receipt{}, errors.New("never sent, but who knows")
	case !w.do():
		return receipt{}, guard.NotApplied(errors.New("fenced"))
	case end == 2:
		return receipt{}, errors.New("the reply is lost")
	case end == 3:
		panic("after the work")
	}
	return paid(op, in)
}

// ask is a reconciler that tells the truth, or nothing.
func (w *world) ask(_ context.Context, op *guard.Op, in payment) (finding, error) {
	how := w.roll(4)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case how == 0:
		return finding{}, errors.New("503")
	case how == 1:
		return guard.Undecided[receipt]("not indexed"), nil
	case w.done > 0:
		r, err := paid(op, in)
		return guard.Found(r, "it is there"), err
	case how == 2:
		w.fenced = true
		return guard.Fenced[receipt]("cancelled there"), nil
	}
	return guard.Absent[receipt]("not there"), nil
}

func (w *world) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.gate)
	w.gate = make(chan struct{})
}

// moody is a store that fails as it likes, or for good once it is dead.
type moody struct {
	mcpreplay.Store
	w    *world
	dead atomic.Bool
}

// write makes a change, or not, and says the truth about it, or nothing certain.
func (m *moody) write(do func() error) error {
	mood := m.w.roll(12)
	switch {
	case m.dead.Load() || mood == 0:
		return fmt.Errorf("moody: %w", mcpreplay.ErrUnavailable)
	case mood == 1:
		return fmt.Errorf("moody, not made: %w", mcpreplay.ErrUnknown)
	}
	err := do()
	if err == nil && mood == 2 {
		return fmt.Errorf("moody, made: %w", mcpreplay.ErrUnknown)
	}
	return err
}

func (m *moody) Begin(ctx context.Context, o mcpreplay.Operation, c mcpreplay.Change) (rec mcpreplay.Record, started bool, err error) {
	err = m.write(func() (err error) { rec, started, err = m.Store.Begin(ctx, o, c); return err })
	if err != nil {
		return mcpreplay.Record{}, false, err
	}
	return rec, started, nil
}

func (m *moody) Advance(ctx context.Context, c mcpreplay.Change) (rec mcpreplay.Record, err error) {
	err = m.write(func() (err error) { rec, err = m.Store.Advance(ctx, c); return err })
	if err != nil {
		return mcpreplay.Record{}, err
	}
	return rec, nil
}

func (m *moody) Get(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
	if m.dead.Load() || m.w.roll(20) == 0 {
		return mcpreplay.Record{}, fmt.Errorf("moody: %w", mcpreplay.ErrUnavailable)
	}
	return m.Store.Get(ctx, key)
}

// machine is one operation, the processes that serve it, and what they have told.
type machine struct {
	*world
	f       *fixture
	clean   *sqlite.Store
	guards  [3]*guard.Guard
	stores  [3]*moody
	clients [3]*mcp.ClientSession
	calls   sync.WaitGroup
	wrong   chan string

	final string // once it is
}

var onePay = mcpreplay.Key{Principal: "alice", ID: "pay-1"}

func (m *machine) start(i int) {
	effect := guard.Reconcile(m.ask, guard.External(m.effect))
	if m.idempotent {
		effect = guard.Idempotent(effect)
	}
	m.stores[i] = &moody{Store: m.clean, w: m.world}
	m.clients[i], m.guards[i] = m.f.externalOver(m.stores[i], effect, func(o *guard.Options) {
		o.Lease, o.Wait, o.ReconcileTimeout, o.EffectTimeout = 60*time.Millisecond, 150*time.Millisecond, 100*time.Millisecond, time.Minute
	})
}

// call sends the call by a process, and waits for the reply for a while only.
func (m *machine) call(i int) {
	cs, ended := m.clients[i], make(chan struct{})
	m.calls.Go(func() {
		defer close(ended)
		res, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
		if err == nil && !res.IsError {
			m.told("a caller", "applied")
		}
	})
	select {
	case <-ended:
	case <-time.After(50 * time.Millisecond):
	}
}

// told checks what somebody was told against the world and the ledger.
func (m *machine) told(who string, state mcpreplay.State) {
	rec, err := m.clean.Get(context.Background(), onePay)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case state == "applied" && (m.done == 0 || err != nil || rec.State != "applied"):
		m.complain("%s was told applied; done %d times, the record is %q, %v", who, m.done, rec.State, err)
	case state == "not_applied" && !m.unsure && m.done > 0:
		m.complain("%s was told not_applied; done %d times", who, m.done)
	}
}

func (m *machine) complain(format string, args ...any) {
	select {
	case m.wrong <- fmt.Sprintf(format, args...):
	default:
	}
}

func (m *machine) look(i int, tool string) {
	res, err := call(m.clients[i], tool, `{"operation_id":"pay-1"}`, nil)
	if err != nil {
		return
	}
	var o mcpreplay.Observation
	said, _ := json.Marshal(res.StructuredContent)
	if err := json.Unmarshal(said, &o); err != nil {
		m.complain("%s: %v", tool, err)
	}
	m.told(tool, o.State)
	if o.NewOperationSafe {
		m.told(tool+", safe", "not_applied")
	}
}

// check is what must hold at any time.
func (m *machine) check(t *rapid.T) {
	select {
	case wrong := <-m.wrong:
		t.Fatal(wrong)
	default:
	}
	rec, err := m.clean.Get(context.Background(), onePay)
	if err != nil && !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done > 1 {
		t.Fatalf("done %d times", m.done)
	}
	now := ""
	if rec.State.Final() {
		now = string(rec.State)
		if rec.Result != nil {
			now += fmt.Sprintf(" %x", rec.Result.Digest)
		}
	}
	if m.final != "" && now != m.final {
		t.Fatalf("the record was %s and is %q", m.final, now)
	}
	m.final = now
}

// end is what must hold when everything has ended.
func (m *machine) end(t *rapid.T) {
	m.wake()
	m.calls.Wait()
	m.check(t)
	rec, err := m.clean.Get(context.Background(), onePay)
	report, failed := mcpreplay.Verify(context.Background(), m.clean)
	if failed != nil {
		t.Fatal(failed)
	}
	for _, f := range report.Findings {
		if f.Rule != mcpreplay.RuleContradiction || !rec.Contradicted {
			t.Errorf("verify: %v", f)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil && m.done > 0:
		t.Errorf("done %d times, and there is no record", m.done)
	case rec.State == mcpreplay.StateReleased && m.done > 0:
		t.Errorf("released, and done %d times", m.done)
	case rec.State == "applied" && (m.done == 0 || rec.Contradicted):
		t.Errorf("applied, contradicted %v, and done %d times", rec.Contradicted, m.done)
	case rec.State == "not_applied" && rec.Contradicted != (m.done > 0) && !m.unsure:
		t.Errorf("not applied, contradicted %v, and done %d times", rec.Contradicted, m.done)
	}
}

// One operation, several processes that die, a ledger that fails at any call, effects
// that end in any way, late or never: the work is done once at most, what is told is
// true and in the ledger, and what is final stays.
func TestOneOperationWhateverHappens(t *testing.T) {
	dir, n, start := t.TempDir(), 0, time.Now()
	rapid.Check(t, func(rt *rapid.T) {
		if n++; time.Since(start) > 20*time.Second { // leases are real time
			return
		}
		m := &machine{wrong: make(chan string, 1), world: &world{
			dice: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "dice"), 0)), gate: make(chan struct{}),
			idempotent: rapid.Bool().Draw(rt, "idempotent"),
		}}
		m.f = &fixture{t: t, path: filepath.Join(dir, fmt.Sprint(n, ".db"))}
		m.f.clock.Store(1790035200)
		var err error
		m.clean, err = sqlite.Open(m.f.path, &sqlite.Options{Backend: "app", Clock: func() time.Time { return time.Unix(m.f.clock.Load(), 0) }})
		if err != nil {
			rt.Fatal(err)
		}
		defer m.clean.Close()
		for i := range m.guards {
			m.start(i)
		}
		defer func() { m.wake(); m.calls.Wait() }()
		who := rapid.IntRange(0, len(m.guards)-1)
		call := func(rt *rapid.T) { m.call(who.Draw(rt, "who")) }
		rt.Repeat(map[string]func(*rapid.T){
			"call": call, "call again": call, "and again": call,
			"status": func(rt *rapid.T) { m.look(who.Draw(rt, "who"), "get_operation_status") },
			"fence":  func(rt *rapid.T) { m.look(who.Draw(rt, "who"), "fence_operation") },
			"recover": func(rt *rapid.T) {
				m.guards[who.Draw(rt, "who")].Recover(context.Background(), nil)
			},
			"wake":  func(*rapid.T) { m.wake() },
			"lease": func(*rapid.T) { time.Sleep(70 * time.Millisecond) },
			"die": func(rt *rapid.T) {
				i := who.Draw(rt, "who")
				m.stores[i].dead.Store(true)
				m.start(i)
			},
			"later": func(*rapid.T) {
				m.mu.Lock()
				m.unsure = m.unsure || m.running > 0
				m.mu.Unlock()
				m.f.clock.Add(120)
			},
			"": m.check,
		})
		m.end(rt)
	})
}
