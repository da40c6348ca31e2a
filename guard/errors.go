package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// refusal is an answer that settles an attempt without running anything. It
// goes to the wire as a JSON-RPC error; why stays in the log.
type refusal struct {
	reason    mcpreplay.Reason
	detail    string // appended to the message, when the reason alone says too little
	operation string
	differs   []string // of a conflict: which bound parts, never their values
	why       error
}

func (r *refusal) Error() string {
	if r.why != nil {
		return string(r.reason) + ": " + r.why.Error()
	}
	return string(r.reason)
}

func (r *refusal) Unwrap() error { return r.why }

// refusals is the error table: whether the same operation id may be sent again
// as it is, and what to do next. The message is the reason itself, unless the
// row has one.
var refusals = map[mcpreplay.Reason]struct {
	message   string
	retryable bool
	next      string
}{
	mcpreplay.ReasonConflict:         {next: "This operation_id stands for another request. Ask get_operation_status what became of it; do other work under a new operation_id."},
	mcpreplay.ReasonAuthorityExpired: {next: "The time to write has passed and nothing was done now. Ask get_operation_status what became of the operation."},
	mcpreplay.ReasonRetentionExpired: {next: "The time to replay the result has passed and nothing was done now. Ask get_operation_status what became of the operation."},
	mcpreplay.ReasonInProgress:       {retryable: true, next: "Another attempt at this operation is running. Send the same call with the same operation_id again, or ask get_operation_status."},
	mcpreplay.ReasonIDRequired:       {next: "Nothing was done. Send an operation_id: one for this intended effect, the same one on every retry."},
	mcpreplay.ReasonFenced:           {next: "This operation was made impossible on purpose and can never apply. Only a new operation_id can do the work."},
	mcpreplay.ReasonContinuation:     {message: "unsupported continuation", next: "Nothing was done. This client cannot be asked what the tool needs to know in the way it called."},
	mcpreplay.ReasonRequestState:     {message: "Invalid or expired requestState", next: "Nothing was done. Start the call again from its first round with the same operation_id."},
	mcpreplay.ReasonKeyRetired:       {next: "The key this operation was recorded under is gone, so the request cannot be compared. Ask get_operation_status what became of the operation."},
	mcpreplay.ReasonForbidden:        {next: "Nothing was done. The server's policy does not allow this operation now."},
	mcpreplay.ReasonBusy:             {retryable: true, next: "Nothing was done: too many operations are running. Send the same call with the same operation_id again later."},
	mcpreplay.ReasonLimit:            {next: "Nothing was done. Send less."},
	mcpreplay.ReasonUnavailable:      {retryable: true, next: "Nothing was done now. What became of an earlier attempt is for get_operation_status to say. The same call may be sent again later, with the same operation_id."},
	mcpreplay.ReasonArguments:        {next: "Nothing was done. Correct the arguments."},
	mcpreplay.ReasonIDInvalid:        {next: "Nothing was done. An operation_id is 4 to 256 printable ASCII characters without spaces, and the same wherever it is given."},
	mcpreplay.ReasonInputResponse:    {next: "Nothing was done. Answer each input request with an elicitation result."},
	mcpreplay.ReasonCancelled:        {retryable: true, next: "The request was cancelled before anything was done. The same operation_id may be sent again."},
	mcpreplay.ReasonPrincipal:        {next: "Nothing was done. Authenticate."},
}

// wire renders r as the one JSON-RPC error its row of the table describes.
func (r *refusal) wire() *jsonrpc.Error {
	row := refusals[r.reason]
	message := row.message
	if message == "" {
		message = string(r.reason)
	}
	if r.detail != "" {
		message += ": " + r.detail
	}
	if r.reason == mcpreplay.ReasonRequestState {
		// Exactly what the Python and TypeScript SDKs answer, and no more: the
		// true reason would tell a forger how close he came.
		return wireError(jsonrpc.CodeInvalidParams, message, map[string]any{"reason": r.reason})
	}
	data := map[string]any{"reason": r.reason, "retryable": row.retryable, "nextAction": row.next}
	if r.operation != "" {
		data["operationId"] = r.operation
	}
	if len(r.differs) > 0 {
		data["differs"] = r.differs
	}
	return wireError(jsonrpc.CodeInvalidParams, message, data)
}

