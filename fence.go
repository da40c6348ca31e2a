package mcpreplay

import (
	"context"
	"errors"
)

// Fence makes an operation impossible for good, if nothing can have happened under
// it: there is no record, or its claim was given back, or the question of its round
// was never answered. Any other record is left as it is, and returned: fenced or
// final it says what it is, and of one in progress nobody knows. The errors are those
// of Begin and Advance.
func Fence(ctx context.Context, s Store, key Key, actor, reason string) (Record, error) {
	fence := Change{
		To: StateNotApplied, Fence: true,
		Event: Event{Kind: EventFence, Actor: actor, Evidence: reason},
	}
	rec, _, err := s.Begin(ctx, Operation{Key: key}, fence)
	for err == nil && !rec.State.Final() && EventFence.Transition(rec.State, StateNotApplied) == nil {
		fence.Key, fence.Revision = key, rec.Revision
		var fenced Record
		if fenced, err = s.Advance(ctx, fence); !errors.Is(err, ErrStale) {
			if err == nil {
				rec = fenced
			}
			break
		}
		rec, err = s.Get(ctx, key) // somebody was faster
	}
	return rec, err
}
