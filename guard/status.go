package guard

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The tools of every guarded server.
const (
	statusTool = "get_operation_status"
	fenceTool  = "fence_operation"
	listTool   = "list_my_operations"
)

// idSchema is the operation_id of the tools that only look or fence.
const idSchema = `"operation_id":{"type":"string","minLength":4,"maxLength":256,"pattern":"^[!-~]+$","description":"The operation_id of the call in question."}`

const observationSchema = `{"type":"object","properties":{
"operationId":{"type":"string"},"principal":{"type":"string"},"backend":{"type":"string"},
"scopeBinding":{"type":"object","properties":{"operationId":{"type":"string"},"principal":{"type":"string"},"backend":{"type":"string"}},"required":["operationId","principal","backend"],"additionalProperties":false},
"scope":{"type":"string"},
"state":{"type":"string","enum":["unknown","applied","partial","not_applied"]},
"authoritative":{"type":"boolean"},"freshWriteAuthorized":{"type":"boolean","enum":[false]},
"matchingIds":{"type":"array","items":{"type":"string"}},
"storedResult":{"type":["object","null"]},"detail":{"type":"string"},"observedAt":{"type":"string"},"nextAction":{"type":"string"},
"ledger":{"type":"object","properties":{"instance":{"type":"string"},"incarnation":{"type":"integer"},"position":{"type":"integer"}},"required":["instance","incarnation","position"]},
"resultIsError":{"type":"boolean"},
"resultDropped":{"type":"object","properties":{"digest":{"type":"string"},"size":{"type":"integer"}},"required":["digest","size"]},
"steps":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"outcome":{"type":"string"},"compensation":{"type":"string"}},"required":["name","outcome"]}},
"newOperationSafe":{"type":"boolean"}},
"required":["operationId","principal","backend","scopeBinding","scope","state","authoritative","freshWriteAuthorized","matchingIds","storedResult","detail","observedAt","nextAction","ledger","resultIsError","newOperationSafe"]}`

// addStatus adds get_operation_status: what is known of one operation of the
// caller, from one snapshot. It reads, and works whatever deadline has passed.
func (g *Guard) addStatus(server *mcp.Server) {
	no := false
	g.addReader(server, &mcp.Tool{
		Name:         statusTool,
		Description:  "Tells what became of an operation. Ask this after a lost reply or a timeout. It never repeats anything and never permits a repeat: unknown means unknown, not failed.",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{` + idSchema + `},"required":["operation_id"],"additionalProperties":false}`),
		OutputSchema: json.RawMessage(observationSchema),
		Annotations:  &mcp.ToolAnnotations{Title: "Operation status", ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: &no, OpenWorldHint: &no},
	}, func(ctx context.Context, principal string, args map[string]string) (any, error) {
		return g.observe(ctx, mcpreplay.Key{Principal: principal, ID: args[argOperationID]})
	})
}

// addFence adds fence_operation: it settles the one thing reading cannot. After
// it "not applied" is a fact and stays one.
func (g *Guard) addFence(server *mcp.Server) {
	no, yes := false, true
	g.addReader(server, &mcp.Tool{
		Name:         fenceTool,
		Description:  "Makes an operation that was never recorded impossible, so that the same work can safely be started under a new operation_id. An operation that is recorded or running is left as it is and reported. It permits nothing else.",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{` + idSchema + `,"reason":{"type":"string","maxLength":1000,"description":"Why, for the record."}},"required":["operation_id"],"additionalProperties":false}`),
		OutputSchema: json.RawMessage(observationSchema),
		Annotations:  &mcp.ToolAnnotations{Title: "Fence operation", IdempotentHint: true, DestructiveHint: &yes, OpenWorldHint: &no},
	}, func(ctx context.Context, principal string, args map[string]string) (any, error) {
		key := mcpreplay.Key{Principal: principal, ID: args[argOperationID]}
		if err := g.fence(ctx, key, args["reason"]); err != nil {
			return nil, err
		}
		return g.observe(ctx, key)
	})
}

