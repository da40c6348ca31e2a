package lab

import (
	"context"
	"errors"

	"mcpreplay/internal/evidence"
	"mcpreplay/sqlite"
)

// lockCells have another process hold the ledger's write lock.
func lockCells() []cell {
	return []cell{
		faultCell("lock-released", "the write lock is held, for less than a call waits", completed, func(p *play) {
			s := p.start("server")
			state := s.send(asked(10, atomic)).state
			release := p.lock()
			wait := s.begin(answered(11, atomic, state))
			s.send(status(12)) // reading does not wait
			release()
			wait()
			s.send(status(13))
			s.stop()
		}),
		faultCell("lock-held-atomic", "the write lock is held for longer than a call waits, mode atomic", refusedNothing, func(p *play) { locked(p, atomic) }),
		faultCell("lock-held-partial", "the write lock is held for longer than a call waits, mode partial", refusedNothing, func(p *play) { locked(p, partial) }),
		faultCell("lock-held-by-effect", "the effect of another process runs for longer than a call waits", refusedNothing, func(p *play) {
			a := p.start("worker-a", "--fault", "hold-after-issue-insert")
			b := p.start("worker-b", "--wait", "2s")
			slow := call{id: 10, operation: p.op + "-slow"}
			slow.state = a.send(slow).state
			slow.id, slow.body = 11, alpha
			wait := a.begin(slow)
			a.reached()
			state := b.send(asked(20, atomic)).state
			b.send(answered(21, atomic, state))
			b.send(status(22))
			a.release()
			wait()
			b.send(answered(23, atomic, state))
			b.send(status(24))
			a.stop()
			b.stop()
		}),
	}
}

func locked(p *play, mode string) {
	s := p.start("server", "--wait", "2s")
	state := s.send(asked(10, mode)).state
	release := p.lock()
	s.send(answered(11, mode, state))
	s.send(status(12))
	release()
	s.send(answered(13, mode, state))
	s.send(status(14))
	s.stop()
}

var errNothingDone = errors.New("the lock was all that was wanted")

// lock takes the write lock, from the lab's own process.
func (p *play) lock() (release func()) {
	held, let, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	p.act("takes the write lock", func() error {
		s, err := sqlite.Open(p.store(), &sqlite.Options{Backend: evidence.Backend})
		if err != nil {
			return err
		}
		p.atEnd(s.Close)
		go func() {
			over <- s.Setup(context.Background(), func(context.Context, *sqlite.Tx) error {
				close(held)
				select {
				case <-let:
				case <-p.ctx.Done():
				}
				return errNothingDone
			})
		}()
		select {
		case <-held:
			return nil
		case err := <-over:
			return err
		}
	})
	return func() {
		p.act("lets the write lock go", func() error {
			close(let)
			if err := <-over; !errors.Is(err, errNothingDone) {
				return err
			}
			return nil
		})
	}
}
