package storetest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
	"mcpreplay/storetest"
)

type (
	tx      = *sqlite.Tx
	applier = mcpreplay.Applier[tx]
	effect  = func(context.Context, tx) (mcpreplay.Outcome, error)
	step    = func(context.Context, tx, *mcpreplay.Change) error
	look    = func(context.Context, tx, mcpreplay.Record) error
)

// broken is a store with some methods that break the contract.
type broken struct {
	applier
	info    func(context.Context) (mcpreplay.Info, error)
	get     func(context.Context, mcpreplay.Key) (mcpreplay.Record, error)
	events  func(context.Context, mcpreplay.Key) ([]mcpreplay.Event, error)
	list    func(context.Context, mcpreplay.Filter) ([]mcpreplay.Record, error)
	begin   func(context.Context, mcpreplay.Operation, mcpreplay.Change) (mcpreplay.Record, bool, error)
	advance func(context.Context, mcpreplay.Change) (mcpreplay.Record, error)
	apply   func(context.Context, mcpreplay.Operation, effect) (mcpreplay.Record, bool, error)
	step    func(context.Context, mcpreplay.Change, step) (mcpreplay.Record, error)
	view    func(context.Context, mcpreplay.Key, look) (mcpreplay.Record, error)
	sweep   func(context.Context, mcpreplay.SweepPolicy) (mcpreplay.Swept, error)
	close   func() error
}

func newBroken(s applier) *broken {
	return &broken{applier: s, info: s.Info, get: s.Get, events: s.Events, list: s.List, begin: s.Begin, advance: s.Advance,
		apply: s.Apply, step: s.ApplyStep, view: s.View, sweep: s.Sweep, close: s.Close}
}

func (b *broken) Info(ctx context.Context) (mcpreplay.Info, error) { return b.info(ctx) }

func (b *broken) Get(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
	return b.get(ctx, key)
}

func (b *broken) Events(ctx context.Context, key mcpreplay.Key) ([]mcpreplay.Event, error) {
	return b.events(ctx, key)
}

func (b *broken) List(ctx context.Context, f mcpreplay.Filter) ([]mcpreplay.Record, error) {
	return b.list(ctx, f)
}

func (b *broken) Begin(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
	return b.begin(ctx, op, c)
}

func (b *broken) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	return b.advance(ctx, c)
}

func (b *broken) Apply(ctx context.Context, op mcpreplay.Operation, e effect) (mcpreplay.Record, bool, error) {
	return b.apply(ctx, op, e)
}

func (b *broken) ApplyStep(ctx context.Context, c mcpreplay.Change, s step) (mcpreplay.Record, error) {
	return b.step(ctx, c, s)
}

func (b *broken) View(ctx context.Context, key mcpreplay.Key, l look) (mcpreplay.Record, error) {
	return b.view(ctx, key, l)
}

func (b *broken) Sweep(ctx context.Context, p mcpreplay.SweepPolicy) (mcpreplay.Swept, error) {
	return b.sweep(ctx, p)
}

func (b *broken) Close() error { return b.close() }

