package lab

import (
	"context"
	"errors"

	"mcpreplay/internal/evidence"
	"mcpreplay/sqlite"
)

// storedCells are about what stands in the file: a record without its effect, and a
// result that is not let in.
func storedCells() []cell {
	orphan := faultCell("orphaned-record", "the issue of a record is deleted behind its back", "missing_effect", func(p *play) {
		s := p.start("server")
		state := rounds(s, atomic)
		s.stop()
		p.act("deletes the issue", func() error {
			s, err := sqlite.Open(p.store(), &sqlite.Options{Backend: evidence.Backend})
			if err != nil {
				return err
			}
			err = s.Setup(p.ctx, func(ctx context.Context, tx *sqlite.Tx) error {
				_, err := tx.ExecContext(ctx, `DELETE FROM issues`)
				return err
			})
			return errors.Join(err, s.Close())
		})
		recovered(p, atomic, state)
	})
	orphan.control = true // the judge must see it; what the server says is in its story
	return []cell{
		orphan,
		faultCell("large-result-atomic", "a result is larger than may be kept, mode atomic", failedNothing, func(p *play) { largeResult(p, atomic) }),
		faultCell("large-result-partial", "a result is larger than may be kept, mode partial", "part_recorded_with_a_notice", func(p *play) { largeResult(p, partial) }),
	}
}

func largeResult(p *play, mode string) {
	s := p.start("server", append([]string{"--max-result", "50"}, shortLease...)...)
	state := rounds(s, mode)
	s.send(status(12))
	s.stop()
	s = p.start("restart")
	s.send(answered(13, mode, state))
	s.send(status(14))
	s.stop()
}
