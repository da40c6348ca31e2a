// Command notes is an MCP server with one tool of its own, guarded.
package main

import (
	"context"
	"log"

	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type Note struct {
	Text string `json:"text"`
}

type Saved struct {
	ID int64 `json:"id"`
}

// save runs in the ledger's transaction: note, record and result commit together.
func save(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in Note) (Saved, error) {
	r, err := tx.ExecContext(ctx, `INSERT INTO notes (text) VALUES (?)`, in.Text)
	if err != nil {
		return Saved{}, err
	}
	id, err := r.LastInsertId()
	return Saved{ID: id}, err
}

func main() {
	store, err := sqlite.Open("notes.db", &sqlite.Options{Backend: "notes"})
	check(err)
	check(store.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)`)
		return err
	}))
	keys, err := guard.KeyFile("notes.keys")
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys})
	check(err)
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "save_note"}, guard.Atomic(store, save))
	g.Install(server)
	check(guard.RunStdio(context.Background(), server))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
