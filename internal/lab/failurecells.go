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
		add(action+"-after-ledger-insert", partial, doneOnce)
		for _, point := range []string{"after-issue-insert", "in-write-2"} {
			add(action+"-"+point, partial, failedNothing)
		}
		for _, n := range []int{3, 5} { // the part fails of itself, and now for another reason
			add(fmt.Sprintf("%s-in-write-%d", action, n), partial, completed)
		}
	}
	for _, mode := range []string{atomic, partial} {
		add("error-before-write", mode, refusedNothing)
	}
	add("error-after-commit", atomic, reconciled)
	add("error-after-commit", partial, completed) // its owner looks, and finds it
	return all
}
