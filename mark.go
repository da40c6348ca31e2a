package mcpreplay

import "errors"

// Members of _meta on the wire.
const (
	MetaOperationID = "mcpreplay/operation-id" // of a request: the operation id, a string
	MetaOperation   = "mcpreplay/operation"    // of a result: its Mark
)

// Mark is what a guarded server writes beside a result: which operation it is
// the result of, and which ledger says so.
type Mark struct {
	OperationID string    `json:"operationId"`
	State       State     `json:"state"`
	Replayed    bool      `json:"replayed"`
	RecordedAt  string    `json:"recordedAt,omitempty"` // when it was; absent if nothing was recorded
	Ledger      LedgerRef `json:"ledger"`
}

var errMark = errors.New("the mark of the operation in _meta cannot be read")

// ReadMark reads the mark of a tool result. found is false if there is none. It
// returns an error if the result or its mark cannot be read.
func ReadMark(result []byte) (m Mark, found bool, err error) {
	o, err := readObject(result)
	if err != nil {
		return Mark{}, false, err
	}
	return o.mark()
}

func (o object) mark() (m Mark, found bool, err error) {
	if !o.has("_meta") {
		return Mark{}, false, nil
	}
	meta, ok := o.object("_meta")
	if !ok {
		return Mark{}, false, errMark
	}
	if _, found := meta[MetaOperation]; !found {
		return Mark{}, false, nil
	}
	raw, ok := meta.object(MetaOperation)
	if !ok {
		return Mark{}, false, errMark
	}
	var state string
	var okID, okState, okReplayed, okLedger bool
	m.OperationID, okID = raw.text("operationId")
	state, okState = raw.text("state")
	m.State = State(state)
	m.Replayed, okReplayed = raw.boolean("replayed")
	m.RecordedAt, _ = raw.text("recordedAt")
	m.Ledger, okLedger = raw.ledger()
	if !okID || m.OperationID == "" || !okState || !okReplayed || !okLedger {
		return Mark{}, false, errMark
	}
	return m, true, nil
}

// ledger is the member ledger, complete and plausible.
func (o object) ledger() (l LedgerRef, ok bool) {
	raw, ok := o.object("ledger")
	if !ok {
		return LedgerRef{}, false
	}
	var okInstance, okIncarnation, okPosition bool
	l.Instance, okInstance = raw.text("instance")
	l.Incarnation, okIncarnation = raw.integer("incarnation")
	l.Position, okPosition = raw.integer("position")
	if !okInstance || !okIncarnation || !okPosition || l.Instance == "" || l.Incarnation < 0 || l.Position < 0 {
		return LedgerRef{}, false
	}
	return l, true
}

// Follows reports whether l is the ledger that was seen as earlier, and not an
// older state of it. Another instance or incarnation is another ledger, or one
// that was restored: what it does not know may have happened all the same.
func (l LedgerRef) Follows(earlier LedgerRef) bool {
	return l.Instance == earlier.Instance && l.Incarnation == earlier.Incarnation && l.Position >= earlier.Position
}
