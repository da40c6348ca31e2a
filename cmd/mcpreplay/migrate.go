package main

import (
	"context"
	"fmt"
	"io"

	"mcpreplay/postgres"

	"github.com/spf13/cobra"
)

func newMigrate(e *env) *cobra.Command {
	var ledger string
	var show bool
	var o postgres.Options
	cmd := &cobra.Command{
		Use:   "migrate --ledger postgres:URL",
		Short: "Make a ledger in PostgreSQL, or bring it to the current version",
		Long: `Makes the schema of the ledger and its tables, or adds what newer versions need,
each in a transaction of its own. It may be run again and by several at once. The
role needs the right to create a schema; serving a ledger needs less.

With --print nothing is connected to and nothing is changed: the SQL is printed for
those who apply it themselves. A ledger in SQLite needs no command: opening it does
the same.`,
		Example: `  mcpreplay migrate --ledger postgres://app@db.example/app --backend issues
  mcpreplay migrate --print`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			connString, schema, ok := postgresLedger(ledger)
			if o.Schema == "" {
				o.Schema = schema
			}
			texts, err := postgres.Migrations(&o)
			if err != nil {
				return misused("see mcpreplay migrate --help", "%w", err)
			}
			if show {
				return printMigrations(e.stdout, texts)
			}
			if !ok {
				return misused("name one with --ledger postgres:URL", "no ledger in PostgreSQL given")
			}
			return migrate(cmd.Context(), e, connString, &o)
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `postgres:URL`")
	cmd.Flags().StringVar(&o.Schema, "schema", "", "`NAME` of the ledger's schema (default \"mcpreplay\")")
	cmd.Flags().StringVar(&o.Backend, "backend", "issues", "`NAME` of a ledger that is made")
	cmd.Flags().StringVar((*string)(&o.IDs), "ids", "", "what ids are unique in: `KIND` shared or principal")
	cmd.Flags().BoolVar(&show, "print", false, "print the SQL and change nothing")
	return cmd
}

func migrate(ctx context.Context, e *env, connString string, o *postgres.Options) error {
	ctx, cancel := context.WithTimeout(ctx, postgresWait)
	defer cancel()
	pool, err := postgres.NewPool(ctx, connString)
	if err != nil {
		return failed(err, "")
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, o); err != nil {
		return failed(err, "check the URL, and that this user may create a schema in the database")
	}
	_, err = fmt.Fprintln(e.stdout, "the ledger is there and current")
	return err
}

func printMigrations(w io.Writer, texts []string) error {
	for i, text := range texts {
		if _, err := fmt.Fprintf(w, "-- version %d\nBEGIN;\n\n%s\nCOMMIT;\n", i+1, text); err != nil {
			return err
		}
	}
	return nil
}
