package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// ledgerPath takes a --ledger value apart. sqlite:PATH is the kind that is a
// file; see postgresLedger for the other.
func ledgerPath(ledger string) (string, error) {
	kind, path, ok := strings.Cut(ledger, ":")
	if !ok || kind != "sqlite" || path == "" {
		return "", misused("name a ledger with --ledger sqlite:PATH", "%q is not a ledger", ledger)
	}
	return path, nil
}

// stateDir is where a server keeps its ledger and keys unless told otherwise
// (XDG base directories: the user's state).
func stateDir(e *env) (string, error) {
	if dir := e.getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mcpreplay"), nil
	}
	home := e.getenv("HOME")
	if home == "" {
		var err error
		if home, err = os.UserHomeDir(); err != nil {
			return "", misused("name a ledger with --ledger sqlite:PATH", "there is no home directory to keep a ledger in: %v", err)
		}
	}
	return filepath.Join(home, ".local", "state", "mcpreplay"), nil
}

// openLedger opens a ledger file to write in it. See openReadOnly for looking.
func openLedger(path string, o *sqlite.Options) (*sqlite.Store, error) {
	s, err := sqlite.Open(path, o)
	if err != nil {
		hint := "check the path, its directory and its permissions"
		if errors.Is(err, mcpreplay.ErrIncompatible) {
			hint = "this file stays as it is: name the right --ledger or --backend, or use a newer mcpreplay"
		}
		return nil, failed(fmt.Errorf("open the ledger: %w", err), hint)
	}
	return s, nil
}
