package chaos_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"mcpreplay"

	"github.com/anishathalye/porcupine"
)

// What a client can see of one reply.
const (
	fresh    = "fresh"    // done now
	replayed = "replayed" // the stored result
	told     = "told"     // status tells the outcome
	refused  = "refused"  // this attempt did nothing
	failed   = "failed"   // the effect was rolled back: nothing was there before, and nothing is
	nothing  = "nothing"  // status knows of no outcome
	lost     = "lost"     // no reply, or one that says that nobody knows
)

// seen is one reply, and the outcome that it tells.
type seen struct {
	what   string
	state  mcpreplay.State
	result string
}

// register is what there is of an operation.
type register struct {
	begun  bool // an attempt of which nobody knows may have done it
	state  mcpreplay.State
	result string
}

// model is an operation without concurrency, by what a client may rely on.
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byID := map[string][]porcupine.Operation{}
		for _, op := range history {
			byID[op.Input.(string)] = append(byID[op.Input.(string)], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byID {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return register{} },
	Step: func(state, _, output any) (bool, any) {
		now, out := state.(register), output.(seen)
		outcome := register{true, out.state, out.result}
		switch out.what {
		case fresh:
			return now.state == "", outcome
		case replayed, told:
			return now.state != "" && now == outcome || now.state == "" && now.begun, outcome
		case failed, nothing:
			return now.state == "", now
		case lost:
			now.begun = true
		}
		return true, now
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %+v", input, output) },
}

// history is what all clients saw.
type history struct {
	start time.Time
	mu    sync.Mutex
	all   []porcupine.Operation
	count map[string]int
}

// add has what a client saw of an operation. What got no reply may still be on its way.
func (h *history) add(client int, operation string, called time.Duration, s seen) {
	returned := int64(time.Since(h.start))
	if s.what == lost {
		returned = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, porcupine.Operation{ClientId: client, Input: operation, Output: s, Call: int64(called), Return: returned})
	h.count[s.what]++
}

func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, part := range model.Partition(h.all) {
		if got := porcupine.CheckOperationsTimeout(model, part, time.Minute); got != porcupine.Ok {
			slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			t.Errorf("the history of an operation is not linearizable: %v", got)
			for _, op := range part {
				t.Logf("%12v to %12v, client %d: %s", time.Duration(op.Call), time.Duration(op.Return), op.ClientId, model.DescribeOperation(op.Input, op.Output))
			}
		}
	}
	t.Logf("%d replies: %v", len(h.all), h.count)
}

// reply is what a call shows.
func reply(v mcpreplay.Verdict, result json.RawMessage) seen {
	var r struct {
		StructuredContent json.RawMessage
		Meta              struct {
			Operation struct{ Replayed bool } `json:"mcpreplay/operation"`
		} `json:"_meta"`
	}
	switch {
	case v.Kind == mcpreplay.VerdictRefused || v.Kind == mcpreplay.VerdictNotDispatched:
		return seen{what: refused}
	case v.Kind != mcpreplay.VerdictResult || json.Unmarshal(result, &r) != nil:
		return seen{what: lost}
	case !v.State.Final():
		return seen{what: failed}
	case r.Meta.Operation.Replayed:
		return seen{replayed, v.State, said(v.State, r.StructuredContent)}
	}
	return seen{fresh, v.State, said(v.State, r.StructuredContent)}
}

// said is the result of what was done. That nothing was done is told in words.
func said(state mcpreplay.State, result json.RawMessage) string {
	if state != mcpreplay.StateApplied {
		return ""
	}
	return string(result)
}

// status is what get_operation_status shows.
func status(v mcpreplay.Verdict, result json.RawMessage) seen {
	var r struct {
		StructuredContent struct {
			State        mcpreplay.State
			StoredResult struct{ StructuredContent json.RawMessage }
		}
	}
	switch {
	case v.Kind != mcpreplay.VerdictResult || json.Unmarshal(result, &r) != nil:
		return seen{what: refused}
	case r.StructuredContent.State.Final():
		return seen{told, r.StructuredContent.State, said(r.StructuredContent.State, r.StructuredContent.StoredResult.StructuredContent)}
	}
	return seen{what: nothing}
}