// breaks are ways to break a store, each with the parts of the suite that must
// find it. Every part finds one.
var breaks = []struct {
	name  string
	parts []string
	with  func(s applier, b *broken)
}{
	{
		name: "begin overwrites",
		parts: []string{"begin returns a known operation as it is", "a fence is final and idempotent", "one of many racers starts",
			"histories are linearizable"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				rec, started, err := s.Begin(ctx, op, c)
				if err == nil && !started {
					rec.Operation, started = op, true
				}
				return rec, started, err
			}
		},
	},
	{
		name:  "begin takes any event",
		parts: []string{"every first event is taken or refused as the table says"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				if c.To == mcpreplay.StateApplied && c.Event.Kind == "nonsense" {
					c.Event.Kind = mcpreplay.EventApply
				}
				return s.Begin(ctx, op, c)
			}
		},
	},
	{
		name:  "times are truncated to seconds",
		parts: []string{"begin records everything it was given", "begin keeps nil, empty and precision apart"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				op.Authority = op.Authority.Truncate(time.Second)
				op.Retention = op.Retention.Truncate(time.Second)
				return s.Begin(ctx, op, c)
			}
		},
	},
	{
		name:  "nil and empty are the same",
		parts: []string{"begin keeps nil, empty and precision apart"},
		with: func(s applier, b *broken) {
			b.get = func(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
				rec, err := s.Get(ctx, key)
				if len(rec.Digests.Fingerprint) == 0 {
					rec.Digests.Fingerprint = []byte{}
				}
				return rec, err
			}
		},
	},
	{
		name:  "authority is not looked at",
		parts: []string{"expired authority writes nothing but a fence", "an effect is refused before it runs"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				op.Authority = time.Time{}
				return s.Begin(ctx, op, c)
			}
			b.apply = func(ctx context.Context, op mcpreplay.Operation, e effect) (mcpreplay.Record, bool, error) {
				op.Authority = time.Time{}
				return s.Apply(ctx, op, e)
			}
		},
	},
	{
		name:  "a foreign record is shown",
		parts: []string{"a foreign principal learns nothing"},
		with: func(s applier, b *broken) {
			b.get = func(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
				rec, err := s.Get(ctx, key)
				if recs, _ := s.List(ctx, mcpreplay.Filter{ID: key.ID}); errors.Is(err, mcpreplay.ErrNotFound) && len(recs) == 1 {
					return recs[0], nil
				}
				return rec, err
			}
		},
	},
	{
		name:  "the revision is not compared",
		parts: []string{"advance compares the revision", "a failed step leaves nothing"},
		with: func(s applier, b *broken) {
			current := func(ctx context.Context, c mcpreplay.Change) mcpreplay.Change {
				if rec, err := s.Get(ctx, c.Key); err == nil {
					c.Revision = rec.Revision
				}
				return c
			}
			b.advance = func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
				return s.Advance(ctx, current(ctx, c))
			}
			b.step = func(ctx context.Context, c mcpreplay.Change, e step) (mcpreplay.Record, error) {
				return s.ApplyStep(ctx, current(ctx, c), e)
			}
		},
	},
	{
		name:  "what cannot be is passed over",
		parts: []string{"every transition is made or refused as the table says", "a final record takes only what came after"},
		with: func(s applier, b *broken) {
			b.advance = func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
				rec, err := s.Advance(ctx, c)
				if errors.As(err, new(*mcpreplay.TransitionError)) {
					return s.Get(ctx, c.Key)
				}
				return rec, err
			}
		},
	},
	{
		name:  "a change without an event is a step",
		parts: []string{"a renewal keeps a claim alive and is no event", "a change that contradicts itself is refused"},
		with: func(s applier, b *broken) {
			b.advance = func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
				if c.Event.Kind == "" {
					c.Event.Kind = mcpreplay.EventStep
				}
				return s.Advance(ctx, c)
			}
		},
	},
	{
		name:  "the first owner stays",
		parts: []string{"rounds of questions end in one outcome"},
		with: func(s applier, b *broken) {
			b.advance = func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
				c.Owner = ""
				return s.Advance(ctx, c)
			}
		},
	},
	{
		name:  "an owner that is live is taken for gone",
		parts: []string{"a record is taken only from an owner that is gone"},
		with: func(s applier, b *broken) {
			b.advance = func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
				rec, err := s.Advance(ctx, c)
				if c.Event.Kind == mcpreplay.EventTakeover && errors.Is(err, mcpreplay.ErrStale) {
					if rec, err := s.Advance(ctx, mcpreplay.Change{Key: c.Key, Revision: c.Revision, Lease: -1}); err == nil {
						c.Revision = rec.Revision
						return s.Advance(ctx, c)
					}
				}
				return rec, err
			}
		},
	},
	{
		name:  "what is released is free",
		parts: []string{"a released claim may be claimed again"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				rec, started, err := s.Begin(ctx, op, c)
				if err == nil && rec.State == mcpreplay.StateReleased {
					c.Key, c.Revision, c.Owner = rec.Key, rec.Revision, "owner-2"
					rec, err = s.Advance(ctx, c)
					return rec, err == nil, err
				}
				return rec, started, err
			}
		},
	},
	{
		name:  "a right to write that ended is not asked for again",
		parts: []string{"the right to write is asked for each time"},
		with: func(s applier, b *broken) {
			b.advance = func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
				rec, err := s.Advance(ctx, c)
				if errors.Is(err, mcpreplay.ErrExpired) {
					return s.Get(ctx, c.Key)
				}
				return rec, err
			}
		},
	},
	{
		name:  "what was forgotten may be done again",
		parts: []string{"a sweep forgets only what may be forgotten", "nobody does again what is being forgotten"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				rec, started, err := s.Begin(ctx, op, c)
				if errors.Is(err, mcpreplay.ErrForgotten) {
					op.ID, op.Authority = "op-"+rand.Text(), time.Time{}
					return s.Begin(ctx, op, c)
				}
				return rec, started, err
			}
		},
	},
	{
		name:  "a sweep forgets without grace",
		parts: []string{"a sweep forgets only what may be forgotten"},
		with: func(s applier, b *broken) {
			b.sweep = func(ctx context.Context, p mcpreplay.SweepPolicy) (mcpreplay.Swept, error) {
				if p.Forget > 0 {
					p.Grace = 0
				}
				return s.Sweep(ctx, p)
			}
		},
	},
	{
		name:  "deadlines are forgotten",
		parts: []string{"a claimed effect has a deadline"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				c.Deadline = 0
				return s.Begin(ctx, op, c)
			}
		},
	},
	{
		name:  "acknowledgements are forgotten",
		parts: []string{"an acknowledgement is kept", "a sweep drops bytes and nothing else"},
		with: func(s applier, b *broken) {
			b.get = func(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
				rec, err := s.Get(ctx, key)
				rec.Acknowledged = false
				return rec, err
			}
			b.sweep = func(ctx context.Context, p mcpreplay.SweepPolicy) (mcpreplay.Swept, error) {
				p.Acknowledged = false
				return s.Sweep(ctx, p)
			}
		},
	},
	{
		name:  "a result without bytes is an empty one",
		parts: []string{"a result can be recorded without its bytes"},
		with: func(s applier, b *broken) {
			b.advance = func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
				if c.Result != nil && c.Result.Body == nil {
					c.Result = &mcpreplay.Result{Body: []byte{}}
				}
				return s.Advance(ctx, c)
			}
		},
	},
	{
		name:  "events come newest first",
		parts: []string{"steps are events"},
		with: func(s applier, b *broken) {
			b.events = func(ctx context.Context, key mcpreplay.Key) ([]mcpreplay.Event, error) {
				evs, err := s.Events(ctx, key)
				slices.Reverse(evs)
				return evs, err
			}
		},
	},
	{
		name:  "records come oldest first",
		parts: []string{"list filters", "list pages"},
		with: func(s applier, b *broken) {
			b.list = func(ctx context.Context, f mcpreplay.Filter) ([]mcpreplay.Record, error) {
				recs, err := s.List(ctx, f)
				slices.Reverse(recs)
				return recs, err
			}
		},
	},
	{
		name:  "the ledger has no time",
		parts: []string{"an empty ledger knows itself"},
		with: func(s applier, b *broken) {
			b.info = func(ctx context.Context) (mcpreplay.Info, error) {
				info, err := s.Info(ctx)
				info.Time = time.Time{}
				return info, err
			}
		},
	},
	{
		name:  "the ledger is ahead of its events",
		parts: []string{"time and positions only grow", "a ledger is proved while others write"},
		with: func(s applier, b *broken) {
			b.info = func(ctx context.Context) (mcpreplay.Info, error) {
				info, err := s.Info(ctx)
				info.Position++
				return info, err
			}
		},
	},
	{
		name:  "a record is read once",
		parts: []string{"histories are linearizable", "histories with effects are linearizable"},
		with: func(s applier, b *broken) {
			var known sync.Map
			b.get = func(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
				if rec, ok := known.Load(key); ok {
					return rec.(mcpreplay.Record), nil
				}
				rec, err := s.Get(ctx, key)
				if err == nil {
					known.Store(key, rec)
				}
				return rec, err
			}
		},
	},
	{
		name:  "nobody is heard to go",
		parts: []string{"a cancelled caller writes nothing"},
		with: func(s applier, b *broken) {
			b.begin = func(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
				return s.Begin(context.WithoutCancel(ctx), op, c)
			}
		},
	},
	{
		name:  "close does nothing",
		parts: []string{"a closed store refuses"},
		with:  func(_ applier, b *broken) { b.close = func() error { return nil } },
	},
	{
		name: "apply records before the effect",
		parts: []string{"record, effect and result commit together", "an effect sees its own writes and nobody else does",
			"a failed effect leaves nothing and can be tried again"},
		with: func(s applier, b *broken) {
			b.apply = func(ctx context.Context, op mcpreplay.Operation, e effect) (mcpreplay.Record, bool, error) {
				rec, started, err := s.Begin(ctx, op, mcpreplay.Change{To: mcpreplay.StateInProgress, Event: mcpreplay.Event{Kind: mcpreplay.EventClaim}})
				if err != nil || !started {
					return rec, started, err
				}
				c := mcpreplay.Change{Key: op.Key, Revision: rec.Revision, To: mcpreplay.StateApplied, Event: mcpreplay.Event{Kind: mcpreplay.EventFinish}}
				rec, err = s.ApplyStep(ctx, c, func(ctx context.Context, tx tx, c *mcpreplay.Change) error {
					out, err := e(ctx, tx)
					c.Result, c.Effect = &out.Result, out.Effect
					return err
				})
				return rec, err == nil, err
			}
		},
	},
	{
		name:  "a known operation runs again",
		parts: []string{"a known operation has no second effect", "one of many racers has the effect"},
		with: func(s applier, b *broken) {
			b.apply = func(ctx context.Context, op mcpreplay.Operation, e effect) (mcpreplay.Record, bool, error) {
				rec, started, err := s.Apply(ctx, op, e)
				if err == nil && !started {
					again := op
					again.ID, again.Authority = op.ID+"-again", time.Time{}
					_, _, err = s.Apply(ctx, again, e)
				}
				return rec, started, err
			}
		},
	},
	{
		name:  "an effect ends with its caller",
		parts: []string{"a caller that goes does not stop an effect"},
		with: func(s applier, b *broken) {
			b.apply = func(ctx context.Context, op mcpreplay.Operation, e effect) (mcpreplay.Record, bool, error) {
				return s.Apply(ctx, op, func(_ context.Context, tx tx) (mcpreplay.Outcome, error) { return e(ctx, tx) })
			}
		},
	},
	{
		name:  "what a step says of itself is lost",
		parts: []string{"a step commits with its event"},
		with: func(s applier, b *broken) {
			b.step = func(ctx context.Context, c mcpreplay.Change, e step) (mcpreplay.Record, error) {
				return s.ApplyStep(ctx, c, func(ctx context.Context, tx tx, c *mcpreplay.Change) error {
					lost := *c
					return e(ctx, tx, &lost)
				})
			}
		},
	},
	{
		name:  "a view reads twice",
		parts: []string{"a view is one snapshot"},
		with: func(s applier, b *broken) {
			b.view = func(ctx context.Context, key mcpreplay.Key, l look) (mcpreplay.Record, error) {
				if rec, err := s.View(ctx, key, l); err != nil {
					return rec, err
				}
				return s.Get(ctx, key)
			}
		},
	},
	{
		name:  "a view always succeeds",
		parts: []string{"a view writes nothing"},
		with: func(s applier, b *broken) {
			b.view = func(ctx context.Context, key mcpreplay.Key, l look) (mcpreplay.Record, error) {
				rec, _ := s.View(ctx, key, l)
				return rec, nil
			}
		},
	},
}

