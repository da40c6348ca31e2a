package vectors

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"mcpreplay"
	"mcpreplay/consumer"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Classify answers a question as this implementation does: by the fingerprints of
// contract v1, and after a lost reply by what a consumer makes of the status.
func Classify(ctx context.Context, q Question) (Classification, error) {
	key, err := hex.DecodeString(q.KeyHex)
	if err != nil {
		return "", fmt.Errorf("key: %w", err)
	}
	base, err := mcpreplay.ParseRequestV1(q.Base)
	if err != nil {
		return "", fmt.Errorf("base: %w", err)
	}
	candidate, err := mcpreplay.ParseRequestV1(q.Candidate)
	if err != nil {
		return "", fmt.Errorf("candidate: %w", err)
	}
	if candidate.ContinuationState == nil {
		return ClassReject, nil
	}
	if q.Transport == transportLost {
		return recovered(ctx, q, candidate)
	}
	first, err := mcpreplay.FingerprintV1(key, base)
	if err != nil {
		return "", fmt.Errorf("base: %w", err)
	}
	second, err := mcpreplay.FingerprintV1(key, candidate)
	if err != nil {
		return "", fmt.Errorf("candidate: %w", err)
	}
	if first == second {
		return ClassReplay, nil
	}
	return ClassConflict, nil
}

// recovered asks a server for the status through a real session. The server has no
// other tool: a consumer that sent the call again would get an error.
func recovered(ctx context.Context, q Question, r mcpreplay.RequestV1) (Classification, error) {
	if q.Scope == nil || q.Observation == nil {
		return "", errors.New("a lost reply without a status")
	}
	told, err := oneLine(q.Observation)
	if err != nil {
		return "", err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "mcpreplay-vectors", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "get_operation_status", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{}, StructuredContent: json.RawMessage(told)}, nil
		})
	ours, theirs := mcp.NewInMemoryTransports()
	served, err := server.Connect(ctx, theirs, nil)
	if err != nil {
		return "", err
	}
	defer served.Close()
	client := mcp.NewClient(&mcp.Implementation{Name: "mcpreplay-vectors", Version: "1"}, nil)
	session, err := consumer.Connect(ctx, client, ours, nil)
	if err != nil {
		return "", err
	}
	defer session.Close()
	out, err := consumer.New(nil).Reconcile(ctx, session, consumer.Intent{Scope: *q.Scope, Tool: r.ToolID, Arguments: r.Arguments})
	switch {
	case err != nil:
		return "", err
	case out.Kind == consumer.KindObserved && out.Action == mcpreplay.ActionReturnResult:
		return ClassStatusOnly, nil
	case out.Kind == consumer.KindUnknown:
		return ClassStopUnknown, nil
	}
	return "", fmt.Errorf("the recovery ended as %s, action %s", out.Kind, out.Action)
}

// observe is what a status tool tells of the base request: that it was applied, or
// that there is no record of it.
func (p *Pack) observe(found bool) *mcpreplay.Observation {
	rec := mcpreplay.Record{Ledger: mcpreplay.Info{
		Backend: p.scope.Backend, Instance: "6d0f3c52a1b84e7790c2d5e8f1a3b4c6", Incarnation: 1, Position: 1,
		Time: time.Date(2026, time.September, 22, 12, 0, 0, 0, time.UTC),
	}}
	if found {
		body := []byte(`{"content":[{"type":"text","text":"done"}]}`)
		digest := sha256.Sum256(body)
		rec.Key = mcpreplay.Key{Principal: p.scope.Principal, ID: p.scope.OperationID}
		rec.State, rec.Revision, rec.Effect = mcpreplay.StateApplied, 1, "effect-1"
		rec.Result = &mcpreplay.Result{Body: body, Digest: digest[:], Size: int64(len(body))}
	}
	o := mcpreplay.Observe(p.scope, rec, found, &found)
	return &o
}
