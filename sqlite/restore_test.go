package sqlite_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// A declared restore is another incarnation at a later position, and the ledger
// is proved consistent before and after more is written.
func TestDeclareRestore(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "ledger.db"), &sqlite.Options{Backend: "restored"})
	for i, written := range []bool{false, true, true} { // also a ledger that never had an event
		if written {
			if _, _, err := s.Begin(t.Context(), mcpreplay.Operation{Key: mcpreplay.Key{Principal: "alice", ID: "op-" + strings.Repeat("x", i+1)}},
				mcpreplay.Change{To: mcpreplay.StateNotApplied, Fence: true, Event: mcpreplay.Event{Kind: mcpreplay.EventFence, Actor: "alice"}}); err != nil {
				t.Fatal(err)
			}
		}
		before, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.DeclareRestore(t.Context(), "olga", "the disk broke")
		if err != nil {
			t.Fatal(err)
		}
		if info.Incarnation != before.Incarnation+1 || info.Position <= before.Position+1<<31 || info.Instance != before.Instance {
			t.Errorf("restored from %+v to %+v", before, info)
		}
		last := info.Restores[len(info.Restores)-1]
		if last.Actor != "olga" || last.Reason != "the disk broke" || last.After != before.Position || last.Until != info.Position || last.At.IsZero() {
			t.Errorf("it records %+v", last)
		}
		report, err := mcpreplay.Verify(t.Context(), s)
		if err != nil || !report.Consistent() {
			t.Errorf("verify: %v, %v", report.Findings, err)
		}
	}
	if _, err := s.DeclareRestore(t.Context(), "olga", ""); err == nil {
		t.Error("a restore without a reason was accepted")
	}
}

// Where each principal has ids of its own, the same id is two operations; and a
// ledger is one or the other for good.
func TestPrincipalIDs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	s := openStore(t, path, &sqlite.Options{Backend: "ids", IDs: sqlite.IDsPrincipal})
	for _, principal := range []string{"alice", "bob"} {
		_, started, err := s.Begin(t.Context(), mcpreplay.Operation{Key: mcpreplay.Key{Principal: principal, ID: "op-same"}},
			mcpreplay.Change{To: mcpreplay.StateNotApplied, Fence: true, Event: mcpreplay.Event{Kind: mcpreplay.EventFence, Actor: principal}})
		if err != nil || !started {
			t.Errorf("Begin() for %s = started %v, %v", principal, started, err)
		}
	}
	if recs, err := s.List(t.Context(), mcpreplay.Filter{ID: "op-same"}); err != nil || len(recs) != 2 {
		t.Errorf("List() = %d records, %v; want 2", len(recs), err)
	}
	if _, err := sqlite.Open(path, &sqlite.Options{Backend: "ids", IDs: sqlite.IDsShared}); !errors.Is(err, mcpreplay.ErrIncompatible) {
		t.Errorf("opened as shared: %v", err)
	}
	openStore(t, path, &sqlite.Options{Backend: "ids"}) // as it is
	if _, err := sqlite.Open(path, &sqlite.Options{Backend: "ids", IDs: "nonsense"}); err == nil {
		t.Error("opened with ids of no kind")
	}
}
