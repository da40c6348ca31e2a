// Package lab reproduces failures with real processes and keeps the evidence.
package lab

import (
	"os"

	"mcpreplay"
	"mcpreplay/faults"
	"mcpreplay/sqlite"
)

// Fault returns what wraps a store so that the process exits at the named point.
// An unknown name is an error.
func Fault(name string) (func(*sqlite.Store) mcpreplay.Applier[*sqlite.Tx], error) {
	point, err := faults.Parse(name)
	if err != nil {
		return nil, err
	}
	return func(s *sqlite.Store) mcpreplay.Applier[*sqlite.Tx] {
		return faults.Wrap[*sqlite.Tx](s, point, os.Exit)
	}, nil
}