func wireError(code int64, message string, data any) *jsonrpc.Error {
	raw, err := json.Marshal(data)
	if err != nil { // a map of strings, booleans and string lists cannot fail
		raw = nil
	}
	return &jsonrpc.Error{Code: code, Message: message, Data: raw}
}

// missingCapability is the error of the specification for a client that did not
// declare what the tool needs (basic/patterns/mrtr).
func missingCapability() *jsonrpc.Error {
	return wireError(mcp.CodeMissingRequiredClientCapabilities, "missing required client capability: elicitation",
		map[string]any{"requiredCapabilities": map[string]any{"elicitation": map[string]any{"form": map[string]any{}}}})
}

// failed maps the error of a run to what the client is told. Only what proves
// that nothing happened is told as that; everything else is unknown.
func (a *attempt) failed(ctx context.Context, err error, started bool) (*mcp.CallToolResult, error) {
	var effect *mcpreplay.EffectError
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case started: // a claim was committed, so its outcome is open whatever failed after
		return a.unknown(err), nil
	case errors.As(err, &effect):
		return a.effectFailed(effect)
	case errors.Is(err, mcpreplay.ErrUnknown):
		return a.unknown(err), nil
	case errors.Is(err, mcpreplay.ErrConflict):
		return nil, a.refuse(mcpreplay.ReasonConflict, err)
	case errors.Is(err, mcpreplay.ErrExpired):
		return nil, a.refuse(mcpreplay.ReasonAuthorityExpired, err)
	case storeError(err): // all others of the port say that nothing was changed
		return nil, a.refuseStore(ctx, err)
	default:
		return a.unknown(err), nil
	}
}

// effectFailed answers an effect that rolled back: definite, and the same id may
// be sent again. An error's text is the tool author's word to the model, as with
// the SDK's own typed handlers; that of a panic or of a store is not.
func (a *attempt) effectFailed(e *mcpreplay.EffectError) (*mcp.CallToolResult, error) {
	var whole *isErrorResult
	if errors.As(e.Err, &whole) {
		res, err := decodeResult(whole.body)
		if err != nil {
			return nil, err
		}
		return a.mark(res, a.notRecorded()), nil
	}
	var wire *jsonrpc.Error
	if errors.As(e.Err, &wire) {
		// A code that means something else to a client stays here: one that no
		// server sends, or a refusal of ours that this is not.
		if mcpreplay.ClassifyError(wire.Code, wire.Message, wire.Data).Kind == mcpreplay.VerdictReply {
			return nil, wire
		}
		return a.mark(errorResult(wire.Message), a.notRecorded()), nil
	}
	text := e.Err.Error()
	if e.Panic || e.Internal || storeError(e.Err) || errors.Is(e.Err, mcpreplay.ErrUnknown) {
		a.g.opts.Logger.Error("effect failed", "tool", a.tool.name, "operation", a.op.ID, "panic", e.Panic, "error", e.Err)
		text = "The tool failed inside. Nothing was done."
	}
	return a.mark(errorResult(text), a.notRecorded()), nil
}

// storeError reports whether err is one of the port's that say that nothing was
// changed.
func storeError(err error) bool {
	for _, e := range []error{mcpreplay.ErrUnavailable, mcpreplay.ErrClock, mcpreplay.ErrIncompatible,
		mcpreplay.ErrStale, mcpreplay.ErrNotFound, mcpreplay.ErrConflict, mcpreplay.ErrExpired} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isErrorResult is a result with isError that an effect returned: it is passed on
// and, because it says that nothing was done, not recorded.
type isErrorResult struct{ body []byte }

func (e *isErrorResult) Error() string { return "the tool returned a result with isError" }

// unknown is the answer for an attempt whose outcome nobody can tell yet.
func (a *attempt) unknown(why error) *mcp.CallToolResult {
	a.g.opts.Logger.Warn("outcome unknown", "tool", a.tool.name, "operation", a.op.ID, "error", why)
	res := errorResult(fmt.Sprintf("It is not known whether operation %s was done. Do not repeat it under another id; ask get_operation_status with this operation_id.", a.op.ID))
	res.StructuredContent = map[string]any{
		"code":        mcpreplay.ReasonUnknown,
		"operationId": a.op.ID,
		"state":       mcpreplay.StateUnknown,
		"retryable":   false,
		"nextAction":  statusTool,
	}
	return a.mark(res, a.notRecorded())
}

func errorResult(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}
