package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"

	"github.com/spf13/cobra"
)

func newLabList(e *env) *cobra.Command {
	var suite string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the cells, and what each must show",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			specs := lab.Cells()
			if suite != lab.SuiteAll {
				specs = slices.DeleteFunc(specs, func(c evidence.CellSpec) bool { return c.Suite != suite })
			}
			if len(specs) == 0 {
				return misused("there are cases, faults, transport and all", "there is no suite %q", suite)
			}
			return e.reply(asJSON, specs, func(w io.Writer) error { return printCells(w, specs) })
		},
	}
	cmd.Flags().StringVar(&suite, "suite", lab.SuiteAll, "cells to list: cases, faults, transport or all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printCells(w io.Writer, specs []evidence.CellSpec) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CELL\tSUITE\tEXPECTED\tTITLE")
	for _, c := range specs {
		expected := c.Expected
		if c.Control {
			expected = "control: " + expected
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.ID, c.Suite, expected, c.Title)
	}
	return t.Flush()
}

func newLabShow(e *env) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "show CELL",
		Short: "Show the facts a cell must give, or those it gave in an attempt",
		Long: `Prints what a cell must show, a fact a line: its story in the order of time, what
the databases hold then, and with "!" every rule that is broken, as it must be in a
control.

With --from, the facts are derived again from the evidence in an attempt. A line that
was not expected begins with "+", and one that is missing with "-".`,
		Example: `  mcpreplay lab show 03-stdio
  mcpreplay lab show 03-stdio --from attempt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			specs := lab.Cells()
			at := slices.IndexFunc(specs, func(c evidence.CellSpec) bool { return c.ID == args[0] })
			if at < 0 {
				return misused("see mcpreplay lab list", "there is no cell %q", args[0])
			}
			c := specs[at]
			fmt.Fprintf(e.stdout, "%s: %s\nexpected: %s\n\n", c.ID, c.Title, c.Expected)
			lines := c.Want
			if from != "" {
				facts, err := evidence.DeriveCell(cmd.Context(), from, c.ID)
				if err != nil {
					return failed(err, "name an attempt that has this cell with --from")
				}
				lines = evidence.Compare(c.Want, facts)
			}
			for _, line := range lines {
				if _, err := fmt.Fprintln(e.stdout, plain(line)); err != nil {
					return failed(err, "")
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "directory of an attempt")
	return cmd
}
