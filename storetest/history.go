package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"mcpreplay"
)

// register is one operation as the model holds it: what a caller can see of it.
type register struct {
	state    mcpreplay.State
	owner    string
	revision int64
}

type call struct {
	kind     string // "begin", "fence", "apply", "get" or "finish"
	id       string
	owner    string
	revision int64 // of finish
}

type reply struct {
	register
	won bool // started, or the change was made
}

// model is one operation without concurrency: the first write decides, and a
// finish needs the revision it was decided on.
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byID := map[string][]porcupine.Operation{}
		for _, op := range history {
			id := op.Input.(call).id
			byID[id] = append(byID[id], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byID {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		now, in, out := state.(register), input.(call), output.(reply)
		switch in.kind {
		case "get":
			return out.register == now, now
		case "finish":
			legal := now.state == mcpreplay.StateInProgress && now.revision == in.revision
			if !legal {
				return !out.won, now
			}
			return out.won && out.state == mcpreplay.StateApplied && out.owner == now.owner && out.revision > now.revision, out.register
		}
		if now.state != mcpreplay.StateNone {
			return !out.won && out.register == now, now
		}
		want := map[string]mcpreplay.State{
			"begin": mcpreplay.StateInProgress, "fence": mcpreplay.StateNotApplied, "apply": mcpreplay.StateApplied,
		}[in.kind]
		// An atomic effect has no owner; who wrote it shows in its reference.
		return out.won && out.state == want && out.owner == in.owner, out.register
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// concurrently lets clients call at random, and checks that all they saw fits
// one order of events.
func concurrently(t *testing.T, kinds []string, do func(c call) (mcpreplay.Record, bool, error)) {
	t.Helper()
	const clients, operations, rounds = 6, 16, 5
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		history []porcupine.Operation
		start   = time.Now()
	)
	for client := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 1))
			seen := map[string]int64{}
			for i := range operations * rounds {
				c := call{
					kind:  kinds[rng.IntN(len(kinds))],
					id:    fmt.Sprintf("op-history-%d", i/rounds),
					owner: fmt.Sprintf("client-%d-%d", client, i),
				}
				c.revision = seen[c.id]
				called := time.Since(start)
				rec, won, err := do(c)
				returned := time.Since(start)
				if err != nil {
					t.Errorf("%+v: %v", c, err)
					return
				}
				out := reply{register{rec.State, rec.Owner + rec.Effect, rec.Revision}, won}
				if rec.Revision > 0 {
					seen[c.id] = rec.Revision
				}
				mu.Lock()
				history = append(history, porcupine.Operation{
					ClientId: client, Input: c, Output: out, Call: int64(called), Return: int64(returned),
				})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got := porcupine.CheckOperationsTimeout(model, history, time.Minute); got != porcupine.Ok {
		t.Errorf("the history of %d calls is not linearizable: %v", len(history), got)
	}
}

// perform makes one call of the model on a store.
func perform(t *testing.T, s mcpreplay.Store, c call) (rec mcpreplay.Record, won bool, err error) {
	switch c.kind {
	case "get":
		rec, err = s.Get(t.Context(), key(c.id))
		if errors.Is(err, mcpreplay.ErrNotFound) {
			err = nil
		}
		return rec, false, err
	case "finish":
		change := finish(mcpreplay.Record{Operation: operation(c.id), Revision: c.revision}, mcpreplay.StateApplied)
		rec, err = s.Advance(t.Context(), change)
		if errors.Is(err, mcpreplay.ErrNotFound) || errors.Is(err, mcpreplay.ErrStale) || isTransition(err) {
			return mcpreplay.Record{}, false, nil
		}
		return rec, err == nil, err
	}
	first := claim()
	if c.kind == "fence" {
		first = fence()
	}
	first.Owner = c.owner
	return s.Begin(t.Context(), operation(c.id), first)
}

func testHistory(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	concurrently(t, []string{"begin", "begin", "fence", "get", "get", "finish", "finish"}, func(c call) (mcpreplay.Record, bool, error) {
		return perform(t, store, c)
	})
}

// testBeside proves a ledger over and over while others write to it: what they
// are doing is no finding.
func testBeside(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for writer := range 3 {
		wg.Go(func() {
			for i := range 8 {
				op := operation(fmt.Sprintf("op-beside-%d-%d", writer, i))
				rec, _, err := store.Begin(t.Context(), op, claim())
				for step := 0; err == nil && step < 3; step++ {
					rec, err = store.Advance(t.Context(), move(rec, mcpreplay.EventStep, mcpreplay.StateInProgress))
				}
				if err == nil {
					_, err = store.Advance(t.Context(), finish(rec, mcpreplay.StateApplied))
				}
				if err != nil {
					t.Errorf("%s: %v", op.ID, err)
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(done)
	}()
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
		}
		verify(t, store, "")
	}
}
