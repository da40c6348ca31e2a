package faults_test

import (
	"context"
	"path/filepath"
	"testing"

	"mcpreplay"
	"mcpreplay/faults"
	"mcpreplay/sqlite"
	"mcpreplay/storetest"
)

// A wrapped store is a store: at a point that is never reached, or whose exit does
// not happen, it keeps the whole contract.
func TestWrappedStoreKeepsTheContract(t *testing.T) {
	for _, name := range []string{faults.DropAfterCommit, "exit-after-issue-insert", "exit-after-partial-first-commit", "hold-in-write-2", "hold-after-rollback"} {
		fault, err := faults.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		open := func(t *testing.T) mcpreplay.Applier[*sqlite.Tx] {
			s, err := sqlite.Open(filepath.Join(t.TempDir(), "ledger.db"), &sqlite.Options{Backend: "wrapped"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			err = s.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
				_, err := tx.ExecContext(ctx, `CREATE TABLE rows (name TEXT) STRICT`)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return faults.Wrap[*sqlite.Tx](s, fault, faults.Hooks{Exit: func(int) {}, Hold: func(context.Context, faults.Fault, string) {}})
		}
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) mcpreplay.Store { return open(t) })
			storetest.RunApplier(t, open, storetest.Kit[*sqlite.Tx]{Write: write, Count: count})
		})
	}
}

func write(ctx context.Context, tx *sqlite.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO rows (name) VALUES (?)`, name)
	return err
}

func count(ctx context.Context, tx *sqlite.Tx, name string) (n int, err error) {
	err = tx.QueryRowContext(ctx, `SELECT count(*) FROM rows WHERE name = ?`, name).Scan(&n)
	return n, err
}
