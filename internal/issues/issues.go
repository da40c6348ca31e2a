// Package issues is the demo application: an issue tracker whose one tool creates
// an issue, guarded, in the same SQLite file as the ledger.
package issues

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tool is the name of the tool.
const Tool = "create_guarded_issue"

//go:embed schema.sql
var schema string

const inputSchema = `{
	"type": "object",
	"properties": {
		"title": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "Title of the issue."},
		"mode": {"type": "string", "enum": ["atomic", "external", "partial"], "default": "atomic", "description": "atomic: the issue, or nothing. external: the issue, as another system would have it. partial: for demonstration, an issue whose watcher and whose rollback both fail."}
	},
	"required": ["title"],
	"additionalProperties": false
}`

// Input is what the tool takes beside operation_id.
type Input struct {
	Title string `json:"title"`
	Mode  string `json:"mode"`
}

// Output is the structured result.
type Output struct {
	OperationID string          `json:"operationId"`
	EffectID    int64           `json:"effectId"`
	Result      string          `json:"result"`
	State       mcpreplay.State `json:"state"`
}

// Setup creates the tracker's tables beside the ledger's.
func Setup(ctx context.Context, s *sqlite.Store) error {
	err := s.Setup(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, schema)
		return err
	})
	if err != nil {
		return fmt.Errorf("create the issue tracker's tables: %w", err)
	}
	return nil
}

// Options configures the guarded server.
type Options struct {
	Version string
	Outside Outside // where an external effect happens
}

// NewServer makes the guarded server. s is the store of g, or it wrapped.
func NewServer(g *guard.Guard, s mcpreplay.Applier[*sqlite.Tx], o Options) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "mcpreplay-issues", Title: "Guarded issue tracker", Version: o.Version}, nil)
	no := false
	guard.AddTool(g, server, &mcp.Tool{
		Name:        Tool,
		Description: "Creates an issue, at most once for each operation_id. Asks for the body. A result can be replayed for as long as the server keeps it; after that a repeat is refused, never done again.",
		InputSchema: json.RawMessage(inputSchema),
		Annotations: &mcp.ToolAnnotations{Title: "Create an issue", DestructiveHint: &no, OpenWorldHint: &no},
	}, guard.Ask(askBody, guard.Check(s, issueExists, guard.Choose(
		func(in Input) string { return in.Mode },
		map[string]guard.Effect[Input, Output]{
			"atomic":   guard.Atomic(s, createIssue),
			"external": external(o.Outside),
			"partial":  partial(s),
		},
	))))
	g.Install(server)
	return server
}

func askBody(_ context.Context, _ *guard.Op, in Input) (guard.Questions, error) {
	return guard.Questions{"body": {
		Message: fmt.Sprintf("What should the body of %q say?", in.Title),
		RequestedSchema: json.RawMessage(`{"type":"object","properties":{` +
			`"body":{"type":"string","title":"Body","maxLength":100000}},"required":["body"]}`),
	}}, nil
}

func answeredBody(op *guard.Op) (string, error) {
	var answer struct {
		Body string `json:"body"`
	}
	err := op.Answer("body", &answer)
	return answer.Body, err
}

// createIssue is the atomic effect: one row.
func createIssue(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in Input) (Output, error) {
	body, err := answeredBody(op)
	if err != nil {
		return Output{}, err
	}
	id, err := insertIssue(ctx, tx, op.ID, in.Title, body)
	if err != nil {
		return Output{}, err
	}
	op.Effect(strconv.FormatInt(id, 10))
	return Output{OperationID: op.ID, EffectID: id, Result: fmt.Sprintf("created %d", id), State: mcpreplay.StateApplied}, nil
}

func insertIssue(ctx context.Context, tx *sqlite.Tx, operation, title, body string) (int64, error) {
	r, err := tx.ExecContext(ctx, `INSERT INTO issues (operation_id, title, body) VALUES (?, ?, ?)`, operation, title, body)
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}

// issueExists looks for the issue a record says it created.
func issueExists(ctx context.Context, tx *sqlite.Tx, rec mcpreplay.Record) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM issues WHERE id = ? AND operation_id = ?`, rec.Effect, rec.ID).Scan(&n)
	return n == 1, err
}
