// Command tasks is an MCP server whose effect writes to the application's own tables
// through code that sqlc generated: task, record and result commit together.
//
// Both are in one file and go through one library, this module's. That is not a matter
// of taste: two copies of SQLite in one process do not see each other's locks (POSIX
// drops all of a process's locks on a file when it closes any descriptor of it), and can
// damage the file.
package main

import (
	"context"
	_ "embed"
	"flag"
	"log"
	"strconv"

	"mcpreplay"
	"mcpreplay/examples/tasks/tasksdb"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

//go:generate sqlc generate

//go:embed schema.sql
var schema string

type Task struct {
	Title    string `json:"title"`
	Assignee string `json:"assignee"`
}

type Added struct {
	ID   int64 `json:"id"`
	Open int   `json:"open" jsonschema:"tasks that the assignee has now"`
}

func add(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in Task) (Added, error) {
	q := tasksdb.New(tx)
	id, err := q.AddTask(ctx, tasksdb.AddTaskParams{OperationID: op.ID, Title: in.Title, Assignee: in.Assignee})
	if err != nil {
		return Added{}, err
	}
	op.Effect(strconv.FormatInt(id, 10))
	open, err := q.OpenTasks(ctx, in.Assignee)
	return Added{ID: id, Open: len(open)}, err
}

// there lets status look whether the task of a record is really there.
func there(ctx context.Context, tx *sqlite.Tx, rec mcpreplay.Record) (bool, error) {
	n, err := tasksdb.New(tx).TaskOfOperation(ctx, rec.ID)
	return n == 1, err
}

func main() {
	ledger := flag.String("ledger", "tasks.db", "where tasks and operations are")
	flag.Parse()

	store, err := sqlite.Open(*ledger, &sqlite.Options{Backend: "tasks"})
	check(err)
	check(store.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, schema)
		return err
	}))
	keys, err := guard.KeyFile(*ledger + ".keys")
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys})
	check(err)
	server := mcp.NewServer(&mcp.Implementation{Name: "tasks", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "add_task", Description: "Adds a task for somebody."},
		guard.Check(store, there, guard.Atomic(store, add)))
	g.Install(server)
	check(guard.RunStdio(context.Background(), server))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
