package issues

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"
)

// Outside runs fn in a transaction that is not the ledger's, for an operation: as far
// as the guard can tell, in another system.
type Outside func(ctx context.Context, operation string, fn func(context.Context, *sqlite.Tx) error) error

// external creates an issue as another system would, which can be asked afterwards
// whether it did.
func external(outside Outside) guard.Effect[Input, Output] {
	return guard.Reconcile(askTracker(outside), guard.External(func(ctx context.Context, op *guard.Op, in Input) (Output, error) {
		body, err := answeredBody(op)
		if err != nil {
			return Output{}, guard.NotApplied(err)
		}
		var id int64
		err = outside(ctx, op.ID, func(ctx context.Context, tx *sqlite.Tx) (err error) {
			id, err = insertIssue(ctx, tx, op.ID, in.Title, body)
			return err
		})
		if err != nil {
			return Output{}, err
		}
		return createdOutside(op, id), nil
	}))
}

func createdOutside(op *guard.Op, id int64) Output {
	op.Effect(strconv.FormatInt(id, 10))
	return Output{OperationID: op.ID, EffectID: id, Result: fmt.Sprintf("created %d", id), State: mcpreplay.StateApplied}
}

// askTracker looks for the issue of an operation whose owner is gone.
func askTracker(outside Outside) func(context.Context, *guard.Op, Input) (guard.Finding[Output], error) {
	return func(ctx context.Context, op *guard.Op, _ Input) (guard.Finding[Output], error) {
		var id int64
		err := outside(ctx, "", func(ctx context.Context, tx *sqlite.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT id FROM issues WHERE operation_id = ?`, op.ID).Scan(&id)
		})
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return guard.Absent[Output]("the tracker has no issue of it"), nil
		case err != nil:
			return guard.Finding[Output]{}, err
		}
		return guard.Found(createdOutside(op, id), fmt.Sprintf("the tracker has issue %d", id)), nil
	}
}
