// Command confirm is an MCP server with one tool that asks before it acts: whether it
// is meant, and, if much is at stake, why. Nothing is written before every question is
// answered, and what was answered is a part of the request: a repeat with another
// answer is a conflict.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"

	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type Deletion struct {
	Folder string `json:"folder"`
}

type Deleted struct {
	Documents int64 `json:"documents"`
}

type answer struct {
	Sure bool   `json:"sure"`
	Why  string `json:"why"`
}

// questions is called in every round. The second question depends on the first answer.
func questions(_ context.Context, op *guard.Op, in Deletion) (guard.Questions, error) {
	q := guard.Questions{"sure": {
		Message:         "Delete all documents in " + in.Folder + "?",
		RequestedSchema: json.RawMessage(`{"type":"object","properties":{"sure":{"type":"boolean"}},"required":["sure"]}`),
	}}
	var a answer
	if op.Answered("sure") && op.Answer("sure", &a) == nil && a.Sure {
		q["why"] = &mcp.ElicitParams{
			Message:         "Why?",
			RequestedSchema: json.RawMessage(`{"type":"object","properties":{"why":{"type":"string","minLength":3}},"required":["why"]}`),
		}
	}
	return q, nil
}

func remove(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in Deletion) (Deleted, error) {
	var a answer
	if err := op.Answer("sure", &a); err != nil {
		return Deleted{}, err
	}
	if !a.Sure {
		return Deleted{}, nil
	}
	if err := op.Answer("why", &a); err != nil {
		return Deleted{}, err
	}
	r, err := tx.ExecContext(ctx, `DELETE FROM documents WHERE folder = ?`, in.Folder)
	if err != nil {
		return Deleted{}, err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO deletions (operation_id, folder, why) VALUES (?, ?, ?)`, op.ID, in.Folder, a.Why); err != nil {
		return Deleted{}, err
	}
	n, err := r.RowsAffected()
	return Deleted{Documents: n}, err
}

func main() {
	ledger := flag.String("ledger", "confirm.db", "where documents and operations are")
	flag.Parse()

	store, err := sqlite.Open(*ledger, &sqlite.Options{Backend: "documents"})
	check(err)
	check(store.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, `
			CREATE TABLE IF NOT EXISTS documents (id INTEGER PRIMARY KEY, folder TEXT NOT NULL) STRICT;
			CREATE TABLE IF NOT EXISTS deletions (operation_id TEXT PRIMARY KEY, folder TEXT NOT NULL, why TEXT NOT NULL) STRICT;
			INSERT OR IGNORE INTO documents VALUES (1, 'drafts'), (2, 'drafts')`)
		return err
	}))
	keys, err := guard.KeyFile(*ledger + ".keys")
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys})
	check(err)
	server := mcp.NewServer(&mcp.Implementation{Name: "confirm", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "delete_folder", Description: "Deletes all documents in a folder."},
		guard.Ask(questions, guard.Atomic(store, remove)))
	g.Install(server)
	check(guard.RunStdio(context.Background(), server))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
