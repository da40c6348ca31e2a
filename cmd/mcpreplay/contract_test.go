package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/internal/archive"
	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"
	"mcpreplay/internal/vectors"
	"mcpreplay/sqlite"

	_ "github.com/ncruces/go-sqlite3/driver"
	"github.com/spf13/cobra"
)

// exampleLedger makes a ledger with operations of every kind, at times that do not
// change. It returns a --ledger value.
func exampleLedger(t *testing.T, contradiction bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "l.db")
	at, err := time.Parse(time.DateOnly, day)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(path, &sqlite.Options{Backend: "demo", Clock: func() time.Time { return at }})
	if err != nil {
		t.Fatal(err)
	}
	ring, err := mcpreplay.NewKeyring([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	operation := func(id string) mcpreplay.Operation {
		d, err := ring.Digest(mcpreplay.Binding{Principal: "alice", Tool: "pay", Version: "1", Arguments: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		return mcpreplay.Operation{Key: mcpreplay.Key{Principal: "alice", ID: id}, Tool: "pay", Version: "1", Digests: d,
			Authority: at.Add(5 * time.Minute), Retention: at.Add(6 * time.Minute)}
	}
	must := func(rec mcpreplay.Record, err error) mcpreplay.Record {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	begin := func(id string, c mcpreplay.Change) mcpreplay.Record {
		t.Helper()
		rec, _, err := s.Begin(ctx, operation(id), c)
		return must(rec, err)
	}
	claim := mcpreplay.Change{To: mcpreplay.StateInProgress, Owner: "owner-1", Event: mcpreplay.Event{Kind: mcpreplay.EventClaim, Actor: "alice"}}

	_, _, err = s.Apply(ctx, operation("applied-1"), func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
		return mcpreplay.Outcome{Effect: "7", Result: mcpreplay.Result{Body: []byte(`{"content":[{"type":"text","text":"paid <1> & done"}]}`)}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	begin("running-1", claim)
	rec := begin("partial-1", claim)
	rec = must(s.Advance(ctx, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Owner: "owner-1", Effect: "8",
		Event: mcpreplay.Event{Kind: mcpreplay.EventStep, Step: "charge", Outcome: "succeeded", Actor: "owner-1"}}))
	rec = must(s.Advance(ctx, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, To: mcpreplay.StatePartial,
		Result: &mcpreplay.Result{Body: []byte(`{"content":[],"isError":true}`), IsError: true},
		Event:  mcpreplay.Event{Kind: mcpreplay.EventFinish, Step: "mail", Outcome: "failed", Actor: "owner-1", Evidence: "smtp\x1b[2J"}}))
	if contradiction {
		must(s.Advance(ctx, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision,
			Event: mcpreplay.Event{Kind: mcpreplay.EventContradiction, Actor: "owner-2", Evidence: "the mail was sent"}}))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return "sqlite:" + path
}

// day is when everything in exampleLedger happened.
const day = "2026-09-22"

// varying is what differs from run to run: the ledger's instance, and every time
// but those of exampleLedger.
var varying = regexp.MustCompile(`\b[0-9a-f]{32}\b|\d{4}-\d\d-\d\dT[\d:.]+Z`)

func steady(text string) string {
	return varying.ReplaceAllStringFunc(text, func(s string) string {
		switch {
		case !strings.Contains(s, "T"):
			return "INSTANCE"
		case !strings.HasPrefix(s, day):
			return "NOW"
		}
		return s
	})
}

// What the commands print is a contract with the programs that read it: a change
// here is a change of the interface.
func TestOutputIsTheContract(t *testing.T) {
	t.Parallel()
	good, bad := exampleLedger(t, false), exampleLedger(t, true)
	result := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(result, []byte(`{"content":[{"type":"text","text":"paid by hand"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	fence := []string{"--principal", "alice", "--reason", "gave up", "--ledger", good}
	tests := []struct {
		golden string
		code   int
		args   []string
	}{
		{"status-applied", exitFine, []string{"status", "applied-1", "--ledger", good}},
		{"status-partial", exitFine, []string{"status", "partial-1", "--ledger", good}},
		{"status-in-progress", exitUnknown, []string{"status", "running-1", "--ledger", good}},
		{"status-absent", exitUnknown, []string{"status", "absent-1", "--ledger", good}},
		{"verify-consistent", exitFine, []string{"verify", "--ledger", good}},
		{"verify-findings", exitFailed, []string{"verify", "--ledger", bad}},
		{"fence-placed", exitFine, append([]string{"fence", "absent-1"}, fence...)},
		{"fence-too-late", exitFailed, append([]string{"fence", "applied-1"}, fence...)},
		{"fence-in-progress", exitUnknown, append([]string{"fence", "running-1"}, fence...)},
		{"resolve-applied", exitFine, append([]string{"resolve", "running-1", "--applied", "--result", result, "--by", "olga"}, fence...)},
		{"sweep-all", exitFine, []string{"sweep", "--grace", "0s", "--ledger", good}},
		{"status-dropped", exitFine, []string{"status", "running-1", "--ledger", good}},
		{"lab-vectors", exitFine, []string{"lab", "vectors"}},
	}
	for _, tt := range tests { // one after the other: fences change the ledger
		t.Run(tt.golden, func(t *testing.T) {
			text := command("", nil, tt.args...)
			data := command("", nil, append(tt.args, "--json")...)
			if text.code != tt.code || data.code != tt.code {
				t.Errorf("exit %d and %d, want %d: %s", text.code, data.code, tt.code, text.stderr)
			}
			if strings.ContainsRune(text.stdout+text.stderr, 0x1b) {
				t.Error("the text has control characters")
			}
			golden(t, tt.golden+".txt", steady(text.stdout))
			golden(t, tt.golden+".json", steady(data.stdout))
		})
	}
}

// A stored observation reads back under the rules of a client.
func TestStatusTellsAnObservationAClientBelieves(t *testing.T) {
	t.Parallel()
	v, err := func() (*statusView, error) {
		s, err := openReadOnly(exampleLedger(t, false))
		if err != nil {
			return nil, err
		}
		defer s.Close()
		return readStatus(t.Context(), s, "applied-1", "")
	}()
	if err != nil {
		t.Fatal(err)
	}
	var raw strings.Builder
	if err := printJSON(&raw, v.Observation); err != nil {
		t.Fatal(err)
	}
	want := mcpreplay.Scope{OperationID: "applied-1", Principal: "alice", Backend: "demo"}
	if _, err := mcpreplay.ParseObservation([]byte(raw.String()), want); err != nil {
		t.Error(err)
	}
}

var longFlag = regexp.MustCompile(`(?m)^ +(-\w, )?--[a-z-]+`)

// docs/cli.md mentions every command, every flag and every member of the output.
func TestDocumentationIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		section := doc
		if cmd.HasParent() && cmd.Runnable() && !cmd.HasSubCommands() {
			heading := "\n## " + cmd.CommandPath() + "\n"
			_, after, found := strings.Cut(doc, heading)
			if !found {
				t.Errorf("docs/cli.md has no section %q", strings.TrimSpace(heading))
			}
			section, _, _ = strings.Cut(after, "\n## ")
		}
		for _, flag := range longFlag.FindAllString(cmd.LocalFlags().FlagUsages(), -1) {
			if flag = flag[strings.Index(flag, "--"):]; flag != "--help" && !strings.Contains(section, "`"+flag+"`") {
				t.Errorf("docs/cli.md does not mention %s of %s", flag, cmd.CommandPath())
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&env{getenv: os.Getenv}))
	for _, v := range []any{statusView{}, recoveryView{}, keyView{}, verifyView{}, resolveView{}, sweepView{}, backupView{}, restoreView{}, attemptView{}, labView{}, evidence.CellSpec{}, lab.Summary{}, archive.Summary{}, vectors.Result{}} {
		for _, name := range members(reflect.TypeOf(v)) {
			if !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("docs/cli.md does not mention the member %s", name)
			}
		}
	}
}

// members are the JSON names of a type and of what is in it.
func members(t reflect.Type) (names []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return members(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" {
				names = append(names, name)
			}
			if name != "" || f.Anonymous {
				names = append(names, members(f.Type)...)
			}
		}
	}
	return names
}

// The help of the program fits one screen, and so does that of each command.
func TestHelpFitsOneScreen(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		got := command("", nil, append(path, "--help")...)
		lines := strings.Split(got.stdout, "\n")
		if got.code != exitFine || got.stderr != "" || len(lines) > 50 {
			t.Errorf("%s: exit %d, %d lines, %s", cmd.CommandPath(), got.code, len(lines), got.stderr)
		}
		for _, line := range lines {
			if len([]rune(line)) > 120 {
				t.Errorf("%s: a line of the help has %d characters: %s", cmd.CommandPath(), len([]rune(line)), line)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&env{getenv: os.Getenv}))
}

// tamper changes the file behind the ledger's back.
func tamper(t *testing.T, ledger, statement string) {
	t.Helper()
	path, err := ledgerPath(ledger)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", "file:"+path)
	if err == nil {
		_, err = db.ExecContext(t.Context(), statement)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommandsRefuseALedgerOfANewerVersion(t *testing.T) {
	t.Parallel()
	ledger := exampleLedger(t, false)
	tamper(t, ledger, `INSERT INTO mcpreplay_schema VALUES (1000, 0)`)
	for _, args := range [][]string{
		{"status", "applied-1"},
		{"fence", "absent-1", "--principal", "alice", "--reason", "gave up"},
		{"verify"},
		{"resolve", "running-1", "--principal", "alice", "--partial", "--reason", "seen"},
		{"sweep"},
		{"backup", filepath.Join(t.TempDir(), "b.db")},
		{"restore", "--declare", "--reason", "snapshot"},
	} {
		got := command("", nil, append(args, "--ledger", ledger)...)
		if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "newer than") || !strings.Contains(got.stderr, "l.db") {
			t.Errorf("%s: %+v", args[0], got)
		}
	}
}

func TestVerifyFindsAChangedResult(t *testing.T) {
	t.Parallel()
	ledger := exampleLedger(t, false)
	tamper(t, ledger, `UPDATE mcpreplay_results SET body = CAST(replace(body, 'paid', 'owed') AS BLOB)`)
	got := command("", nil, "verify", "--ledger", ledger)
	if got.code != exitFailed || !strings.Contains(got.stdout, "  applied-1  result: its bytes do not match their digest\n") {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(got.stderr, "mcpreplay verify: error: the ledger is not consistent: 1 finding\n") {
		t.Errorf("stderr %q", got.stderr)
	}
}
