package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"
)

// unsure is a ledger that does not confirm its commits.
type unsure struct{ mcpreplay.Store }

func (unsure) Advance(context.Context, mcpreplay.Change) (mcpreplay.Record, error) {
	return mcpreplay.Record{}, fmt.Errorf("%w: the disk failed", mcpreplay.ErrUnknown)
}

// ended is the exit code and what it is about.
func ended(err error) (int, string) {
	var failure *commandError
	if !errors.As(err, &failure) {
		return exitFine, ""
	}
	return failure.code, fmt.Sprint(failure.err)
}

// A commit that is not confirmed is neither a success nor a refusal: exit code 3.
func TestAnUnconfirmedResolutionIsUnknown(t *testing.T) {
	t.Parallel()
	s, err := openFile(t.Context(), exampleLedger(t, false))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var stdout, stderr bytes.Buffer
	e := &env{stdout: &stdout, stderr: &stderr, getenv: os.Getenv}
	r := guard.Resolution{Key: mcpreplay.Key{Principal: "alice", ID: "running-1"}, Outcome: mcpreplay.StatePartial, EffectOver: true, Actor: "olga", Reason: "seen"}
	if code, text := ended(resolve(t.Context(), e, unsure{s}, r, true)); code != exitUnknown || !strings.HasPrefix(text, "whether it was settled is unknown") || stdout.Len() > 0 {
		t.Errorf("exit %d: %s %s", code, text, stdout.String())
	}
	if code, _ := ended(resolve(t.Context(), e, s, r, true)); code != exitFine || !strings.HasPrefix(stdout.String(), "{\n  \"changed\": true,\n") {
		t.Errorf("again: exit %d, %.40q", code, stdout.String())
	}
}

// A sweep that is stopped says how far it came, and that this is not the end.
func TestAStoppedSweepSaysSo(t *testing.T) {
	t.Parallel()
	s, err := openFile(t.Context(), exampleLedger(t, false))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout bytes.Buffer
	code, text := ended(sweep(ctx, &env{stdout: &stdout, stderr: &stdout}, s, mcpreplay.SweepPolicy{}, true))
	if code != exitFailed || text != "stopped before the end" || !strings.HasPrefix(stdout.String(), "{\n  \"complete\": false,\n") {
		t.Errorf("exit %d: %s %s", code, text, stdout.String())
	}
}

// What a sweep forgot is unknown to every command from then on, and the ledger is
// consistent without it.
func TestASweepForgets(t *testing.T) {
	t.Parallel()
	ledger := exampleLedger(t, false)
	at, err := time.Parse(time.DateOnly, day)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := mcpreplay.NewKeyring([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	id := ring.MintID(at)
	clock := at.Add(time.Minute)
	s, err := sqlite.Open(strings.TrimPrefix(ledger, "sqlite:"), &sqlite.Options{Backend: "demo", Clock: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	op := mcpreplay.Operation{Key: mcpreplay.Key{Principal: "alice", ID: id}, Authority: at.Add(time.Hour), Retention: at.Add(time.Hour)}
	for _, op := range []mcpreplay.Operation{op, {Key: mcpreplay.Key{Principal: "alice", ID: "fenced-1"}}} {
		if _, _, err := s.Begin(t.Context(), op, mcpreplay.Change{To: mcpreplay.StateNotApplied, Fence: true,
			Event: mcpreplay.Event{Kind: mcpreplay.EventFence, Actor: "alice"}}); err != nil {
			t.Fatal(err)
		}
		clock = at.Add(48 * time.Hour)
	}
	fence := []string{"fence", id, "--principal", "alice", "--reason", "gave up", "--ledger", ledger}
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{exitMisused, "--forget is below 24h", []string{"sweep", "--forget", "23h", "--ledger", ledger}},
		{exitMisused, "--sweep-forget is below 24h", []string{"serve", "--sweep-forget", "-24h", "--ledger", ledger}},
		{exitMisused, "--sweep-forget 24h0m0s is shorter", []string{"serve", "--sweep-forget", "24h", "--state-ttl", "24h", "--ledger", ledger}},
		{exitFine, "dropped 2 (83 bytes)\n", []string{"sweep", "--ledger", ledger}},
		{exitFine, "not_applied", []string{"status", id, "--ledger", ledger}},
		{exitFine, "forgot 1 record\n", []string{"sweep", "--forget", "24h", "--ledger", ledger}},
		{exitFine, "dropped 0 (0 bytes)\n", []string{"sweep", "--forget", "24h", "--ledger", ledger}},
		{exitUnknown, "may have been swept", []string{"status", id, "--ledger", ledger, "--principal", "alice"}},
		{exitUnknown, "may have been swept", fence},
		{exitFine, "forgotten: operations 1, with events 1, of ids minted before ", []string{"verify", "--ledger", ledger}},
	} {
		got := command("", nil, tt.args...)
		if got.code != tt.code || !strings.Contains(got.stdout+got.stderr, tt.want) {
			t.Errorf("%v: exit %d, want %d: %q, want %q in it", tt.args[:2], got.code, tt.code, got.stdout+got.stderr, tt.want)
		}
	}
	if got := command("", nil, "verify", "--ledger", ledger, "--json"); !strings.Contains(got.stdout, `"forgotten": {`) {
		t.Errorf("as JSON: %s", got.stdout)
	}
}

// Only a ledger in a file is copied by this program, and what cannot be declared is
// not said to be.
func TestOtherLedgersAreBackedUpByTheirDatabase(t *testing.T) {
	t.Parallel()
	s, err := openFile(t.Context(), exampleLedger(t, false))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if code, text := ended(backup(t.Context(), &env{}, unsure{s}, "out.db", false)); code != exitMisused || !strings.Contains(text, "only a ledger in a file") {
		t.Errorf("exit %d: %s", code, text)
	}
}

func TestTheOperatorIsSomebody(t *testing.T) {
	t.Parallel()
	if by, err := operator(""); err != nil || by == "" {
		t.Errorf("operator = %q, %v", by, err)
	}
	if by, err := operator("olga"); err != nil || by != "olga" {
		t.Errorf("operator = %q, %v", by, err)
	}
	if code, _ := ended(func() error { _, err := operator("ol\nga"); return err }()); code != exitMisused {
		t.Errorf("exit %d for a name with a line end", code)
	}
}
