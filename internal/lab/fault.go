// Package lab reproduces failures with real processes and keeps the evidence.
package lab

import (
	"os"

	"mcpreplay"
	"mcpreplay/faults"
	"mcpreplay/sqlite"
)

// Fault returns what wraps a store so that the fault of that name happens. Where it
// holds, the process says so at the probe, an address of Listen, and waits. An
// unknown name is an error.
func Fault(name, probe string) (func(*sqlite.Store) mcpreplay.Applier[*sqlite.Tx], error) {
	fault, err := faults.Parse(name)
	if err != nil {
		return nil, err
	}
	hooks := faults.Hooks{Exit: os.Exit}
	if fault.Action == faults.Hold {
		line, err := dialProbe(probe)
		if err != nil {
			return nil, err
		}
		hooks.Hold = line.hold
	}
	return func(s *sqlite.Store) mcpreplay.Applier[*sqlite.Tx] {
		return faults.Wrap[*sqlite.Tx](s, fault, hooks)
	}, nil
}
