// Command reports is an MCP server with one tool that writes a file. The name of the
// file has the operation in it, so that looking into the directory tells what became
// of one whose process ended in the middle.
package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type Report struct {
	Text string `json:"text"`
}

type Written struct {
	Path string `json:"path"`
}

// reports is the directory that the files are in.
type reports string

func (r reports) path(op *guard.Op) string {
	return filepath.Join(string(r), "report-"+op.IdempotencyKey()[:16]+".txt")
}

// write puts the whole file in place at once, and makes sure that it stays.
func (r reports) write(_ context.Context, op *guard.Op, in Report) (Written, error) {
	aside, err := os.CreateTemp(string(r), ".report-*")
	if err != nil {
		return Written{}, guard.TryAgain(errors.New("the directory cannot be written to"))
	}
	defer os.Remove(aside.Name())
	_, err = aside.WriteString(in.Text)
	if err = errors.Join(err, aside.Sync(), aside.Close()); err != nil {
		return Written{}, guard.TryAgain(errors.New("the file cannot be written"))
	}
	path := r.path(op)
	if err := os.Rename(aside.Name(), path); err != nil { // there, or not: look
		return Written{}, err
	}
	if dir, err := os.Open(string(r)); err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
		if err != nil {
			return Written{}, err
		}
	}
	op.Effect(path)
	return Written{Path: path}, nil
}

// look is its reconciler: a file is there, or it is not.
func (r reports) look(_ context.Context, op *guard.Op, _ Report) (guard.Finding[Written], error) {
	path := r.path(op)
	switch _, err := os.Stat(path); {
	case err == nil:
		op.Effect(path)
		return guard.Found(Written{Path: path}, "the file is there"), nil
	case errors.Is(err, fs.ErrNotExist):
		return guard.Absent[Written]("there is no such file"), nil
	default:
		return guard.Finding[Written]{}, err
	}
}

func main() {
	ledger := flag.String("ledger", "reports.db", "where operations are recorded")
	dir := flag.String("dir", ".", "where the files are")
	flag.Parse()

	store, err := sqlite.Open(*ledger, &sqlite.Options{Backend: "reports"})
	check(err)
	keys, err := guard.KeyFile(*ledger + ".keys")
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys})
	check(err)
	r := reports(*dir)
	server := mcp.NewServer(&mcp.Implementation{Name: "reports", Version: "1"}, nil)
	// To write the same file again changes nothing, so it may be done again.
	guard.AddTool(g, server, &mcp.Tool{Name: "write_report", Description: "Writes a report into a file."},
		guard.Idempotent(guard.Reconcile(r.look, guard.External(r.write))))
	g.Install(server)
	check(guard.RunStdio(context.Background(), server))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
