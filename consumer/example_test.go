package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

// A server does the work and goes away before it answers. Another connection
// asks what happened, and the work is not done again.
func Example() {
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	c := consumer.New(nil)
	intent := consumer.Intent{
		Scope:     mcpreplay.Scope{OperationID: "op-1", Principal: "alice", Backend: "issues"},
		Tool:      "effect",
		Arguments: json.RawMessage(`{"title":"a bug"}`),
	}

	session, err := consumer.Connect(ctx, client, dyingServer(), nil)
	if err != nil {
		panic(err)
	}
	out := c.Call(ctx, session, intent)
	fmt.Println(out.Kind, out.Action)

	session, err = consumer.Connect(ctx, client, healthyServer(), nil)
	if err != nil {
		panic(err)
	}
	defer session.Close()
	out, err = c.Reconcile(ctx, session, intent)
	fmt.Println(out.Kind, out.Effect, out.Action, err)
	fmt.Println(string(out.Result))
	// Output:
	// unknown reconcile
	// observed applied return_stored_result <nil>
	// {"content":[{"type":"text","text":"created 1"}]}
}

func dyingServer() mcp.Transport {
	ours, theirs := net.Pipe()
	serve(&mcp.IOTransport{Reader: theirs, Writer: theirs}, "effect", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		theirs.Close()
		return &mcp.CallToolResult{}, nil
	})
	return &mcp.IOTransport{Reader: ours, Writer: ours}
}

func healthyServer() mcp.Transport {
	ours, theirs := mcp.NewInMemoryTransports()
	serve(theirs, "get_operation_status", telling(observation("applied", `{"content":[{"type":"text","text":"created 1"}]}`, "")))
	return ours
}

func serve(t mcp.Transport, tool string, h handler) {
	s := mcp.NewServer(&mcp.Implementation{Name: "server", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: tool, InputSchema: json.RawMessage(`{"type":"object"}`)}, mcp.ToolHandler(h))
	if _, err := s.Connect(context.Background(), t, nil); err != nil {
		panic(err)
	}
}
