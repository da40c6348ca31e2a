package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"mcpreplay"
)

// Kit is what a test needs to know of an application's table.
type Kit[Tx any] struct {
	Write func(ctx context.Context, tx Tx, label string) error        // adds a row
	Count func(ctx context.Context, tx Tx, label string) (int, error) // of rows with this label
}

// RunApplier tests what a concrete store can do beyond Run. open is as for Run,
// and the kit's table is there and empty.
func RunApplier[Tx any](t *testing.T, open func(t *testing.T) mcpreplay.Applier[Tx], kit Kit[Tx]) {
	a := applier[Tx]{suite: suite[mcpreplay.Applier[Tx]]{open: open}, kit: kit}
	for _, tt := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"record, effect and result commit together", a.testApply},
		{"an effect sees its own writes and nobody else does", a.testIsolation},
		{"a known operation has no second effect", a.testKnown},
		{"a failed effect leaves nothing and can be tried again", a.testFailure},
		{"an effect is refused before it runs", a.testRefused},
		{"a caller that goes does not stop an effect", a.testDetached},
		{"one of many racers has the effect", a.testRace},
		{"a step commits with its event", a.testStep},
		{"a failed step leaves nothing", a.testStepFailure},
		{"a view is one snapshot", a.testView},
		{"a view writes nothing", a.testViewReads},
		{"histories with effects are linearizable", a.testHistory},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t)
		})
	}
}

type applier[Tx any] struct {
	suite suite[mcpreplay.Applier[Tx]]
	kit   Kit[Tx]
}

// write is an effect: one row with the label, and a result.
func (a *applier[Tx]) write(label string) func(context.Context, Tx) (mcpreplay.Outcome, error) {
	return func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
		return mcpreplay.Outcome{Result: mcpreplay.Result{Body: []byte(`{"ok":true}`)}, Effect: "row/" + label}, a.kit.Write(ctx, tx, label)
	}
}

// rows counts rows with the label through a view of some record.
func (a *applier[Tx]) rows(t *testing.T, s mcpreplay.Applier[Tx], label string) (n int) {
	t.Helper()
	anchor := operation("op-anchor")
	if _, _, err := s.Begin(t.Context(), anchor, fence()); err != nil {
		t.Fatalf("Begin(): %v", err)
	}
	_, err := s.View(t.Context(), anchor.Key, func(ctx context.Context, tx Tx, _ mcpreplay.Record) (err error) {
		n, err = a.kit.Count(ctx, tx, label)
		return err
	})
	if err != nil {
		t.Fatalf("View(): %v", err)
	}
	return n
}

func (a *applier[Tx]) want(t *testing.T, s mcpreplay.Applier[Tx], label string, want int) {
	t.Helper()
	if got := a.rows(t, s, label); got != want {
		t.Errorf("%d rows of %s, want %d", got, label, want)
	}
}

func (a *applier[Tx]) testApply(t *testing.T) {
	s := a.suite.store(t)
	op := operation("op-apply")
	op.Authority = time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)
	rec, started, err := s.Apply(t.Context(), op, a.write("x"))
	if err != nil || !started {
		t.Fatalf("Apply() = started %v, %v; want true, nil", started, err)
	}
	body := `{"ok":true}`
	want := mcpreplay.Record{
		Operation: op, State: mcpreplay.StateApplied, Attempt: 1, Effect: "row/x",
		Result:   &mcpreplay.Result{Body: []byte(body), Digest: digest(body), Size: int64(len(body))},
		Revision: rec.Revision, Seq: rec.Seq, Position: rec.Position,
		CreatedAt: rec.CreatedAt, UpdatedAt: rec.CreatedAt, Ledger: rec.Ledger,
	}
	same(t, "Apply()", rec, want)
	sameRecord(t, "Get()", get(t, s, op.Key), rec)
	same(t, "Events()", events(t, s, op.Key), []mcpreplay.Event{{
		Position: rec.Position, Kind: mcpreplay.EventApply, State: mcpreplay.StateApplied, Revision: rec.Revision,
		Actor: "alice", At: rec.CreatedAt,
	}})
	a.want(t, s, "x", 1)
}

func (a *applier[Tx]) testIsolation(t *testing.T) {
	s := a.suite.store(t)
	rec, _, err := s.Apply(t.Context(), operation("op-isolated"), func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
		for want := 1; want <= 2; want++ {
			if err := a.kit.Write(ctx, tx, "mine"); err != nil {
				return mcpreplay.Outcome{}, err
			}
			if n, err := a.kit.Count(ctx, tx, "mine"); err != nil || n != want {
				t.Errorf("the effect sees %d rows, %v; want %d", n, err, want)
			}
		}
		// Another caller, not the effect: it has a context of its own.
		_, err := s.Get(t.Context(), key("op-isolated"))
		matches(t, "Get() from outside", err, mcpreplay.ErrNotFound)
		return mcpreplay.Outcome{Result: mcpreplay.Result{IsError: true}}, nil
	})
	if err != nil {
		t.Fatalf("Apply(): %v", err)
	}
	same(t, "the result", rec.Result, &mcpreplay.Result{Body: []byte{}, IsError: true, Digest: digest(""), Size: 0})
	a.want(t, s, "mine", 2)
}

