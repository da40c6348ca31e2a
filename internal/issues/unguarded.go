package issues

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// NewUnguardedServer makes the same tool as people write it without a guard: it
// asks, and does its work whenever it is answered. It is the control of the lab,
// and must fail there. committed is called after a commit, before the reply.
func NewUnguardedServer(s *sqlite.Store, version string, committed func()) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "mcpreplay-unguarded", Title: "Unguarded issue tracker", Version: version}, nil)
	u := &unguarded{store: s, committed: committed}
	server.AddTool(&mcp.Tool{Name: Tool, Description: "Creates an issue, each time it is called.", InputSchema: json.RawMessage(unguardedSchema)}, u.call)
	return server
}

const unguardedSchema = `{
	"type": "object",
	"properties": {"operation_id": {"type": "string"}, "title": {"type": "string"}, "mode": {"type": "string"}},
	"required": ["title"]
}`

type unguarded struct {
	store     *sqlite.Store
	committed func()
}

func (u *unguarded) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var in struct {
		Input
		OperationID string `json:"operation_id"`
	}
	if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
		return nil, err
	}
	var body string
	switch answer := req.Params.InputResponses["body"].(type) {
	case nil:
		questions, err := askBody(ctx, nil, in.Input)
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"body": questions["body"]}, RequestState: "awaiting-the-body"}, nil
	case *mcp.ElicitResult:
		body, _ = answer.Content["body"].(string)
	default:
		return nil, errors.New("the answer is of no known kind")
	}
	return u.create(ctx, in.OperationID, in.Input, body)
}

// create makes the issue in a transaction of its own. Setup is the one door of a
// store that leaves no record.
func (u *unguarded) create(ctx context.Context, operation string, in Input, body string) (*mcp.CallToolResult, error) {
	var id int64
	err := u.store.Setup(ctx, func(ctx context.Context, tx *sqlite.Tx) (err error) {
		id, err = insertIssue(ctx, tx, operation, in.Title, body)
		return err
	})
	if err != nil {
		return nil, err
	}
	u.committed()
	if in.Mode == "partial" {
		return nil, fmt.Errorf("issue %d has no watcher: %w", id, watcherFailure)
	}
	text := fmt.Sprintf("created %d", id)
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: text}},
		StructuredContent: map[string]any{"effectId": id, "result": text},
	}, nil
}
