package guard

import (
	"context"
	"errors"
	"sync"
	"time"

	"mcpreplay"
)

var errForgotten = errors.New("its id was minted before the ledger was restored, and what was done since the backup is not recorded")

// restores remembers when the ledger was last restored. Only Store.Info tells,
// and it is asked once for each incarnation.
type restores struct {
	mu          sync.Mutex
	incarnation int64
	last        time.Time // of the declared restore that began it; zero if none did
}

func (r *restores) learn(info mcpreplay.Info) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.incarnation, r.last = info.Incarnation, time.Time{}
	if n := len(info.Restores); n > 0 {
		r.last = info.Restores[n-1].At
	}
	return r.last
}

// began is when the given incarnation of the ledger was begun by a restore.
func (r *restores) began(ctx context.Context, s mcpreplay.Store, incarnation int64) (time.Time, error) {
	r.mu.Lock()
	last, known := r.last, r.incarnation == incarnation
	r.mu.Unlock()
	if known {
		return last, nil
	}
	info, err := s.Info(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return r.learn(info), nil
}

// lost reports whether an operation without a record may have been done in the
// time that a declared restore took out of the ledger. That can be told of ids we
// minted, which carry their time; one that a caller chose may be new.
func (g *Guard) lost(ctx context.Context, id string, ledger mcpreplay.Info) (bool, error) {
	minted, ours := g.opts.Keys.MintedID(id)
	if !ours {
		return false, nil
	}
	restored, err := g.restores.began(ctx, g.store, ledger.Incarnation)
	if err != nil || restored.IsZero() {
		return false, err
	}
	return minted.Before(restored.Add(maxSkew)), nil
}

// checkLost fails with errForgotten if this attempt may be the repeat of one that the
// restored ledger knows nothing of. Request state that was let in is of this
// incarnation, and so is its id.
func (a *attempt) checkLost(ctx context.Context) error {
	if a.op.ID == "" || a.claims != nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, a.g.opts.Wait)
	defer cancel()
	lost, err := a.g.lost(bounded, a.op.ID, a.ledger)
	switch {
	case err != nil:
		return a.refuseStore(ctx, err)
	case lost:
		return errForgotten
	}
	return nil
}

// mayFence reports whether "never applied" would be true of an operation that has
// no record.
func (g *Guard) mayFence(ctx context.Context, key mcpreplay.Key) (bool, error) {
	if _, ours := g.opts.Keys.MintedID(key.ID); !ours {
		return true, nil
	}
	rec, err := g.store.Get(ctx, key)
	if !errors.Is(err, mcpreplay.ErrNotFound) {
		return true, err
	}
	lost, err := g.lost(ctx, key.ID, rec.Ledger)
	return !lost, err
}
