package sqlite_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// TestDamagedLedgerIsNotRetried: who is told that the ledger is unavailable tries
// again, which does not bring back what is missing.
func TestDamagedLedgerIsNotRetried(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, damage, says string }{
		{"no schema version", "DELETE FROM mcpreplay_schema", "no schema version"},
		{"no table of schema versions", "DROP TABLE mcpreplay_schema", "no schema version"},
		{"no operations", "PRAGMA foreign_keys=OFF; DROP TABLE mcpreplay_operations", "no such table"},
		{"no events", "DROP TABLE mcpreplay_events", "no such table"},
		{"a column renamed", "ALTER TABLE mcpreplay_operations RENAME COLUMN tool TO tools", "no such column"},
		{"no table of identity", "DROP TABLE mcpreplay_ledger", "no such table"},
		{"no identity", "DELETE FROM mcpreplay_ledger", "no identity"},
		{"an empty instance", "UPDATE mcpreplay_ledger SET instance = ''", "no identity"},
		{"no sequence", "DELETE FROM sqlite_sequence WHERE name = 'mcpreplay_events'", "sequence of positions"},
		{"an old sequence", "UPDATE sqlite_sequence SET seq = 1 WHERE name = 'mcpreplay_events'", "sequence of positions"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s := openStore(t, path, nil)
			apply(t, s, "op-first")
			apply(t, s, "op-second")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			meddle(t, path, tt.damage)
			for _, readOnly := range []bool{false, true} {
				s, err := sqlite.Open(path, &sqlite.Options{Backend: "issues", ReadOnly: readOnly})
				if err == nil {
					s.Close()
				}
				if !errors.Is(err, mcpreplay.ErrIncompatible) || errors.Is(err, mcpreplay.ErrUnavailable) {
					t.Fatalf("Open(), read only %v = %v, want %v", readOnly, err, mcpreplay.ErrIncompatible)
				}
				for _, want := range []string{path, tt.says, "restore it from a backup"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("Open() says %q, want it to say %q", err, want)
					}
				}
			}
		})
	}
}

// TestOtherEncodingIsRefused: a text that is not valid UTF-8 would come back as
// another one.
func TestOtherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	meddle(t, path, "PRAGMA encoding = 'UTF-16le'; CREATE TABLE mine (x)")
	s, err := sqlite.Open(path, &sqlite.Options{Backend: "issues"})
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, mcpreplay.ErrIncompatible) || !strings.Contains(err.Error(), "UTF-16le") || !strings.Contains(err.Error(), "; copy") {
		t.Errorf("Open() = %v, want %v with the encoding and a remedy", err, mcpreplay.ErrIncompatible)
	}
}
