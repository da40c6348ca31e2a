package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"mcpreplay"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is a guarded tool with its types erased.
type tool struct {
	name    string
	version string
	input   *input
	ask     func(ctx context.Context, op *Op, args []byte) (Questions, error)
	run     func(ctx context.Context, w *work, args []byte) (mcpreplay.Record, bool, error)
	check   func(context.Context, mcpreplay.Key) (mcpreplay.Record, bool, error)
	settle  func(ctx context.Context, op *Op, rec mcpreplay.Record) (settlement, error)

	idempotent bool
}

// AddTool adds a guarded tool to a server. It is mcp.AddTool with an effect in
// the place of the handler: schemas are inferred from In and Out unless the tool
// brings its own, input and output are validated, and the output becomes the
// structured content. The input schema gets an operation_id unless it has one.
// Unlike there, output is validated before anything is committed, and integers
// reach integer fields as they were sent. (In any and map[string]any they are
// float64, as everywhere.)
//
// It panics, as mcp.AddTool does, if the tool cannot work: a schema that is not
// an object, or an effect on another ledger than the guard's.
func AddTool[In, Out any](g *Guard, s *mcp.Server, t *mcp.Tool, e Effect[In, Out]) {
	guarded, published, err := newTool(g, t, e)
	if err != nil {
		panic(fmt.Sprintf("guard.AddTool: tool %q: %v", t.Name, err))
	}
	g.register(guarded)
	s.AddTool(published, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return g.call(ctx, guarded, req)
	})
}

func newTool[In, Out any](g *Guard, t *mcp.Tool, e Effect[In, Out]) (*tool, *mcp.Tool, error) {
	if e.err != nil {
		return nil, nil, e.err
	}
	if e.run == nil {
		return nil, nil, errors.New("the effect is empty; make one with guard.Atomic or guard.External")
	}
	if err := g.sameLedger(e.stores); err != nil {
		return nil, nil, err
	}
	published := *t
	in, err := newInput[In](&published)
	if err != nil {
		return nil, nil, fmt.Errorf("input schema: %w", err)
	}
	output, err := outputSchema[Out](&published)
	if err != nil {
		return nil, nil, fmt.Errorf("output schema: %w", err)
	}
	encode := func(out Out) (mcpreplay.Result, error) { return encodeResult(out, output, g.opts.MaxResult) }
	guarded := &tool{name: t.Name, version: e.version, input: in, check: e.check, idempotent: e.idempotent}
	if guarded.version == "" {
		guarded.version = "1"
	}
	guarded.run = func(ctx context.Context, w *work, args []byte) (mcpreplay.Record, bool, error) {
		typed, err := decodeInput[In](args)
		if err != nil {
			return mcpreplay.Record{}, false, &mcpreplay.EffectError{Err: err}
		}
		if e.keeps {
			if w.memo, err = json.Marshal(memo{Arguments: args, Answers: w.op.answers}); err != nil {
				return mcpreplay.Record{}, false, &mcpreplay.EffectError{Err: err}
			}
		}
		return e.run(ctx, w, typed, encode)
	}
	if e.settle != nil {
		guarded.settle = func(ctx context.Context, op *Op, rec mcpreplay.Record) (settlement, error) {
			var typed In
			if e.keeps {
				var m memo
				err := json.Unmarshal(rec.Memo, &m)
				if err == nil {
					typed, err = decodeInput[In](m.Arguments)
				}
				if err != nil {
					return settlement{}, fmt.Errorf("read what was kept of the request: %w", err)
				}
			}
			return e.settle(ctx, op, rec, typed, encode)
		}
	}
	if e.ask != nil {
		guarded.ask = func(ctx context.Context, op *Op, args []byte) (Questions, error) {
			typed, err := decodeInput[In](args)
			if err != nil {
				return nil, err
			}
			asking := *op // what it does to its copy is nobody's business
			return e.ask(ctx, &asking, typed)
		}
	}
	return guarded, &published, nil
}

// sameLedger refuses an effect that would commit elsewhere than where the guard
// looks for its record.
func (g *Guard) sameLedger(stores []mcpreplay.Store) error {
	for _, s := range stores {
		info, err := s.Info(context.Background())
		if err != nil {
			return fmt.Errorf("read the effect's ledger: %w", err)
		}
		if info.Instance != g.info.Instance || info.Backend != g.info.Backend {
			return fmt.Errorf("its effect writes to ledger %q, the guard keeps %q", info.Backend, g.info.Backend)
		}
	}
	return nil
}

