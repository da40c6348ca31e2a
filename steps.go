package mcpreplay

import "slices"

// What became of a step, in Event.Outcome and StepOutcome.
const (
	OutcomeAttempted = "attempted" // begun, and nobody knows more
	OutcomeSucceeded = "succeeded"
	OutcomeFailed    = "failed"
)

// StepOutcome is what became of one of several effects.
type StepOutcome struct {
	Name         string `json:"name"`
	Outcome      string `json:"outcome"`                // attempted, succeeded or failed
	Compensation string `json:"compensation,omitempty"` // the same of its compensation, if there was one
}

// Steps are the steps that an operation's history tells of, in the order in which
// they were begun. A claim that is made again begins anew.
type Steps []StepOutcome

// StepsOf reads them from all events of an operation, oldest first.
func StepsOf(events []Event) Steps {
	var s Steps
	for _, e := range events {
		switch e.Kind {
		case EventClaim:
			s = nil
		case EventStep, EventCompensation:
			s = s.With(e)
		}
	}
	return s
}

// With is s and what the event of a step or a compensation adds to it.
func (s Steps) With(e Event) Steps {
	s = slices.Clone(s)
	i := slices.IndexFunc(s, func(o StepOutcome) bool { return o.Name == e.Step })
	if i < 0 {
		s = append(s, StepOutcome{Name: e.Step})
		i = len(s) - 1
	}
	if e.Kind == EventCompensation {
		s[i].Compensation = e.Outcome
	} else {
		s[i].Outcome = e.Outcome
	}
	return s
}

// Succeeded counts those that are done, whatever compensated for them since.
func (s Steps) Succeeded() (n int) {
	for _, o := range s {
		if o.Outcome == OutcomeSucceeded {
			n++
		}
	}
	return n
}
