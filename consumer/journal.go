package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"mcpreplay"
)

// Journal remembers attempts. An entry is durable when a method returns nil.
// Methods may be called concurrently, and with a context that has ended.
//
// An operation is in doubt from Sending until the matching Received, and from a
// Received with the verdict unknown or reply until Settled. What was settled is
// in doubt again by a later one: a repeat need not reach who settled it. A Sending
// whose process is gone is never received: it counts like a Received with the
// verdict unknown.
//
// The ledger of an operation is the first that any method names for it, at the
// highest position named. Another one never takes its place.
type Journal interface {
	// Known is what is known of an operation: the zero Known if nothing is.
	Known(ctx context.Context, scope mcpreplay.Scope) (Known, error)

	// Sending is called before a request leaves, and nothing leaves if it fails.
	// request is the JSON of the params of the tools/call as it is sent: for a
	// continuation with its request state and answers. ledger is the one that the
	// caller knows, if he does. It returns what was known before.
	Sending(ctx context.Context, scope mcpreplay.Scope, request []byte, ledger *mcpreplay.LedgerRef) (before Known, err error)

	// Received is called once for each Sending, with what came back and the ledger
	// that it names, if it does. reply is the JSON of a result or of an error, and
	// nil when nothing came.
	Received(ctx context.Context, scope mcpreplay.Scope, v mcpreplay.Verdict, reply []byte, ledger *mcpreplay.LedgerRef) error

	// Observed is called with an observation that is believed and settles nothing.
	// reply is the JSON of the result of the status tool. It may come at any time
	// and begins and ends no doubt.
	Observed(ctx context.Context, scope mcpreplay.Scope, reply []byte, ledger *mcpreplay.LedgerRef) error

	// Settled is called when the outcome is known for certain. result is the
	// tool result, if there is one.
	Settled(ctx context.Context, scope mcpreplay.Scope, state mcpreplay.State, result []byte, ledger *mcpreplay.LedgerRef) error
}

// Known is what a journal knows of an operation.
type Known struct {
	Doubt  bool                 // see Journal
	Ledger *mcpreplay.LedgerRef // or nil
}

// MemoryJournal is a Journal that does not survive the process: what it knew of
// a lost call is lost with it.
type MemoryJournal struct {
	mu      sync.Mutex
	entries map[mcpreplay.Scope]*entry
	order   []mcpreplay.Scope
}

type entry struct {
	request []byte // of the last round
	ledger  *mcpreplay.LedgerRef
	pending int // sent and not answered
	doubt   bool
}

// NewMemoryJournal returns an empty journal.
func NewMemoryJournal() *MemoryJournal {
	return &MemoryJournal{entries: map[mcpreplay.Scope]*entry{}}
}

// Unsettled lists what is in doubt, oldest first.
func (j *MemoryJournal) Unsettled() ([]Intent, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var list []Intent
	for _, scope := range j.order {
		e := j.entries[scope]
		if !e.inDoubt() {
			continue
		}
		in, err := e.intent(scope)
		if err != nil {
			return nil, err
		}
		list = append(list, in)
	}
	return list, nil
}

// Intent is what is known of one operation. found is false if nothing is.
func (j *MemoryJournal) Intent(scope mcpreplay.Scope) (in Intent, found bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[scope]
	if e == nil {
		return Intent{}, false, nil
	}
	in, err = e.intent(scope)
	return in, err == nil, err
}

func (e *entry) intent(scope mcpreplay.Scope) (Intent, error) {
	var request struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(e.request, &request); err != nil {
		return Intent{}, fmt.Errorf("read the request of %q: %w", scope.OperationID, err)
	}
	return Intent{Scope: scope, Tool: request.Name, Arguments: request.Arguments, Ledger: e.known().Ledger}, nil
}

func (e *entry) inDoubt() bool { return e.doubt || e.pending > 0 }

func (e *entry) known() Known {
	k := Known{Doubt: e.inDoubt()}
	if e.ledger != nil {
		ledger := *e.ledger
		k.Ledger = &ledger
	}
	return k
}

// Known implements Journal.
func (j *MemoryJournal) Known(_ context.Context, scope mcpreplay.Scope) (Known, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[scope]; e != nil {
		return e.known(), nil
	}
	return Known{}, nil
}

// Sending implements Journal.
func (j *MemoryJournal) Sending(_ context.Context, scope mcpreplay.Scope, request []byte, ledger *mcpreplay.LedgerRef) (Known, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[scope]
	if e == nil {
		e = &entry{}
		j.entries[scope] = e
		j.order = append(j.order, scope)
	}
	before := e.known()
	e.request = slices.Clone(request)
	e.pending++
	e.saw(ledger)
	return before, nil
}

// Received implements Journal.
func (j *MemoryJournal) Received(_ context.Context, scope mcpreplay.Scope, v mcpreplay.Verdict, _ []byte, ledger *mcpreplay.LedgerRef) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[scope]
	if e == nil {
		return fmt.Errorf("a reply to %q, which was never sent", scope.OperationID)
	}
	e.pending = max(0, e.pending-1)
	if v.Kind == mcpreplay.VerdictUnknown || v.Kind == mcpreplay.VerdictReply {
		e.doubt = true
	}
	e.saw(ledger)
	return nil
}

// Observed implements Journal.
func (j *MemoryJournal) Observed(_ context.Context, scope mcpreplay.Scope, _ []byte, ledger *mcpreplay.LedgerRef) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[scope]; e != nil { // or it is an operation of another client
		e.saw(ledger)
	}
	return nil
}

// Settled implements Journal.
func (j *MemoryJournal) Settled(_ context.Context, scope mcpreplay.Scope, _ mcpreplay.State, _ []byte, ledger *mcpreplay.LedgerRef) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[scope]; e != nil {
		e.doubt = false
		e.saw(ledger)
	}
	return nil
}

// saw keeps the highest position of a ledger. The first ledger seen is the one
// that counts: another one is for the caller to look into.
func (e *entry) saw(ledger *mcpreplay.LedgerRef) {
	if ledger != nil && (e.ledger == nil || ledger.Follows(*e.ledger)) {
		l := *ledger
		e.ledger = &l
	}
}
