package mcpreplay_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mcpreplay"
)

// legal is the table of DESIGN once more, so that a change of the function is a
// change of two places.
var legal = map[[2]mcpreplay.State]string{
	{mcpreplay.StateNone, mcpreplay.StateInProgress}:          "claim",
	{mcpreplay.StateNone, mcpreplay.StateApplied}:             "atomic effect",
	{mcpreplay.StateNone, mcpreplay.StateNotApplied}:          "fence or decline",
	{mcpreplay.StateInProgress, mcpreplay.StateInProgress}:    "renew or step",
	{mcpreplay.StateInProgress, mcpreplay.StateAwaitingInput}: "the upstream asks",
	{mcpreplay.StateInProgress, mcpreplay.StateApplied}:       "finish",
	{mcpreplay.StateInProgress, mcpreplay.StatePartial}:       "a known part",
	{mcpreplay.StateInProgress, mcpreplay.StateNotApplied}:    "definite refusal",
	{mcpreplay.StateInProgress, mcpreplay.StateReleased}:      "nothing happened, and it may be tried again",
	{mcpreplay.StateReleased, mcpreplay.StateInProgress}:      "the same request, sent again",
	{mcpreplay.StateReleased, mcpreplay.StateNotApplied}:      "fence or decline",
	{mcpreplay.StateReleased, mcpreplay.StateReleased}:        "a late outcome is told of",
	{mcpreplay.StateAwaitingInput, mcpreplay.StateInProgress}: "the next round",
	{mcpreplay.StateAwaitingInput, mcpreplay.StateNotApplied}: "fence or decline",
}

var everyState = append([]mcpreplay.State{mcpreplay.StateNone, mcpreplay.StateUnknown, "Applied", "nonsense"}, mcpreplay.States...)

func TestTransitionTable(t *testing.T) {
	for _, from := range everyState {
		for _, to := range everyState {
			err := mcpreplay.Transition(from, to)
			if why, ok := legal[[2]mcpreplay.State{from, to}]; ok {
				if err != nil {
					t.Errorf("Transition(%q, %q) = %v, want nil: %s", from, to, err, why)
				}
				continue
			}
			var te *mcpreplay.TransitionError
			if !errors.As(err, &te) || te.From != from || te.To != to {
				t.Errorf("Transition(%q, %q) = %v, want a *TransitionError of these", from, to, err)
				continue
			}
			if !strings.Contains(te.Error(), string(from)) || !strings.Contains(te.Error(), string(to)) {
				t.Errorf("Transition(%q, %q) says %q", from, to, te)
			}
		}
	}
}

func TestStatesAreComplete(t *testing.T) {
	known := map[mcpreplay.State]bool{}
	for _, s := range mcpreplay.States {
		if known[s] || s == mcpreplay.StateNone || s == mcpreplay.StateUnknown {
			t.Errorf("States has %q twice, or as no state of a record", s)
		}
		known[s] = true
	}
	for pair := range legal {
		if !known[pair[1]] || pair[0] != mcpreplay.StateNone && !known[pair[0]] {
			t.Errorf("%q to %q is legal between states that no record has", pair[0], pair[1])
		}
	}
}

func TestObservedTellsOnlyWhatIsFinal(t *testing.T) {
	for s, want := range map[mcpreplay.State]mcpreplay.State{
		mcpreplay.StateApplied:       mcpreplay.StateApplied,
		mcpreplay.StatePartial:       mcpreplay.StatePartial,
		mcpreplay.StateNotApplied:    mcpreplay.StateNotApplied,
		mcpreplay.StateInProgress:    mcpreplay.StateUnknown,
		mcpreplay.StateReleased:      mcpreplay.StateUnknown,
		mcpreplay.StateAwaitingInput: mcpreplay.StateUnknown,
		mcpreplay.StateNone:          mcpreplay.StateUnknown,
		mcpreplay.StateUnknown:       mcpreplay.StateUnknown,
		"nonsense":                   mcpreplay.StateUnknown,
	} {
		if got := s.Observed(); got != want {
			t.Errorf("%q.Observed() = %q, want %q", s, got, want)
		}
		if s.Final() != (s.Observed() == s && s != mcpreplay.StateUnknown) {
			t.Errorf("%q.Final() = %v, which does not fit what is observed", s, s.Final())
		}
	}
}

// TestWalksEndInOneOutcome follows legal transitions at random: whatever the way,
// there is an outcome that can be reached, and once it is, nothing follows.
func TestWalksEndInOneOutcome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := mcpreplay.StateNone
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			to := rapid.SampledFrom(everyState).Draw(t, "to")
			err := mcpreplay.Transition(state, to)
			if state.Final() && err == nil {
				t.Fatalf("%q went on to %q", state, to)
			}
			if err == nil {
				state = to
			}
		}
		if state.Final() {
			return
		}
		if err := mcpreplay.Transition(state, mcpreplay.StateNotApplied); err != nil {
			t.Fatalf("from %q nothing final can be reached: %v", state, err)
		}
	})
}