func (g *Guard) fence(ctx context.Context, key mcpreplay.Key, reason string) error {
	if err := ctx.Err(); err != nil {
		return &refusal{reason: mcpreplay.ReasonCancelled, operation: key.ID, why: err}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opts.Wait)
	defer cancel()
	if may, err := g.mayFence(bounded, key); err != nil {
		return &refusal{reason: mcpreplay.ReasonUnavailable, operation: key.ID, why: err}
	} else if !may {
		return nil // it stays unknown
	}
	_, err := mcpreplay.Fence(bounded, g.store, key, key.Principal, reason)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mcpreplay.ErrConflict):
		return &refusal{reason: mcpreplay.ReasonConflict, operation: key.ID, why: err}
	case errors.Is(err, mcpreplay.ErrUnknown), errors.Is(err, mcpreplay.ErrForgotten):
		return nil // what the ledger says next is the answer
	}
	return &refusal{reason: mcpreplay.ReasonUnavailable, operation: key.ID, why: err}
}

// observe reads what is known of an operation: its record and, if the tool can
// look, its physical effect, in one snapshot.
func (g *Guard) observe(ctx context.Context, key mcpreplay.Key) (mcpreplay.Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Wait)
	defer cancel()
	rec, err := g.store.Get(ctx, key)
	if err == nil {
		rec = g.reconcile(ctx, rec)
	}
	var physical *bool
	if err == nil && (rec.State == mcpreplay.StateApplied || rec.State == mcpreplay.StatePartial) {
		if t := g.tool(rec.Tool, rec.Version); t != nil && t.check != nil {
			var present bool
			rec, present, err = t.check(ctx, key)
			physical = &present
		}
	}
	if err != nil && !errors.Is(err, mcpreplay.ErrNotFound) {
		return mcpreplay.Observation{}, &refusal{reason: mcpreplay.ReasonUnavailable, operation: key.ID, why: err}
	}
	scope := mcpreplay.Scope{OperationID: key.ID, Principal: key.Principal, Backend: rec.Ledger.Backend}
	o := mcpreplay.Observe(scope, rec, err == nil, physical)
	if err == nil && (rec.State == mcpreplay.StateInProgress || rec.State == mcpreplay.StatePartial) {
		events, err := g.store.Events(ctx, key)
		if err != nil {
			return mcpreplay.Observation{}, &refusal{reason: mcpreplay.ReasonUnavailable, operation: key.ID, why: err}
		}
		// What came after the record was read is not of this observation.
		o.Steps = mcpreplay.StepsOf(slices.DeleteFunc(events, func(e mcpreplay.Event) bool { return e.Position > rec.Position }))
	}
	g.tell.status(ctx, o.State)
	return o, nil
}

// addReader adds a tool of strings that is answered from the ledger, for the
// caller's own operations alone.
func (g *Guard) addReader(server *mcp.Server, t *mcp.Tool, answer func(ctx context.Context, principal string, args map[string]string) (any, error)) {
	schema, err := asSchema(t.InputSchema)
	if err != nil {
		panic(err) // a constant of this package
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		panic(err)
	}
	server.AddTool(t, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		principal, err := g.principal(ctx, req.Extra)
		if err != nil {
			return nil, (&refusal{reason: mcpreplay.ReasonPrincipal, why: err}).wire()
		}
		raw := req.Params.Arguments
		if len(raw) == 0 {
			raw = []byte("{}")
		}
		err = mcpreplay.CheckJSON(raw, &mcpreplay.Limits{Bytes: g.opts.MaxArguments, Depth: g.opts.MaxDepth})
		if err == nil {
			err = validate(resolved, raw)
		}
		var args map[string]string
		if err == nil {
			err = json.Unmarshal(raw, &args)
		}
		if err != nil {
			return nil, (&refusal{reason: mcpreplay.ReasonArguments, detail: err.Error(), why: err}).wire()
		}
		v, err := apart(func() (any, error) { return answer(ctx, principal, args) })
		if err != nil {
			return nil, g.refused(t.Name, err)
		}
		return structured(v)
	})
}

// refused renders err for the wire, and logs what the wire does not say.
func (g *Guard) refused(tool string, err error) error {
	var r *refusal
	if errors.As(err, &r) {
		g.opts.Logger.Info("refused", "tool", tool, "operation", r.operation, "reason", r.reason, "why", r.why)
		return r.wire()
	}
	g.opts.Logger.Error("failed", "tool", tool, "error", err)
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
}

// structured is a result with v as its structured content, and as text for
// clients that know no other.
func structured(v any) (*mcp.CallToolResult, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: string(text)}},
		StructuredContent: json.RawMessage(text),
	}, nil
}