// chosen names the break that this process is to run the suite with.
const chosen = "STORETEST_BREAK"

// TestSuiteFindsWhatIsBroken runs the suite in processes of their own, so that it
// may fail there: with nothing broken it passes, and what is broken is found by
// the parts that are to find it.
func TestSuiteFindsWhatIsBroken(t *testing.T) {
	if name, ok := os.LookupEnv(chosen); ok {
		runSuite(t, name)
		return
	}
	t.Parallel()
	parts := map[string]bool{} // and whether anything is found by it
	code, out := runChild(t, "", ".")
	for _, m := range regexp.MustCompile(`--- PASS: TestSuiteFindsWhatIsBroken/(\S+)`).FindAllStringSubmatch(out, -1) {
		parts[m[1]] = false
	}
	if code != 0 || len(parts) == 0 {
		t.Fatalf("with nothing broken %d parts pass, exit code %d\n%s", len(parts), code, out)
	}
	for _, tt := range breaks {
		var patterns []string
		for _, part := range tt.parts {
			part = strings.ReplaceAll(part, " ", "_")
			parts[part] = true
			patterns = append(patterns, regexp.QuoteMeta(part))
		}
		t.Run(tt.name, func(t *testing.T) {
			code, out := runChild(t, tt.name, "^("+strings.Join(patterns, "|")+")$")
			for _, part := range patterns {
				if !regexp.MustCompile(`--- FAIL: TestSuiteFindsWhatIsBroken/` + part + ` `).MatchString(out) {
					t.Errorf("not found by %s", part)
				}
			}
			if code != 1 || strings.Contains(out, "\npanic: ") || t.Failed() {
				t.Errorf("exit code %d, want 1, and every part to fail\n%s", code, out)
			}
		})
	}
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		if !parts[part] {
			t.Errorf("no break shows that %s finds anything", part)
		}
	}
}

