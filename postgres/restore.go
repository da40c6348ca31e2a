package postgres

import (
	"context"
	"errors"

	"mcpreplay"
)

// positionsAhead is how far a declared restore goes beyond the ledger's position:
// further than the ledger that was lost can have come since its backup.
const positionsAhead = 1 << 32

const (
	sqlRestores = `SELECT incarnation, after_position, until_position, actor, reason, at
FROM {schema}.restores ORDER BY incarnation`
	sqlRestored = `INSERT INTO {schema}.restores (incarnation, after_position, until_position, actor, reason, at) VALUES ($1, $2, $3, $4, $5, $6)`
	sqlBump     = `UPDATE {schema}.head SET incarnation = $1`
)

func scanRestores(a answer) (all []mcpreplay.Restore, err error) {
	for _, values := range a.rows {
		c := reader{row: values}
		all = append(all, mcpreplay.Restore{
			Incarnation: c.int(), After: c.int(), Until: c.int(), Actor: c.text(), Reason: c.text(), At: c.time(),
		})
		err = errors.Join(err, c.err)
	}
	return all, err
}

// DeclareRestore says that this database was brought back from a backup: whatever
// was acknowledged since the backup was made is not in it. The ledger becomes
// another incarnation, by which every client that knows the one before sees that
// nothing here settles its operations, and its positions go on beyond those that
// anybody can have seen.
func (s *Store) DeclareRestore(ctx context.Context, actor, reason string) (mcpreplay.Info, error) {
	if actor == "" || reason == "" {
		return mcpreplay.Info{}, errors.New("postgres: a restore wants to know who declares it, and why")
	}
	err := s.write(ctx, func(ctx context.Context, w *work) ([]statement, error) {
		answers, err := w.begin(ctx, beginWrite, s.in(sqlRead, ""))
		if err != nil {
			return nil, err
		}
		r, _, err := s.one(answers[0])
		if err != nil {
			return nil, err
		}
		at, _, err := w.next(ctx, r, positionsAhead)
		if err != nil {
			return nil, err
		}
		after := r.Ledger.Position - positionsAhead
		return []statement{
			s.in(sqlRestored, r.Ledger.Incarnation+1, after, r.Ledger.Position, clean(actor), clean(reason), at),
			s.in(sqlBump, r.Ledger.Incarnation+1),
		}, nil
	})
	if err != nil {
		return mcpreplay.Info{}, err
	}
	return s.Info(ctx)
}
