package mcpreplay

import "fmt"

// State is the state of an operation in the ledger.
type State string

// The ledger states. Applied, partial and not_applied are final.
const (
	StateNone          State = ""               // no record
	StateInProgress    State = "in_progress"    // claimed; the effect may or may not have happened
	StateApplied       State = "applied"        // effect and result are recorded
	StatePartial       State = "partial"        // some effects are durable, the rest failed
	StateNotApplied    State = "not_applied"    // provably no effect, and none can follow
	StateAwaitingInput State = "awaiting_input" // the upstream of a gateway asked a question
)

// StateUnknown is never stored. It is what an observation says when the ledger
// holds no final record.
const StateUnknown State = "unknown"

// States are all states a record can have.
var States = []State{StateInProgress, StateApplied, StatePartial, StateNotApplied, StateAwaitingInput}

// Final reports whether nothing can follow s.
func (s State) Final() bool {
	return s == StateApplied || s == StatePartial || s == StateNotApplied
}

// Observed is what s looks like from outside: final states are told, all else
// is unknown.
func (s State) Observed() State {
	if s.Final() {
		return s
	}
	return StateUnknown
}

// next lists the legal transitions. A final state is missing on the left: it is
// immutable, and keeping a state is not a transition.
var next = map[State]map[State]bool{
	StateNone: {
		StateInProgress: true, // claim
		StateApplied:    true, // an atomic effect, record and result in one commit
		StateNotApplied: true, // fence, decline
	},
	StateInProgress: {
		StateInProgress:    true, // renew, step
		StateAwaitingInput: true,
		StateApplied:       true,
		StatePartial:       true,
		StateNotApplied:    true,
	},
	StateAwaitingInput: {
		StateInProgress: true, // the next round was claimed
		StateNotApplied: true, // fence, decline
	},
}

// TransitionError is an attempt to move an operation where it cannot go.
type TransitionError struct{ From, To State }

func (e *TransitionError) Error() string {
	return fmt.Sprintf("an operation cannot go from %q to %q", string(e.From), string(e.To))
}

// Transition reports whether an operation may go from one state to another. It
// is the only place that decides this. It returns a *TransitionError.
func Transition(from, to State) error {
	if next[from][to] {
		return nil
	}
	return &TransitionError{From: from, To: to}
}