// runChild runs the parts that match with one break, or with none.
func runChild(t *testing.T, name, parts string) (code int, out string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.v", "-test.timeout=1m", "-test.run=^TestSuiteFindsWhatIsBroken$/"+parts)
	cmd.Env = append(os.Environ(), chosen+"="+name)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), text.String()
}

func runSuite(t *testing.T, name string) {
	with := func(applier, *broken) {}
	for _, b := range breaks {
		if b.name == name {
			with = b.with
		}
	}
	open := func(t *testing.T) applier {
		s := openStore(t)
		b := newBroken(s)
		with(s, b)
		return b
	}
	storetest.Run(t, func(t *testing.T) mcpreplay.Store { return open(t) })
	storetest.RunApplier(t, open, storetest.Kit[tx]{
		Write: func(ctx context.Context, tx tx, label string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO item (label) VALUES (?)`, label)
			return err
		},
		Count: func(ctx context.Context, tx tx, label string) (n int, err error) {
			err = tx.QueryRowContext(ctx, `SELECT count(*) FROM item WHERE label = ?`, label).Scan(&n)
			return n, err
		},
	})
}

func openStore(t *testing.T) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(filepath.Join(t.TempDir(), "ledger.db"), &sqlite.Options{Backend: "broken"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close(): %v", err)
		}
	})
	err = s.Setup(t.Context(), func(ctx context.Context, tx tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE item (label TEXT NOT NULL) STRICT`)
		return err
	})
	if err != nil {
		t.Fatal(fmt.Errorf("the application's table: %w", err))
	}
	return s
}
