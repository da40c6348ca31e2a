package sqlite

import (
	"strings"
	"testing"
)

func TestOldSQLiteIsRefused(t *testing.T) {
	for version, ok := range map[string]bool{
		"3.51.3": true, "3.51.4": true, "3.52.0": true, "3.54.1": true, "4.0.0": true,
		"3.51.2": false, "3.50.9": false, "2.99.99": false, "3.7.0": false, "": false, "latest": false,
	} {
		if err := versionOK(version); (err == nil) != ok {
			t.Errorf("versionOK(%q) = %v, want ok = %v", version, err, ok)
		}
	}
}

// TestSettingThatDoesNotTakeIsRefused: setting a pragma never fails by itself.
func TestSettingThatDoesNotTakeIsRefused(t *testing.T) {
	s := &Store{path: t.TempDir() + "/ledger.db", mode: "rwc"}
	c, err := s.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for _, p := range []struct{ name, value, want string }{
		{"synchronous", "NORMAL", "2"},
		{"synchronous", "FULLY", "2"},
		{"journal_mode", "DELETE", "wal"},
		{"no_such_pragma", "1", "1"},
		{"foreign_keys", "0", "1"},
	} {
		c.raw.Exec("PRAGMA synchronous=OFF")
		if err := c.set(p.name, p.value, p.want); err == nil || !strings.Contains(err.Error(), p.name) {
			t.Errorf("set(%s, %s) = %v, want an error", p.name, p.value, err)
		}
	}
	if err := c.set("synchronous", "FULL", "2"); err != nil {
		t.Errorf("set(synchronous, FULL) = %v", err)
	}
}
