package issues

import (
	"context"
	"fmt"
	"strconv"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"
)

// failure is an error whose class is recorded as evidence.
type failure string

func (f failure) Error() string { return string(f) }

// The failures of the demonstration. Both always happen.
const (
	watcherFailure      failure = "SyntheticWatcherFailure"
	compensationFailure failure = "SyntheticCompensationFailure"
)

// created is what the steps know of each other.
type created struct {
	Issue int64 `json:"issue"`
}

// partial creates an issue whose watcher fails and whose removal fails too. It shows
// what a partial effect looks like.
func partial(s mcpreplay.Applier[*sqlite.Tx]) guard.Effect[Input, Output] {
	return guard.Steps(partialResult,
		guard.DoTx(s, "issue", addIssue, removeIssue),
		guard.DoTx(s, "watcher", addWatcher, nil),
	)
}

func addIssue(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in Input, c *created) error {
	body, err := answeredBody(op)
	if err != nil {
		return err
	}
	if c.Issue, err = insertIssue(ctx, tx, op.ID, in.Title, body); err != nil {
		return err
	}
	op.Effect(strconv.FormatInt(c.Issue, 10))
	return nil
}

func removeIssue(ctx context.Context, tx *sqlite.Tx, _ *guard.Op, _ Input, c *created) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM issues WHERE id = ?`, c.Issue); err != nil {
		return err
	}
	return compensationFailure
}

func addWatcher(ctx context.Context, tx *sqlite.Tx, _ *guard.Op, _ Input, c *created) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO watchers (issue_id, name) VALUES (?, 'audit@example.test')`, c.Issue); err != nil {
		return err
	}
	return watcherFailure
}

// partialResult says how far it came: never all the way.
func partialResult(_ context.Context, op *guard.Op, _ Input, c created) (Output, error) {
	text := fmt.Sprintf("%s %d", op.State(), c.Issue)
	for _, s := range op.Steps() {
		if s.Name == "watcher" {
			text += "; watcher " + s.Outcome
		}
	}
	for _, s := range op.Steps() {
		if s.Compensation != "" {
			text += "; rollback " + s.Compensation
		}
	}
	return Output{OperationID: op.ID, EffectID: c.Issue, Result: text, State: op.State()}, nil
}
