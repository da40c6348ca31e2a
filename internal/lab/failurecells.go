package lab

import "fmt"

// failureCells have the effect fail or panic at each point inside it, and the
// ledger before and after.
func failureCells() (all []cell) {
	add := func(fault, mode, expected string) {
		all = append(all, faultCell(fault+"-"+mode, fault+", mode "+mode, expected, func(p *play) {
			s := p.start("server", append([]string{"--fault", fault}, shortLease...)...)
			aftermath(s, mode, rounds(s, mode))
			s.stop()
		}))
	}
	for _, action := range []string{"error", "panic"} {
		for _, point := range []string{"after-ledger-insert", "after-issue-insert", "in-write-1"} {
			add(action+"-"+point, atomic, failedNothing)
		}
		for _, point := range []string{"after-ledger-insert", "after-issue-insert", "in-write-2", "in-write-9"} {
			add(action+"-"+point, partial, staysUnknown)
		}
		for _, n := range []int{4, 7} { // the part fails of itself, and now for another reason
			add(fmt.Sprintf("%s-in-write-%d", action, n), partial, completed)
		}
	}
	for _, mode := range []string{atomic, partial} {
		add("error-before-write", mode, refusedNothing)
		add("error-after-commit", mode, reconciled)
	}
	return all
}
