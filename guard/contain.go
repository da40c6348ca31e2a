package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"runtime/debug"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// containMiddleware keeps what one handler does from the rest of the process and
// from the wire. With the SDK alone (v1.8.0), a panic or a nil result ends the
// process with every call that was running, a result that cannot be encoded is
// never answered, and the text of an error goes to the client under code 0, which
// client libraries also use for replies that were lost.
//
// What the handler meant as an answer passes unchanged: a *jsonrpc.Error, wrapped
// or not, with its own message and data. Everything else is -32603 "internal
// error"; its text goes to the log. A panic in a goroutine that the handler
// started is beyond reach.
//
// It has to be the outermost middleware: add it last.
func containMiddleware(log *slog.Logger) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			log := log.With("method", method)
			if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && p != nil {
				log = log.With("tool", p.Name)
			}
			defer func() {
				if p := recover(); p != nil {
					log.ErrorContext(ctx, "handler panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					res, err = nil, internalError()
				}
			}()
			res, err = next(ctx, method, req)
			if strings.HasPrefix(method, "notifications/") { // neither a result nor an error goes anywhere
				return nil, err
			}
			if err != nil {
				return nil, containError(ctx, log, err)
			}
			return containResult(ctx, log, req, res)
		}
	}
}

func internalError() error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
}

// containError makes an error fit for the wire. The SDK drops the data of a
// wrapped *jsonrpc.Error and sends the text around it, so the error is unwrapped.
func containError(ctx context.Context, log *slog.Logger, err error) error {
	var wire *jsonrpc.Error
	switch {
	case !errors.As(err, &wire), wire == nil:
		level := slog.LevelError
		if ctx.Err() != nil { // the client gave up, which is no fault of the handler
			level = slog.LevelInfo
		}
		log.Log(ctx, level, "handler failed", "error", err)
		return internalError()
	case len(wire.Data) > 0 && !json.Valid(wire.Data):
		// Encoding would fail, and with it the connection.
		log.ErrorContext(ctx, "error data is not JSON", "error", wire)
		return &jsonrpc.Error{Code: wire.Code, Message: wire.Message}
	}
	if wire != err { //nolint:errorlint // asks whether it is wrapped
		log.DebugContext(ctx, "error unwrapped for the wire", "error", err)
	}
	return wire
}

// containResult makes sure that there is a result, that it can be encoded, and
// that the SDK, which writes the server's name into its _meta, does not write into
// a map that the handler shares between calls: that would end the process too.
func containResult(ctx context.Context, log *slog.Logger, req mcp.Request, res mcp.Result) (mcp.Result, error) {
	if v := reflect.ValueOf(res); res == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		call, ok := req.(*mcp.CallToolRequest)
		if !ok {
			log.ErrorContext(ctx, "handler returned nothing")
			return nil, internalError()
		}
		log.WarnContext(ctx, "handler returned nothing")
		return emptyResult(call.ProtocolVersion())
	}
	switch r := res.(type) {
	case *mcp.CallToolResult:
		own := *r
		own.Meta = maps.Clone(r.Meta)
		res = &own
	case *mcp.GetPromptResult:
		own := *r
		own.Meta = maps.Clone(r.Meta)
		res = &own
	case *mcp.ReadResourceResult:
		own := *r
		own.Meta = maps.Clone(r.Meta)
		res = &own
	}
	if _, err := json.Marshal(res); err != nil {
		log.ErrorContext(ctx, "result cannot be encoded", "error", err)
		return nil, internalError()
	}
	return res, nil
}

// emptyResult is the result of a tool that has nothing to say. The SDK sets the
// unexported resultType only behind the middleware; decoding sets it here.
func emptyResult(version string) (*mcp.CallToolResult, error) {
	text := `{"content":[]}`
	if version >= modernVersion {
		text = `{"content":[],"resultType":"complete"}`
	}
	res := new(mcp.CallToolResult)
	if err := json.Unmarshal([]byte(text), res); err != nil {
		return nil, err
	}
	return res, nil
}
