package issues

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"
)

// owner names this process as the owner of what it claims.
var owner = rand.Text()

// failure is an error whose class is recorded as evidence.
type failure string

func (f failure) Error() string { return string(f) }

// The failures of the demonstration. Both always happen.
const (
	watcherFailure      failure = "SyntheticWatcherFailure"
	compensationFailure failure = "SyntheticCompensationFailure"
)

// partial creates an issue whose watcher fails and whose rollback fails too, each
// part recorded as it commits. It shows what a partial effect looks like.
type partial struct {
	store mcpreplay.Applier[*sqlite.Tx]
	lease time.Duration
}

func (p partial) create(ctx context.Context, op *guard.Op, o mcpreplay.Operation, in Input, encode func(Output) (mcpreplay.Result, error)) (mcpreplay.Record, bool, error) {
	body, err := answeredBody(op)
	if err != nil {
		return mcpreplay.Record{}, false, &mcpreplay.EffectError{Err: err}
	}
	rec, started, err := p.store.Begin(ctx, o, mcpreplay.Change{
		To:    mcpreplay.StateInProgress,
		Owner: owner,
		Lease: p.lease,
		Event: mcpreplay.Event{Kind: mcpreplay.EventClaim, Actor: owner},
	})
	if err != nil || !started {
		return rec, started, err
	}
	// Once claimed, the steps go on whether or not somebody still listens.
	rec, err = p.steps(context.WithoutCancel(ctx), rec, in.Title, body, encode)
	return rec, true, err
}

// steps runs the parts in order. Whatever fails to be recorded leaves the claim
// in progress, which reads as unknown.
func (p partial) steps(ctx context.Context, rec mcpreplay.Record, title, body string, encode func(Output) (mcpreplay.Result, error)) (mcpreplay.Record, error) {
	var issue int64
	rec, err := p.store.ApplyStep(ctx, p.step(rec, mcpreplay.EventStep, "issue", "succeeded"),
		func(ctx context.Context, tx *sqlite.Tx, c *mcpreplay.Change) (err error) {
			issue, err = insertIssue(ctx, tx, rec.ID, title, body)
			c.Effect = strconv.FormatInt(issue, 10)
			return err
		})
	if err != nil {
		return rec, err
	}
	rec, err = p.fail(ctx, rec, mcpreplay.EventStep, "watcher", func(ctx context.Context, tx *sqlite.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO watchers (issue_id, name) VALUES (?, 'audit@example.test')`, issue); err != nil {
			return err
		}
		return watcherFailure
	})
	if err != nil {
		return rec, err
	}
	rec, err = p.fail(ctx, rec, mcpreplay.EventCompensation, "rollback_issue", func(ctx context.Context, tx *sqlite.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM issues WHERE id = ?`, issue); err != nil {
			return err
		}
		return compensationFailure
	})
	if err != nil {
		return rec, err
	}
	return p.finish(ctx, rec, issue, encode)
}

// fail attempts a part that fails, and records both.
func (p partial) fail(ctx context.Context, rec mcpreplay.Record, kind mcpreplay.EventKind, name string, part func(context.Context, *sqlite.Tx) error) (mcpreplay.Record, error) {
	rec, err := p.store.Advance(ctx, p.step(rec, kind, name, "attempted"))
	if err != nil {
		return rec, err
	}
	_, err = p.store.ApplyStep(ctx, p.step(rec, kind, name, "succeeded"),
		func(ctx context.Context, tx *sqlite.Tx, _ *mcpreplay.Change) error { return part(ctx, tx) })
	var effect *mcpreplay.EffectError
	if !errors.As(err, &effect) {
		return rec, fmt.Errorf("%s was to fail and did not: %w", name, err)
	}
	failed := p.step(rec, kind, name, "failed")
	failed.Event.Evidence = effect.Err.Error()
	return p.store.Advance(ctx, failed)
}

// finish records what is durable and what is not.
func (p partial) finish(ctx context.Context, rec mcpreplay.Record, issue int64, encode func(Output) (mcpreplay.Result, error)) (mcpreplay.Record, error) {
	result, err := encode(Output{
		OperationID: rec.ID,
		EffectID:    issue,
		Result:      fmt.Sprintf("partial %d; watcher failed; rollback failed", issue),
		State:       mcpreplay.StatePartial,
	})
	if err != nil {
		return rec, err
	}
	return p.store.ApplyStep(ctx, mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision, To: mcpreplay.StatePartial, Owner: owner, Result: &result,
		Event: mcpreplay.Event{Kind: mcpreplay.EventFinish, Actor: owner, Evidence: "watcher failed; rollback failed"},
	}, func(ctx context.Context, tx *sqlite.Tx, _ *mcpreplay.Change) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO compensations (issue_id, kind, outcome) VALUES (?, 'rollback_issue', ?)`,
			issue, "failed:"+string(compensationFailure))
		return err
	})
}

func (p partial) step(rec mcpreplay.Record, kind mcpreplay.EventKind, name, outcome string) mcpreplay.Change {
	return mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision, Owner: owner, Lease: p.lease,
		Event: mcpreplay.Event{Kind: kind, Step: name, Outcome: outcome, Actor: owner},
	}
}
