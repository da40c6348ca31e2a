package guard

import (
	"context"
	"errors"
	"sync"
	"time"

	"mcpreplay"
)

var errBeforeRestore = errors.New("its id was minted before the ledger was restored, and what was done since the backup is not recorded")

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

// checkKnown fails with mcpreplay.ErrForgotten if the record of id, which has none, may
// have been swept, and with errBeforeRestore if it may be of the time that a declared restore took
// out of the ledger. That can be told of ids that a server minted, which carry their time;
// one that a caller chose may be new. Whose key it was does not matter: it may be retired.
func (g *Guard) checkKnown(ctx context.Context, id string, ledger mcpreplay.Info) error {
	if ledger.Forgotten.Refuses(id) {
		return mcpreplay.ErrForgotten
	}
	minted, ok := mcpreplay.MintTime(id)
	if !ok {
		return nil
	}
	restored, err := g.restores.began(ctx, g.store, ledger.Incarnation)
	if err == nil && !restored.IsZero() && minted.Before(restored.Add(maxSkew)) {
		err = errBeforeRestore
	}
	return err
}

// isLost reports whether an error of checkKnown says that nobody knows what was done.
func isLost(err error) bool {
	return errors.Is(err, mcpreplay.ErrForgotten) || errors.Is(err, errBeforeRestore)
}

// checkLost fails with an error that isLost if this attempt may be the repeat of one that
// the ledger knows nothing of any more. Request state that was let in is of this
// incarnation, and so is its id.
func (a *attempt) checkLost(ctx context.Context) error {
	if a.op.ID == "" || a.claims != nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, a.g.opts.Wait)
	defer cancel()
	err := a.g.checkKnown(bounded, a.op.ID, a.ledger)
	if err != nil && !isLost(err) {
		return a.refuseStore(ctx, err)
	}
	return err
}

// mayFence reports whether "never applied" would be true of an operation that has
// no record.
func (g *Guard) mayFence(ctx context.Context, key mcpreplay.Key) (bool, error) {
	if _, minted := mcpreplay.MintTime(key.ID); !minted {
		return true, nil
	}
	rec, err := g.store.Get(ctx, key)
	if !errors.Is(err, mcpreplay.ErrNotFound) {
		return true, err
	}
	if err = g.checkKnown(ctx, key.ID, rec.Ledger); isLost(err) {
		return false, nil
	}
	return true, err
}
