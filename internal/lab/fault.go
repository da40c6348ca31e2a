// Package lab reproduces failures with real processes and keeps the evidence.
package lab

import (
	"os"

	"mcpreplay"
	"mcpreplay/faults"
	"mcpreplay/sqlite"
)

// Faults returns what wraps a store so that the faults of those names happen, each
// once. The first is the closest to the store: what it makes fail has failed for the
// others. Where one holds, the process says so at the probe, and waits. An unknown
// name is an error.
func Faults(names []string, probe string) (func(*sqlite.Store) mcpreplay.Applier[*sqlite.Tx], error) {
	hooks := faults.Hooks{Exit: os.Exit}
	var all []faults.Fault
	for _, name := range names {
		fault, err := faults.Parse(name)
		if err != nil {
			return nil, err
		}
		all = append(all, fault)
		if fault.Action == faults.Hold && hooks.Hold == nil {
			line, err := dialProbe(probe)
			if err != nil {
				return nil, err
			}
			hooks.Hold = line.hold
		}
	}
	return func(s *sqlite.Store) mcpreplay.Applier[*sqlite.Tx] {
		var wrapped mcpreplay.Applier[*sqlite.Tx] = s
		for _, fault := range all {
			wrapped = faults.Wrap(wrapped, fault, hooks)
		}
		return wrapped
	}, nil
}