func (a *applier[Tx]) testKnown(t *testing.T) {
	s := a.suite.store(t)
	if _, _, err := s.Apply(t.Context(), operation("op-known"), a.write("once")); err != nil {
		t.Fatal(err)
	}
	claimed := begin(t, s, operation("op-claimed"), claim())
	for _, k := range []mcpreplay.Key{key("op-known"), claimed.Key} {
		check := unchanged(t, s, k)
		other := operation(k.ID)
		other.Tool, other.Authority = "other", time.Unix(1, 0)
		rec, started, err := s.Apply(t.Context(), other, a.write("once"))
		if started || err != nil {
			t.Errorf("Apply() = started %v, %v; want false, nil", started, err)
		}
		sameRecord(t, "Apply()", rec, get(t, s, k))
		check()
	}
	a.want(t, s, "once", 1)
}

func (a *applier[Tx]) testFailure(t *testing.T) {
	s := a.suite.store(t)
	cause := errors.New("no such project")
	a.rows(t, s, "") // the anchor is there before positions are compared
	before := position(t, s)
	for _, tt := range []struct {
		name  string
		panic any
		err   error
	}{
		{"error", nil, cause},
		{"panic", "boom", nil},
		{"panic with an error", cause, nil},
	} {
		rec, started, err := s.Apply(t.Context(), operation("op-fails"), func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
			out, err := a.write("x")(ctx, tx)
			if err != nil {
				return out, err
			}
			if tt.panic != nil {
				panic(tt.panic)
			}
			return out, tt.err
		})
		var failed *mcpreplay.EffectError
		if !errors.As(err, &failed) || failed.Panic != (tt.panic != nil) || tt.err != nil && !errors.Is(err, tt.err) {
			t.Errorf("%s: Apply() = %v, want an *EffectError of it", tt.name, err)
		}
		for _, sentinel := range []error{mcpreplay.ErrUnknown, mcpreplay.ErrUnavailable} {
			if errors.Is(err, sentinel) {
				t.Errorf("%s: Apply() = %v, which matches %v", tt.name, err, sentinel)
			}
		}
		same(t, tt.name, rec, mcpreplay.Record{})
		if started {
			t.Errorf("%s: Apply() started", tt.name)
		}
		nothing(t, s, key("op-fails"), before)
		a.want(t, s, "x", 0)
	}
	if _, started, err := s.Apply(t.Context(), operation("op-fails"), a.write("x")); err != nil || !started {
		t.Errorf("Apply() again = started %v, %v; want true, nil", started, err)
	}
	a.want(t, s, "x", 1)
}

func (a *applier[Tx]) testRefused(t *testing.T) {
	s := a.suite.store(t)
	begin(t, s, operation("op-taken"), fence())
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	foreign, late := operation("op-taken"), operation("op-late")
	foreign.Principal, late.Authority = "mallory", info.Time
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		ctx  context.Context
		op   mcpreplay.Operation
		want error
	}{
		{t.Context(), foreign, mcpreplay.ErrConflict},
		{t.Context(), late, mcpreplay.ErrExpired},
		{cancelled, operation("op-cancelled"), mcpreplay.ErrUnavailable},
	} {
		rec, started, err := s.Apply(tt.ctx, tt.op, func(context.Context, Tx) (mcpreplay.Outcome, error) {
			t.Errorf("the effect of %s ran", tt.op.ID)
			return mcpreplay.Outcome{}, nil
		})
		matches(t, "Apply()", err, tt.want)
		same(t, "Apply()", rec, mcpreplay.Record{})
		if started {
			t.Errorf("Apply(%s) started", tt.op.ID)
		}
		nothing(t, s, tt.op.Key, info.Position)
	}
}

func (a *applier[Tx]) testDetached(t *testing.T) {
	s := a.suite.store(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, started, err := s.Apply(ctx, operation("op-detached"), func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
		if err := a.kit.Write(ctx, tx, "one"); err != nil {
			return mcpreplay.Outcome{}, err
		}
		cancel()
		if ctx.Err() != nil {
			t.Error("the effect's context ended with the caller's")
		}
		return a.write("two")(ctx, tx)
	})
	if err != nil || !started {
		t.Errorf("Apply() = started %v, %v; want true, nil", started, err)
	}
	a.want(t, s, "one", 1)
	a.want(t, s, "two", 1)
}

func (a *applier[Tx]) testRace(t *testing.T) {
	s := a.suite.store(t)
	winners, records := race(t, func(ctx context.Context) (mcpreplay.Record, bool, error) {
		return s.Apply(ctx, operation("op-race"), a.write("raced"))
	})
	if winners != 1 {
		t.Errorf("%d racers started, want 1", winners)
	}
	for _, rec := range records[1:] {
		sameRecord(t, "a racer's record", rec, records[0])
	}
	a.want(t, s, "raced", 1)
}

func (a *applier[Tx]) testHistory(t *testing.T) {
	s := a.suite.store(t)
	concurrently(t, []string{"begin", "fence", "apply", "apply", "get", "get", "finish"}, func(c call) (mcpreplay.Record, bool, error) {
		if c.kind != "apply" {
			return perform(t, s, c)
		}
		return s.Apply(t.Context(), operation(c.id), func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
			out, err := a.write(c.id)(ctx, tx)
			out.Effect = c.owner
			return out, err
		})
	})
	for _, rec := range list(t, s, mcpreplay.Filter{}) {
		want := 0
		if evs := events(t, s, rec.Key); evs[0].Kind == mcpreplay.EventApply {
			want = 1
		}
		a.want(t, s, rec.ID, want)
	}
}
