package guard

import (
	"encoding/json"
	"errors"
	"strings"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// reasonMessage is the data.reason of a message that is no JSON-RPC request at
// all. Its codes alone prove that nothing was dispatched.
const reasonMessage mcpreplay.Reason = "invalid_message"

// badMessage is why a message goes no further than the transport.
type badMessage struct {
	code    int64
	reason  mcpreplay.Reason
	message string          // for the wire: one of ours, nothing from the input
	id      json.RawMessage // null unless the message has one that can be repeated
	silent  bool            // on a stream nothing may answer it
	answer  bool            // it is the client's answer to a question of ours
	why     error           // for the log only
}

func (b *badMessage) Error() string {
	if b.why != nil {
		return b.message + ": " + b.why.Error()
	}
	return b.message
}

func (b *badMessage) under(id json.RawMessage) *badMessage {
	if b != nil && len(id) > 0 {
		b.id = id
	}
	return b
}

// encode is the JSON-RPC error response. JSON-RPC 2.0 section 5 asks for id null
// where no id could be read.
func (b *badMessage) encode() []byte {
	type data struct {
		Reason    mcpreplay.Reason `json:"reason"`
		Retryable *bool            `json:"retryable,omitempty"`
	}
	type fault struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
		Data    data   `json:"data"`
	}
	d := data{Reason: b.reason}
	if b.reason != mcpreplay.ReasonRequestState { // the other SDKs say no more about it
		d.Retryable = new(bool)
	}
	id := b.id
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	reply, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   fault           `json:"error"`
	}{"2.0", id, fault{b.code, b.message, d}})
	if err != nil { // strings, a number and an id that was parsed
		panic(err)
	}
	return reply
}

func invalid(what string) *badMessage {
	return &badMessage{code: jsonrpc.CodeInvalidRequest, reason: reasonMessage, message: "invalid request: " + what}
}

func invalidParams(what string) *badMessage {
	return &badMessage{code: jsonrpc.CodeInvalidParams, reason: mcpreplay.ReasonArguments, message: string(mcpreplay.ReasonArguments) + ": " + what}
}

func invalidState() *badMessage {
	return &badMessage{code: jsonrpc.CodeInvalidParams, reason: mcpreplay.ReasonRequestState, message: "Invalid or expired requestState"}
}

// faultyText is the row of the table for a text that CheckJSON refused.
func faultyText(text []byte, fault error) *badMessage {
	var at *mcpreplay.JSONError
	if !errors.As(fault, &at) {
		at = &mcpreplay.JSONError{Reason: "unreadable"}
	}
	inParams := strings.HasPrefix(at.Path, "$.params.") || strings.HasPrefix(at.Path, "$.params[")
	var b *badMessage
	switch {
	case at.Limit:
		b = invalid("")
		if inParams {
			b = invalidParams("")
		}
		b.reason, b.message = mcpreplay.ReasonLimit, string(mcpreplay.ReasonLimit)+": "+at.Reason
	case !json.Valid(text):
		b = &badMessage{code: jsonrpc.CodeParseError, reason: reasonMessage, message: "parse error: not one JSON value"}
	case inParams:
		b = invalidParams(at.Reason)
	default:
		b = invalid(at.Reason)
	}
	b.why = fault
	return b
}
