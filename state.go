package mcpreplay

import (
	"fmt"
	"slices"
)

// State is the state of an operation in the ledger.
type State string

// The ledger states. Applied, partial and not_applied are final.
const (
	StateNone          State = ""               // no record
	StateInProgress    State = "in_progress"    // claimed; the effect may or may not have happened
	StateApplied       State = "applied"        // effect and result are recorded
	StatePartial       State = "partial"        // some effects are durable, the rest failed
	StateNotApplied    State = "not_applied"    // provably no effect, and none can follow
	StateReleased      State = "released"       // the claim was given back: nothing happened, and the same id may be sent again
	StateAwaitingInput State = "awaiting_input" // the upstream of a gateway asked a question
)

// StateUnknown is never stored. It is what an observation says when the ledger
// holds no final record.
const StateUnknown State = "unknown"

// States are all states a record can have.
var States = []State{StateInProgress, StateApplied, StatePartial, StateNotApplied, StateReleased, StateAwaitingInput}

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

// moves lists where an event of each kind may lead from where. It is the only
// place that decides this. A final state is immutable: the kinds that keep one
// tell of something after the end.
var moves = map[EventKind]map[State][]State{
	EventClaim: {
		StateNone:          {StateInProgress},
		StateReleased:      {StateInProgress}, // the same request, sent again
		StateAwaitingInput: {StateInProgress}, // the next round
	},
	EventTakeover:  {StateInProgress: {StateInProgress}},
	EventApply:     {StateNone: {StateApplied}},
	EventStep:      {StateInProgress: {StateInProgress}},
	EventFinish:    {StateInProgress: {StateApplied, StatePartial, StateNotApplied, StateAwaitingInput}},
	EventRelease:   {StateInProgress: {StateReleased}},
	EventDoubt:     {StateInProgress: {StateInProgress}},
	EventReconcile: {StateInProgress: {StateInProgress}},
	EventSettle:    {StateInProgress: {StateApplied, StatePartial, StateNotApplied}},
	EventDecline:   {StateNone: {StateNotApplied}, StateReleased: {StateNotApplied}, StateAwaitingInput: {StateNotApplied}},
	EventFence:     {StateNone: {StateNotApplied}, StateReleased: {StateNotApplied}, StateAwaitingInput: {StateNotApplied}},
	EventCompensation: {
		StateInProgress: {StateInProgress},
		StateApplied:    {StateApplied},
		StatePartial:    {StatePartial}, // where nothing was applied nothing can be undone
	},
	EventConfirmation: {
		StateApplied:    {StateApplied},
		StatePartial:    {StatePartial},
		StateNotApplied: {StateNotApplied},
	},
	EventContradiction: {
		StateApplied:    {StateApplied},
		StatePartial:    {StatePartial},
		StateNotApplied: {StateNotApplied},
		StateReleased:   {StateReleased},
	},
	EventAcknowledge: {
		StateApplied:    {StateApplied},
		StatePartial:    {StatePartial},
		StateNotApplied: {StateNotApplied},
	},
}

// TransitionError is an attempt to move an operation where it cannot go.
type TransitionError struct {
	From, To State
	Kind     EventKind // of the event that was to tell of it; "" if none could
}

func (e *TransitionError) Error() string {
	by := ""
	if e.Kind != "" {
		by = fmt.Sprintf(" by the event %q", string(e.Kind))
	}
	return fmt.Sprintf("an operation cannot go from %q to %q%s", string(e.From), string(e.To), by)
}

// Transition reports whether an operation may go from one state to another by
// any kind of event. Keeping a final state is not a transition. It returns a
// *TransitionError.
func Transition(from, to State) error {
	if !from.Final() {
		for kind := range moves {
			if kind.Transition(from, to) == nil {
				return nil
			}
		}
	}
	return &TransitionError{From: from, To: to}
}

// Transition reports whether an event of kind k may lead from one state to
// another, or keep it. It returns a *TransitionError.
func (k EventKind) Transition(from, to State) error {
	if slices.Contains(moves[k][from], to) {
		return nil
	}
	return &TransitionError{From: from, To: to, Kind: k}
}
