//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"mcpreplay"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"
)

// TestLedgerInPostgreSQL goes through the commands that need nothing but a ledger.
func TestLedgerInPostgreSQL(t *testing.T) {
	t.Parallel()
	server := pgtest.Own(t)
	url := server.Database(t)
	refused := command("", nil, "status", "demo-0001", "--ledger", url)
	if refused.code != exitFailed || !strings.Contains(refused.stderr, "mcpreplay migrate --ledger postgres:URL") {
		t.Errorf("status without a ledger: exit %d, %s", refused.code, refused.stderr)
	}
	for range 2 { // a second time there is nothing to do
		if got := command("", nil, "migrate", "--ledger", "postgres:"+url, "--backend", "demo"); got.code != exitFine {
			t.Fatalf("migrate: exit %d, %s", got.code, got.stderr)
		}
	}
	s, err := postgres.Connect(t.Context(), url, &postgres.Options{Backend: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	digest := make([]byte, 32)
	op := mcpreplay.Operation{Key: mcpreplay.Key{Principal: "alice", ID: "demo-0001"}, Tool: "x", Version: "1",
		Digests: mcpreplay.Digests{KeyID: "k", Fingerprint: digest, Arguments: digest, Answers: digest, State: digest, Sent: digest}}
	_, _, err = s.Begin(t.Context(), op, mcpreplay.Change{To: mcpreplay.StateInProgress, Owner: "o", Event: mcpreplay.Event{Kind: mcpreplay.EventClaim}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"status", "demo-0001"}, exitUnknown, "in_progress"},
		{[]string{"fence", "demo-0001", "--principal", "alice", "--reason", "test"}, exitUnknown, "in_progress"},
		{[]string{"fence", "demo-0002", "--principal", "alice", "--reason", "test"}, exitFine, "not_applied"},
		{[]string{"status", "demo-0002"}, exitFine, "not_applied"},
		{[]string{"verify"}, exitFine, `"consistent": true`},
	} {
		for _, ledger := range []string{url, "postgres:" + url, url + "#mcpreplay"} {
			got := command("", nil, append(tt.args, "--json", "--ledger", ledger)...)
			if got.code != tt.code || !strings.Contains(got.stdout, tt.want) || !json.Valid([]byte(got.stdout)) {
				t.Errorf("%v of %s: exit %d, %s%s; want %d and %s", tt.args, ledger, got.code, got.stdout, got.stderr, tt.code, tt.want)
			}
		}
	}
	if got := command("", nil, "verify", "--ledger", url+"#other"); got.code != exitFailed || !strings.Contains(got.stderr, "--schema other") {
		t.Errorf("verify of another schema: exit %d, %s", got.code, got.stderr)
	}
}

func TestMigrationsArePrinted(t *testing.T) {
	t.Parallel()
	got := command("", nil, "migrate", "--print", "--schema", "Other", "--backend", "demo", "--ids", "principal")
	for _, want := range []string{"BEGIN;", "COMMIT;", `CREATE SCHEMA IF NOT EXISTS "Other";`, `CREATE TABLE "Other".operations`, "'demo'", "'principal'"} {
		if got.code != exitFine || !strings.Contains(got.stdout, want) {
			t.Errorf("migrate --print: exit %d, without %s\n%s", got.code, want, got.stdout)
		}
	}
	if got := command("", nil, "migrate"); got.code != exitMisused {
		t.Errorf("migrate without a ledger: exit %d, want %d", got.code, exitMisused)
	}
	if got := command("", nil, "migrate", "--print", "--ids", "x"); got.code != exitMisused {
		t.Errorf("migrate of other ids: exit %d, want %d", got.code, exitMisused)
	}
}

func TestPasswordsInURLsAreNotTold(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"status", "demo-0001"}, {"verify"}, {"migrate"}, {"fence", "demo-0001", "--principal", "a", "--reason", "r"}} {
		for _, ledger := range []string{
			"postgres://app:s3cr3t@127.0.0.1:1/x", "postgres://app:s3cr3t%zz@127.0.0.1:1/x", "postgres:host=127.0.0.1 port=1 user=a password=s3cr3t",
		} {
			got := command("", nil, append(args, "--ledger", ledger)...)
			if got.code == exitFine || strings.Contains(got.stdout+got.stderr, "s3cr3t") {
				t.Errorf("%v of %s: exit %d, %s", args, ledger, got.code, got.stderr)
			}
		}
	}
}
