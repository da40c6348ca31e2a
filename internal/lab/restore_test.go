package lab_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
	"mcpreplay/sqlite"
)

// operate runs an operator's command on real files.
func operate(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// minted is the id that a server gives a call without one, in its marks.
var minted = regexp.MustCompile(`op_[0-9a-v]{48}`)

// A ledger is put back after the reply of a call was lost, by a declared restore or
// by a copy that nobody declared. Whoever knows what came after the backup is not
// told that it was, or was not, done. What the backup holds is replayed for a
// client that keeps no journal, and new operations work.
func TestALedgerThatIsPutBackSettlesNothing(t *testing.T) {
	for _, declared := range []bool{false, true} {
		name := map[bool]string{false: "undeclared", true: "declared"}[declared]
		t.Run(name, func(t *testing.T) {
			dir, journal := t.TempDir(), consumer.NewMemoryJournal()
			c := consumer.New(&consumer.Options{Journal: journal})
			keys := []string{"--key-file", filepath.Join(dir, "keys")}
			intent := func(id string) consumer.Intent {
				args, err := json.Marshal(map[string]string{"title": "t", "operation_id": id})
				if err != nil {
					t.Fatal(err)
				}
				return consumer.Intent{Scope: mcpreplay.Scope{OperationID: id, Principal: "alice", Backend: "b"}, Tool: "create_guarded_issue", Arguments: args}
			}
			applied := func(session *consumer.Session, c *consumer.Consumer, id string) consumer.Outcome {
				t.Helper()
				out := c.Call(t.Context(), session, intent(id))
				if out.Kind != consumer.KindVerdict || out.Effect != mcpreplay.StateApplied {
					t.Fatalf("%s: %+v", id, out)
				}
				return out
			}
			session, stop := connect(t, dir, "l.db", "1", keys...)
			applied(session, c, "op-kept")
			operate(t, dir, "backup", "monday.db", "--ledger", "sqlite:l.db") // as the server runs
			applied(session, c, "op-more")
			busy := exec.Command(binary, "restore", "monday.db", "--ledger", "sqlite:l.db", "--replace", "--reason", "too early")
			busy.Dir = dir
			if out, err := busy.CombinedOutput(); err == nil || !strings.Contains(string(out), "another process has the ledger open") {
				t.Errorf("restored beside a server: %v %s", err, out)
			}
			stop(0)

			session, stop = connect(t, dir, "l.db", "2", append(keys, "--fault", "drop-after-commit")...)
			if out := c.Call(t.Context(), session, intent("op-lost")); out.Kind != consumer.KindUnknown {
				t.Errorf("outcome = %+v, want unknown", out)
			}
			stop(70)

			want := "an older state of the ledger"
			if declared {
				want = "the ledger was restored: it is incarnation 2, and the operation went to incarnation 1"
				operate(t, dir, "restore", "monday.db", "--ledger", "sqlite:l.db", "--replace", "--reason", "the disk broke", "--by", "olga")
			} else {
				putBack(t, dir)
			}

			session, stop = connect(t, dir, "l.db", "3", keys...)
			defer stop(0)
			for range 2 { // asking changes nothing
				out, err := c.Reconcile(t.Context(), session, intent("op-lost"))
				var oe *mcpreplay.ObservationError
				if !errors.As(err, &oe) || oe.Rule != "ledger_changed" || out.Kind != consumer.KindUnknown || !strings.Contains(out.Detail, want) {
					t.Errorf("Reconcile() = %+v, %v; want ledger_changed: %s", out, err, want)
				}
			}
			if list, err := journal.Unsettled(); err != nil || len(list) != 1 {
				t.Errorf("in doubt: %+v, %v, want one", list, err)
			}
			stranger := consumer.New(nil)
			if out := applied(session, stranger, "op-kept"); out.Mark == nil || !out.Mark.Replayed {
				t.Errorf("op-kept was not replayed: %+v", out)
			}
			if out := applied(session, stranger, "op-new"); out.Mark == nil || out.Mark.Replayed {
				t.Errorf("op-new: %+v", out)
			}
			operate(t, dir, "verify", "--ledger", "sqlite:l.db")
			if got := issuesOf(t, filepath.Join(dir, "l.db")); got != "op-kept op-new" {
				t.Errorf("the issues are of %s", got)
			}
		})
	}
}

// putBack copies the backup over the ledger, as an operator without this program
// would.
func putBack(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "monday.db"))
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"-wal", "-shm"} {
		if err := os.Remove(filepath.Join(dir, "l.db"+side)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "l.db"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func issuesOf(t *testing.T, path string) string {
	t.Helper()
	db := openRaw(t, path)
	defer db.Close()
	var ids string
	if err := db.QueryRow(`SELECT coalesce(group_concat(operation_id, ' ' ORDER BY operation_id), '') FROM issues`).Scan(&ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

// A call without an id was given one by the server, and was done after the backup.
// Sent again under that id, as a client does that saw it, it is not new work after
// a declared restore; and its sealed request state is refused.
func TestAMintedIDOfBeforeARestoreIsUnknown(t *testing.T) {
	dir := t.TempDir()
	keys := []string{"--key-file", filepath.Join(dir, "keys")}
	session, stop := connect(t, dir, "l.db", "1", keys...)
	operate(t, dir, "backup", "monday.db", "--ledger", "sqlite:l.db")
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "create_guarded_issue", Arguments: json.RawMessage(`{"title":"t"}`)})
	if err != nil || res.IsError {
		t.Fatalf("the call: %+v, %v", res, err)
	}
	stop(0)
	mark, err := json.Marshal(res.Meta)
	id := minted.FindString(string(mark))
	if err != nil || id == "" {
		t.Fatalf("no id was minted: %s, %v", mark, err)
	}
	if got := issuesOf(t, filepath.Join(dir, "l.db")); got != id {
		t.Fatalf("the issues are of %q, want %s", got, id)
	}
	operate(t, dir, "restore", "monday.db", "--ledger", "sqlite:l.db", "--replace", "--reason", "the disk broke", "--by", "olga")

	session, stop = connect(t, dir, "l.db", "2", keys...)
	defer stop(0)
	args, err := json.Marshal(map[string]string{"title": "t", "operation_id": id})
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"create_guarded_issue", "fence_operation", "get_operation_status"} {
		if tool != "create_guarded_issue" {
			if args, err = json.Marshal(map[string]string{"operation_id": id}); err != nil {
				t.Fatal(err)
			}
		}
		res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		said, _ := res.StructuredContent.(map[string]any)
		if said["state"] != "unknown" || tool == "create_guarded_issue" && said["code"] != "operation_unknown" || said["newOperationSafe"] == true {
			t.Errorf("%s says %v", tool, said)
		}
	}
	if got := issuesOf(t, filepath.Join(dir, "l.db")); got != "" {
		t.Errorf("it was done again: %s", got)
	}
	operate(t, dir, "verify", "--ledger", "sqlite:l.db")
}

// A restore is killed at random moments, again and again. There is always the old
// ledger or a declared one: what came after the backup is never gone without a new
// incarnation that says so.
func TestKilledRestoresLeaveOneOrTheOther(t *testing.T) {
	dir := t.TempDir()
	path, backup := filepath.Join(dir, "l.db"), filepath.Join(dir, "monday.db")
	open := func() *sqlite.Store {
		t.Helper()
		s, err := sqlite.Open(path, &sqlite.Options{Backend: "b"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	fence := func(s *sqlite.Store, id string) {
		t.Helper()
		if _, err := mcpreplay.Fence(t.Context(), s, mcpreplay.Key{Principal: "alice", ID: id}, "alice", "test"); err != nil {
			t.Fatal(err)
		}
	}
	s := open()
	fence(s, "op-kept")
	if _, err := s.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	fence(s, "op-later-1")
	s.Close()
	began := time.Now()
	operate(t, dir, "restore", backup, "--ledger", "sqlite:copy.db", "--reason", "to know how long it takes")
	whole := time.Since(began)
	incarnation, restored, cut := int64(1), 0, 0
	for range 30 {
		cmd := exec.Command(binary, "restore", backup, "--ledger", "sqlite:"+path, "--replace", "--reason", "the disk broke")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(whole/2 + rand.N(whole)) // when it dies is the variable of this test, so it is drawn
		cmd.Process.Kill()
		cmd.Wait()
		if asides, err := filepath.Glob(path + ".replaced-*"); err != nil {
			t.Fatal(err)
		} else if fi, err := os.Stat(path); err != nil {
			t.Fatalf("there is no ledger: %v", err)
		} else {
			for _, aside := range asides { // a second name of the old one has to go
				if other, err := os.Stat(aside); err == nil && os.SameFile(fi, other) {
					cut++
					os.Remove(aside)
				}
			}
		}
		s := open()
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Get(t.Context(), mcpreplay.Key{Principal: "alice", ID: fmt.Sprintf("op-later-%d", incarnation)})
		switch {
		case err == nil && info.Incarnation == incarnation:
		case errors.Is(err, mcpreplay.ErrNotFound) && info.Incarnation == incarnation+1:
			restored++
		default:
			t.Fatalf("incarnation %d after %d, and what came after the backup: %v", info.Incarnation, incarnation, err)
		}
		if report, err := mcpreplay.Verify(t.Context(), s); err != nil || !report.Consistent() {
			t.Errorf("verify: %v, %v", report.Findings, err)
		}
		if incarnation = info.Incarnation; err != nil {
			fence(s, fmt.Sprintf("op-later-%d", incarnation))
		}
		s.Close()
	}
	t.Logf("of 30 restores %d came about, and %d were cut off with two names", restored, cut)
}