// encodeResult makes the stored result of an effect's output. Everything that can
// be wrong with it is found here, before the commit: what is stored must be what
// every later reply and every status can tell.
func encodeResult(out any, schema *jsonschema.Resolved, limit int) (mcpreplay.Result, error) {
	res, whole := out.(*mcp.CallToolResult)
	if !whole {
		var err error
		if res, err = structuredResult(out, schema); err != nil {
			return mcpreplay.Result{}, err
		}
	}
	if res == nil {
		res = &mcp.CallToolResult{}
	}
	if err := storable(res); err != nil {
		return mcpreplay.Result{}, err
	}
	body, err := json.Marshal(res)
	if err == nil {
		body, err = deliverable(body)
	}
	if err != nil {
		return mcpreplay.Result{}, fmt.Errorf("encode the result: %w", err)
	}
	if len(body) > limit {
		err := fmt.Errorf("the result has %d bytes, more than the %d that can be kept", len(body), limit)
		return mcpreplay.Result{}, &unkeptResult{why: "it is too large", body: body, err: err}
	}
	if res.IsError {
		return mcpreplay.Result{}, &isErrorResult{body: body}
	}
	if err := validateWhole(res, whole, schema); err != nil {
		return mcpreplay.Result{}, &unkeptResult{why: "it is not as its tool declares it", body: body, err: err}
	}
	return mcpreplay.Result{Body: body}, nil
}

// structuredResult is the result of a typed output: its JSON as structured
// content, and as text for clients that know no other.
func structuredResult(out any, schema *jsonschema.Resolved) (*mcp.CallToolResult, error) {
	if v := reflect.ValueOf(out); v.Kind() == reflect.Pointer && v.IsNil() {
		out = reflect.Zero(v.Type().Elem()).Interface() // as mcp.AddTool does
	}
	if out == nil {
		return &mcp.CallToolResult{}, nil
	}
	structured, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode the output: %w", err)
	}
	if err := validate(schema, structured); err != nil {
		err = fmt.Errorf("the output does not fit its schema: %w", err)
		return nil, &unkeptResult{why: "it is not as its tool declares it", body: structured, err: err}
	}
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: string(structured)}},
		StructuredContent: json.RawMessage(structured),
	}, nil
}

// deliverable is a result in the form in which it will be replied with: decoded
// from what is stored and encoded again. That form is what is stored.
func deliverable(body []byte) ([]byte, error) {
	res, err := decodeResult(body)
	if err != nil {
		return nil, err
	}
	if body, err = json.Marshal(res); err != nil {
		return nil, err
	}
	if v := mcpreplay.ClassifyResult(body); v.Kind != mcpreplay.VerdictResult {
		return nil, fmt.Errorf("no client would take it for a result: %s", v.Detail)
	}
	return body, nil
}

// validateWhole checks the structured content of a low-level result, if its tool
// declared what it looks like.
func validateWhole(res *mcp.CallToolResult, whole bool, schema *jsonschema.Resolved) error {
	if !whole || schema == nil {
		return nil
	}
	structured, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return fmt.Errorf("encode the structured content: %w", err)
	}
	if err := validate(schema, structured); err != nil {
		return fmt.Errorf("the output does not fit its schema: %w", err)
	}
	return nil
}

// outputSchema fills in the tool's output schema from Out, as mcp.AddTool does.
func outputSchema[Out any](t *mcp.Tool) (*jsonschema.Resolved, error) {
	out := reflect.TypeFor[Out]()
	if t.OutputSchema == nil {
		if out == reflect.TypeFor[any]() || out == reflect.TypeFor[*mcp.CallToolResult]() {
			return nil, nil
		}
		if out.Kind() == reflect.Pointer {
			out = out.Elem()
		}
		schema, err := jsonschema.ForType(out, nil)
		if err != nil {
			return nil, err
		}
		t.OutputSchema = schema
	}
	schema, err := asSchema(t.OutputSchema)
	if err != nil {
		return nil, err
	}
	return schema.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
}
