package sqlite_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"mcpreplay"
)

// TestVerifySeesWhatWasMeddledWith: what is done to the tables behind the store
// shows, even where no record is left to tell of it.
func TestVerifySeesWhatWasMeddledWith(t *testing.T) {
	t.Parallel()
	remove := func(id string) string {
		const seq = "(SELECT seq FROM mcpreplay_operations WHERE operation_id = '%s');"
		return fmt.Sprintf("DELETE FROM mcpreplay_events WHERE seq = "+seq+"DELETE FROM mcpreplay_results WHERE seq = "+seq+
			"DELETE FROM mcpreplay_operations WHERE operation_id = '%s';", id, id, id)
	}
	const second = "WHERE operation_id = 'op-2nd';"
	tests := []struct {
		name, sql string
		want      []string
	}{
		{"nothing", "SELECT 1", nil},
		{"the newest operation is gone", remove("op-3rd"), []string{" position"}},
		{"an operation in between is gone", remove("op-2nd"), []string{" position"}},
		{"the oldest operation is gone", remove("op-1st"), []string{" position"}},
		{"all operations are gone", remove("op-1st") + remove("op-2nd") + remove("op-3rd"), []string{" position"}},
		{"only the row of an operation is gone", "PRAGMA foreign_keys = OFF; DELETE FROM mcpreplay_operations " + second, []string{" position"}},
		{"the sequence is ahead", "UPDATE sqlite_sequence SET seq = 1000 WHERE name = 'mcpreplay_events'", []string{" position"}},
		{"the effect came after its deadline", "UPDATE mcpreplay_operations SET authority_until = created_at " + second, []string{"op-2nd authority"}},
		{"retention is shorter than authority",
			"UPDATE mcpreplay_operations SET retention_until = created_at, authority_until = created_at + 1 " + second, nil},
		{"an event of no kind", "UPDATE mcpreplay_events SET kind = 'nonsense' WHERE position = 2", []string{"op-2nd history", "op-2nd attempt"}},
		{"applied by a fence", "UPDATE mcpreplay_events SET kind = 'fence' WHERE position = 2", []string{"op-2nd history", "op-2nd state", "op-2nd attempt"}},
		{"applied by a claim", "UPDATE mcpreplay_events SET kind = 'claim' WHERE position = 2", []string{"op-2nd history"}},
		{"applied by a step", "UPDATE mcpreplay_events SET kind = 'step' WHERE position = 2", []string{"op-2nd history", "op-2nd attempt"}},
		{"an effect that was not applied",
			"UPDATE mcpreplay_events SET state = 'not_applied' WHERE position = 2; UPDATE mcpreplay_operations SET state = 'not_applied' " + second,
			[]string{"op-2nd history"}},
		{"fenced without a fence",
			"UPDATE mcpreplay_events SET kind = 'decline', state = 'not_applied' WHERE position = 2;" +
				"UPDATE mcpreplay_operations SET state = 'not_applied', fenced = 1 " + second,
			[]string{"op-2nd state", "op-2nd attempt"}},
		{"a write that is not counted", "UPDATE mcpreplay_operations SET attempt = 2 " + second, []string{"op-2nd attempt"}},
		{"a live owner after the end", "UPDATE mcpreplay_operations SET lease_until = created_at + 3600000000, owner = 'x' " + second, []string{"op-2nd state"}},
		{"updated after the last event", "UPDATE mcpreplay_operations SET updated_at = updated_at + 1 WHERE operation_id = 'op-1st'", []string{"op-1st time"}},
		{"created before the first event", "UPDATE mcpreplay_operations SET created_at = 0 WHERE operation_id = 'op-1st'", []string{"op-1st time"}},
		{"the bytes of a result are dropped", "DELETE FROM mcpreplay_results WHERE seq = 2", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s := openStore(t, path, nil)
			for _, id := range []string{"op-1st", "op-2nd", "op-3rd"} {
				apply(t, s, id)
			}
			meddle(t, path, tt.sql)
			report, err := mcpreplay.Verify(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range report.Findings {
				got = append(got, f.OperationID+" "+f.Rule)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("Verify() found %v, want %v", report.Findings, tt.want)
			}
		})
	}
}

// TestLateContradictionIsKept: whatever became of a final record, what disagrees
// with it is written down, and a second outcome is not.
func TestLateContradictionIsKept(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStore(t, path, nil)
	rec := apply(t, s, "op-late")
	meddle(t, path, "UPDATE mcpreplay_operations SET result_digest = NULL, result_size = NULL, result_is_error = NULL")
	c := mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Event: mcpreplay.Event{Kind: mcpreplay.EventFinish}}
	var te *mcpreplay.TransitionError
	if _, err := s.Advance(t.Context(), c); !errors.As(err, &te) || te.Kind != mcpreplay.EventFinish {
		t.Errorf("Advance() = %v, want a *TransitionError of a finish", err)
	}
	c.Event.Kind = mcpreplay.EventContradiction
	if got, err := s.Advance(t.Context(), c); err != nil || got.Position != rec.Position+1 {
		t.Errorf("Advance() = position %d, %v; want %d", got.Position, err, rec.Position+1)
	}
}
