package sqlite

import (
	"context"
	"errors"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
)

// positionsAhead is how far a declared restore goes beyond the ledger's position:
// further than the ledger that was lost can have come since its backup.
const positionsAhead = 1 << 32

const (
	sqlRestores = `SELECT incarnation, after_position, until_position, actor, reason, at
FROM main.mcpreplay_restores ORDER BY incarnation`
	sqlRestored = `INSERT INTO main.mcpreplay_restores (incarnation, after_position, until_position, actor, reason, at) VALUES (?, ?, ?, ?, ?, ?)`
	sqlBump     = `UPDATE main.mcpreplay_ledger SET incarnation = ?`
	sqlPosition = `UPDATE main.sqlite_sequence SET seq = ? WHERE name = 'mcpreplay_events'`
	sqlFirst    = `INSERT INTO main.sqlite_sequence (name, seq) VALUES ('mcpreplay_events', ?)`
)

func (l *ledger) restores() (all []mcpreplay.Restore, err error) {
	st, _, err := l.raw.Prepare(sqlRestores)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	err = (&stmt{st}).run(func(st *sqlite3.Stmt) {
		all = append(all, mcpreplay.Restore{
			Incarnation: st.ColumnInt64(0), After: st.ColumnInt64(1), Until: st.ColumnInt64(2),
			Actor: st.ColumnText(3), Reason: st.ColumnText(4), At: timeAt(st, 5),
		})
	})
	return all, err
}

// DeclareRestore says that this file was brought back from a backup: whatever was
// acknowledged since the backup was made is not in it. The ledger becomes another
// incarnation, by which every client that knows the one before sees that nothing
// here settles its operations, and its positions go on beyond those that anybody
// can have seen.
func (s *Store) DeclareRestore(ctx context.Context, actor, reason string) (info mcpreplay.Info, err error) {
	if actor == "" || reason == "" {
		return mcpreplay.Info{}, errors.New("sqlite: a restore wants to know who declares it, and why")
	}
	err = s.write(ctx, func(_ context.Context, c *conn) (bool, error) {
		before, err := c.read()
		if err != nil {
			return false, err
		}
		at, err := s.now(before)
		if err != nil {
			return false, err
		}
		info = before
		info.Incarnation, info.Position, info.Time = before.Incarnation+1, before.Position+positionsAhead, at
		if err := run(c, sqlRestored, info.Incarnation, before.Position, info.Position, actor, reason, at); err != nil {
			return false, err
		}
		if err := run(c, sqlBump, info.Incarnation); err != nil {
			return false, err
		}
		if err := run(c, sqlPosition, info.Position); err != nil {
			return false, err
		}
		if c.raw.Changes() == 0 { // no event was ever written
			if err := run(c, sqlFirst, info.Position); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return mcpreplay.Info{}, err
	}
	return s.Info(ctx)
}
