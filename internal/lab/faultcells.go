package lab

import (
	"slices"
	"time"

	"mcpreplay/internal/evidence"
)

// faultCells are what happens when a part fails: at every point of the write path,
// in the file, in the lock, in the clock, and when a process is stopped.
func faultCells() []cell {
	return slices.Concat(crashCells(), failureCells(), stopCells(), lockCells(), fileCells(), logCells(), fullCells(), openCells(), clockCells(), storedCells())
}

func faultCell(id, title, expected string, script func(*play)) cell {
	id = "fault-" + id
	return cell{
		id: id, suite: SuiteFaults, title: title, expected: expected,
		transport: overStdio, protocol: evidence.ProtocolModern, op: id, script: script,
	}
}

// The modes of an effect, as the tool names them. The first is its default, so that
// the calls of most cells name none.
const (
	atomic   = "atomic"
	partial  = "partial"
	external = "external"
)

// The outcomes that several cells share.
const (
	doneOnce          = "unknown_then_done_once"                // nothing was there, and the exact repeat did it
	reconciled        = "unknown_then_reconciled_by_status"     // it was there, and nothing ran again
	stillUnknown      = "unknown_until_it_can_no_longer_happen" // its owner is gone, and nothing ran again
	settledPart       = "part_settled_by_what_the_ledger_has"   // its owner is gone, and nothing ran again
	refusedNothing    = "refused_before_any_effect"             // and the exact repeat did it
	failedNothing     = "failed_definitely_then_done_once"      // told as a failure, nothing was there
	notReached        = "fault_not_reached"                     // and nothing went wrong
	completed         = "completed_once"                        // as if nothing had happened
	acknowledgedStays = "acknowledged_stays_rest_is_not_lost"   // and the exact repeats of the rest did them
)

// shortLease is for owners that die.
const leaseTime = 200 * time.Millisecond

var shortLease = []string{"--lease", leaseTime.String()}

// leaseOver lets the time pass that a claim of an owner who has died is still taken
// to be his.
func (p *play) leaseOver(mode string) {
	if mode != atomic {
		p.act("waits until the lease is over", func() error {
			time.Sleep(leaseTime + 20*time.Millisecond)
			return nil
		})
	}
}

// asked is a call of the usual operation in a mode.
func asked(id int, mode string) call {
	c := call{id: id}
	if mode != atomic {
		c.mode = mode
	}
	return c
}

// answered is its continuation.
func answered(id int, mode, state string) call {
	c := asked(id, mode)
	c.state, c.body = state, alpha
	return c
}

// rounds makes both rounds of the usual operation, as requests 10 and 11.
func rounds(s *server, mode string) (state string) {
	state = s.send(asked(10, mode)).state
	s.send(answered(11, mode, state))
	return state
}

// aftermath is what a client does that has lost a reply: it asks, repeats exactly,
// and asks again.
func aftermath(s *server, mode, state string) {
	s.send(status(12))
	s.send(answered(13, mode, state))
	s.send(status(14))
}

// recovered is the aftermath at a server that was started anew.
func recovered(p *play, mode, state string) {
	s := p.start("restart")
	aftermath(s, mode, state)
	s.stop()
}
