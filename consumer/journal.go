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
// Received with the verdict unknown or reply until Settled.
type Journal interface {
	// Sending is called before a request leaves, and nothing leaves if it fails.
	// request is the JSON of the params of the tools/call as it is sent: for a
	// continuation with its request state and answers. It reports whether the
	// operation was in doubt before.
	Sending(ctx context.Context, scope mcpreplay.Scope, request []byte) (doubt bool, err error)

	// Received is called with what came back and the ledger that it names, if it
	// does. reply is the JSON of a result or of an error, and nil when nothing
	// came. The reply to a question about the status is also passed here if it
	// settles nothing; it matches no Sending.
	Received(ctx context.Context, scope mcpreplay.Scope, v mcpreplay.Verdict, reply []byte, ledger *mcpreplay.LedgerRef) error

	// Settled is called when the outcome is known for certain. result is the
	// tool result, if there is one.
	Settled(ctx context.Context, scope mcpreplay.Scope, state mcpreplay.State, result []byte, ledger *mcpreplay.LedgerRef) error
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
	settled bool
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
		if e.settled || !e.doubt && e.pending == 0 {
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
	in := Intent{Scope: scope, Tool: request.Name, Arguments: request.Arguments}
	if e.ledger != nil {
		ledger := *e.ledger
		in.Ledger = &ledger
	}
	return in, nil
}

// Sending implements Journal.
func (j *MemoryJournal) Sending(_ context.Context, scope mcpreplay.Scope, request []byte) (bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[scope]
	if e == nil {
		e = &entry{}
		j.entries[scope] = e
		j.order = append(j.order, scope)
	}
	doubt := !e.settled && (e.doubt || e.pending > 0)
	e.request = slices.Clone(request)
	e.pending++
	return doubt, nil
}

// Received implements Journal.
func (j *MemoryJournal) Received(_ context.Context, scope mcpreplay.Scope, v mcpreplay.Verdict, _ []byte, ledger *mcpreplay.LedgerRef) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[scope]
	if e == nil {
		return nil // a question about an operation of another client
	}
	e.pending = max(0, e.pending-1)
	if v.Kind == mcpreplay.VerdictUnknown || v.Kind == mcpreplay.VerdictReply {
		e.doubt = true
	}
	e.saw(ledger)
	return nil
}

// Settled implements Journal.
func (j *MemoryJournal) Settled(_ context.Context, scope mcpreplay.Scope, _ mcpreplay.State, _ []byte, ledger *mcpreplay.LedgerRef) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[scope]; e != nil {
		e.settled = true
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
