package lab

import (
	"fmt"
	"strings"
)

// moment is a point of the write path as an operation of one mode reaches it, and
// what there is when its process ends there.
type moment struct {
	mode, point string
	expected    string
	inner       string // fault without which it is not reached
}

// moments are all of the modes. An operation in parts has seven transactions: its
// claim, the issue, the watcher, its failure, the removal of the issue, its failure,
// and the end. The watcher and the removal always fail. in-write-N strikes where a
// part of the effect runs. What the ledger holds when the lease of the dead owner is
// over is known: nothing, before the issue is committed, and a part from then on.
func moments() []moment {
	all := []moment{
		{atomic, "before-write", doneOnce, ""},
		{atomic, "after-ledger-insert", doneOnce, ""},
		{atomic, "after-issue-insert", doneOnce, ""},
		{atomic, "in-write-1", doneOnce, ""},
		{atomic, "after-rollback", doneOnce, "error-after-issue-insert"},
		{atomic, "after-commit", reconciled, ""},
		{atomic, "after-write-1", reconciled, ""},
		{partial, "before-write", doneOnce, ""},
		{partial, "after-ledger-insert", doneOnce, ""},
		{partial, "after-issue-insert", doneOnce, ""},
		{partial, "after-partial-first-commit", settledPart, ""},
		{partial, "after-rollback", settledPart, ""},
		{partial, "after-commit", reconciled, ""},
	}
	// An external effect has its claim and its outcome in the ledger, and happens
	// between them. Whoever asks the tracker finds the issue; that it finds none proves
	// nothing for as long as the effect could still be on its way.
	all = append(all,
		moment{external, "before-write", doneOnce, ""},
		moment{external, "after-ledger-insert", stillUnknown, ""},
		moment{external, "after-write-1", stillUnknown, ""},
		moment{external, "after-issue-insert", reconciled, ""},
		moment{external, "after-write-2", reconciled, ""},
		moment{external, "after-commit", reconciled, ""})
	for n := 1; n <= 7; n++ {
		expected := settledPart
		switch n {
		case 1:
			expected = doneOnce
		case 7:
			expected = reconciled
		}
		all = append(all, moment{partial, fmt.Sprintf("after-write-%d", n), expected, ""})
	}
	all = append(all, moment{partial, "in-write-2", doneOnce, ""},
		moment{partial, "in-write-3", settledPart, ""}, moment{partial, "in-write-5", settledPart, ""})
	return all
}

// unreached are the points that an operation of a mode does not come to. Of the
// transactions that run no part of the effect, the moment before their commit is
// the one after the commit before.
func unreached() []moment {
	all := []moment{{atomic, "after-partial-first-commit", notReached, ""}, {partial, "after-write-8", notReached, ""}}
	for _, n := range []int{1, 4, 6, 7} {
		all = append(all, moment{partial, fmt.Sprintf("in-write-%d", n), notReached, ""})
	}
	return all
}

// fault is an action at the moment, with what must fail before.
func (m moment) fault(action string) string {
	return strings.TrimPrefix(m.inner+","+action+"-"+m.point, ",")
}

// crashCells end a process at each moment: by its own exit, whose code names the
// point, or killed while it is held there.
func crashCells() (all []cell) {
	for _, m := range moments() {
		all = append(all,
			faultCell("exit-"+m.point+"-"+m.mode, "the process ends at "+m.point+", mode "+m.mode, m.expected, m.exit),
			faultCell("kill-"+m.point+"-"+m.mode, "the process is killed at "+m.point+", mode "+m.mode, m.expected, m.kill))
	}
	for _, m := range unreached() {
		all = append(all, faultCell("exit-"+m.point+"-"+m.mode, "an operation of mode "+m.mode+" has no "+m.point, m.expected, func(p *play) {
			s := p.start("server", "--fault", m.fault("exit"))
			aftermath(s, m.mode, rounds(s, m.mode))
			s.stop()
		}))
	}
	return append(all,
		faultCell("owner-may-live", "the process ends in the middle of a partial effect, and its lease is not over", "in_progress_while_the_owner_may_live", func(p *play) {
			s := p.start("crash", "--fault", "exit-after-partial-first-commit", "--lease", "10m")
			state := rounds(s, partial)
			s.wait()
			s = p.start("restart", "--wait", "2s")
			aftermath(s, partial, state)
			s.stop()
		}),
		faultCell("owner-sleeps", "the owner of a partial effect sleeps after its first step, and wakes when that is settled", settledPart, ownerSleeps),
		faultCell("external-at-once", "an attempt comes while another has had its effect outside, and has not recorded it", "waits_for_the_live_owner", externalAtOnce),
		faultCell("partial-at-once", "two identical attempts at a partial effect meet inside the store", "in_progress_then_stored_result", partialAtOnce))
}

// ownerSleeps has another server settle what an owner has begun that is not dead:
// nothing renews its lease while it is held. When it wakes it must do no more.
func ownerSleeps(p *play) {
	a := p.start("sleeper", append([]string{"--fault", "hold-after-partial-first-commit"}, shortLease...)...)
	state := a.send(asked(10, partial)).state
	wait := a.begin(answered(11, partial, state))
	a.reached()
	p.leaseOver(partial)
	b := p.start("server")
	b.send(status(12))
	b.send(answered(13, partial, state))
	a.release()
	wait()
	a.stop()
	b.send(answered(14, partial, state))
	b.send(status(15))
	b.stop()
}

// externalAtOnce has a second server asked while the first is between its effect and
// its record: it must wait for what comes of that.
func externalAtOnce(p *play) {
	a := p.start("worker-a", "--fault", "hold-after-issue-insert")
	b := p.start("worker-b")
	state := a.send(asked(10, external)).state
	first := a.begin(answered(11, external, state))
	a.reached()
	b.send(status(20))
	second := b.begin(answered(21, external, state))
	a.release()
	first()
	second()
	b.send(status(22))
	a.stop()
	b.stop()
}

// partialAtOnce lets the second attempt into the store when the first has done its
// first step, and has it give up before the first may go on.
func partialAtOnce(p *play) {
	a := p.start("worker-a", "--fault", "hold-after-partial-first-commit")
	b := p.start("worker-b", "--fault", "hold-before-write", "--wait", "2s")
	state := a.send(asked(10, partial)).state
	second := b.begin(answered(20, partial, state))
	b.reached()
	first := a.begin(answered(11, partial, state))
	a.reached()
	b.release()
	second()
	a.release()
	first()
	b.send(answered(21, partial, state))
	a.stop()
	b.stop()
}

func (m moment) exit(p *play) {
	s := p.start("crash", append([]string{"--fault", m.fault("exit")}, shortLease...)...)
	state := rounds(s, m.mode)
	s.wait()
	p.leaseOver(m.mode)
	recovered(p, m.mode, state)
}

func (m moment) kill(p *play) {
	s := p.start("crash", append([]string{"--fault", m.fault("hold")}, shortLease...)...)
	state := s.send(asked(10, m.mode)).state
	s.begin(answered(11, m.mode, state))
	s.reached()
	s.kill()
	p.leaseOver(m.mode)
	recovered(p, m.mode, state)
}
