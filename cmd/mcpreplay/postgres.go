package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"mcpreplay"
	"mcpreplay/postgres"
)

// postgresWait bounds the wait for a server that does not answer.
const postgresWait = 25 * time.Second

// postgresLedger takes a --ledger value apart that names a ledger in PostgreSQL:
// postgres: and a connection string as libpq has them, a URL or words. A URL may end
// in # and the name of the ledger's schema.
func postgresLedger(ledger string) (connString, schema string, ok bool) {
	for _, kind := range []string{"postgres:", "postgresql:"} {
		rest, found := strings.CutPrefix(ledger, kind)
		if !found {
			continue
		}
		if strings.HasPrefix(rest, "//") {
			rest = "postgres:" + rest
		}
		if strings.Contains(rest, "://") {
			rest, schema, _ = strings.Cut(rest, "#")
		}
		return rest, schema, true
	}
	return "", "", false
}

// lookAt opens a ledger that exists, whatever its backend, for a command that only
// looks.
func lookAt(ctx context.Context, ledger string) (mcpreplay.Store, error) {
	if connString, schema, ok := postgresLedger(ledger); ok {
		return openPostgres(ctx, connString, &postgres.Options{Schema: schema, ReadOnly: true})
	}
	return openReadOnly(ledger)
}

// openToWrite opens a ledger that exists for writing. Only a look at it tells its
// backend.
func openToWrite(ctx context.Context, ledger string) (mcpreplay.Store, error) {
	connString, schema, ok := postgresLedger(ledger)
	if !ok {
		return openFile(ctx, ledger)
	}
	look, err := openPostgres(ctx, connString, &postgres.Options{Schema: schema, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	info, err := look.Info(ctx)
	if err = errors.Join(err, look.Close()); err != nil {
		return nil, failed(fmt.Errorf("read the ledger: %w", err), "")
	}
	return openPostgres(ctx, connString, &postgres.Options{Schema: schema, Backend: info.Backend})
}

func openPostgres(ctx context.Context, connString string, o *postgres.Options) (mcpreplay.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresWait)
	defer cancel()
	s, err := postgres.Connect(ctx, connString, o)
	if err != nil {
		hint := "check the URL, and that the server runs and lets this user in"
		if errors.Is(err, mcpreplay.ErrIncompatible) {
			hint = "nothing was changed: mcpreplay migrate makes a ledger or brings it to the current version"
		}
		return nil, failed(fmt.Errorf("open the ledger: %w", err), hint)
	}
	return s, nil
}
