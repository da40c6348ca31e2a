package mcpreplay

import (
	"bytes"
	"errors"
	"fmt"
)

// Reason is a stable code of this project on the wire: data.reason of a refusal,
// or structuredContent.code of a result that says "we do not know".
type Reason string

// The reasons. All but the last two are refusals: nothing was dispatched by the
// attempt they answer.
const (
	ReasonConflict         Reason = "operation_conflict"
	ReasonAuthorityExpired Reason = "operation_authority_expired"
	ReasonRetentionExpired Reason = "operation_retention_expired"
	ReasonIDRequired       Reason = "operation_id_required"
	ReasonIDInvalid        Reason = "invalid_operation_id"
	ReasonFenced           Reason = "operation_fenced"
	ReasonContinuation     Reason = "unsupported_continuation"
	ReasonRequestState     Reason = "invalid_request_state"
	ReasonKeyRetired       Reason = "key_retired"
	ReasonLimit            Reason = "limit_exceeded"
	ReasonForbidden        Reason = "operation_forbidden"
	ReasonBusy             Reason = "server_busy"
	ReasonUnavailable      Reason = "ledger_unavailable"
	ReasonArguments        Reason = "invalid_arguments"
	ReasonInputResponse    Reason = "invalid_input_response"
	ReasonCancelled        Reason = "cancelled"
	ReasonPrincipal        Reason = "principal_required"

	ReasonInProgress Reason = "operation_in_progress"
	ReasonUnknown    Reason = "operation_unknown"
)

// CodeRefused is the JSON-RPC code of every refusal.
const CodeRefused = -32602

// refusals are the reasons that settle the attempt they answer.
var refusals = map[Reason]bool{
	ReasonConflict: true, ReasonAuthorityExpired: true, ReasonRetentionExpired: true,
	ReasonIDRequired: true, ReasonIDInvalid: true, ReasonFenced: true,
	ReasonContinuation: true, ReasonRequestState: true, ReasonKeyRetired: true,
	ReasonForbidden: true, ReasonBusy: true,
	ReasonLimit: true, ReasonUnavailable: true, ReasonArguments: true, ReasonInputResponse: true,
	ReasonCancelled: true, ReasonPrincipal: true,
}

// VerdictKind says what a reply lets a client rely on.
type VerdictKind string

// The kinds of verdict.
const (
	VerdictResult        VerdictKind = "result"         // a complete result
	VerdictInputRequired VerdictKind = "input_required" // the server asks before it does anything
	VerdictRefused       VerdictKind = "refused"        // one of our refusals: this attempt did nothing
	VerdictNotDispatched VerdictKind = "not_dispatched" // an error that proves nothing was dispatched
	VerdictReply         VerdictKind = "reply"          // another error of the server: says nothing about the effect
	VerdictUnknown       VerdictKind = "unknown"        // everything else
)

// Verdict is what one reply says. The zero Verdict is not a verdict.
type Verdict struct {
	Kind        VerdictKind
	Reason      Reason // one of ours, or ""
	Code        int64  // of a JSON-RPC error
	Retryable   bool   // the server says that the same id may be sent again now
	OperationID string // that the reply names, or ""
	State       State  // that the mark of a result tells, or "" if it has none
	Detail      string
}

// Definite reports whether v says for certain what became of the attempt it
// answers.
func (v Verdict) Definite() bool {
	switch v.Kind {
	case VerdictResult, VerdictRefused, VerdictNotDispatched:
		return true
	}
	return false
}

// Settles reports whether v may end an operation that an earlier attempt left
// unknown. Only a complete result does, and a marked one only if its state is
// final. A refusal of a later attempt says what that one did, not what the
// earlier one did; nor does a result that left no record, such as that of an
// effect that failed and was rolled back.
func (v Verdict) Settles() bool {
	return v.Kind == VerdictResult && (v.State == StateNone || v.State.Final())
}

func unknown(format string, args ...any) Verdict {
	return Verdict{Kind: VerdictUnknown, Detail: fmt.Sprintf(format, args...)}
}

// ClassifyResult reads the JSON of the result of a tools/call.
func ClassifyResult(result []byte) Verdict {
	o, err := readObject(result)
	if err != nil {
		return unknown("the result cannot be read: %v", err)
	}
	mark, _, err := o.mark()
	if err != nil {
		return unknown("%v", err)
	}
	v := Verdict{Kind: VerdictResult, OperationID: mark.OperationID, State: mark.State}

	asks := o.has("inputRequests") || o.has("requestState")
	if _, present := o["resultType"]; present {
		switch kind, _ := o.text("resultType"); kind {
		case "complete":
		case "input_required":
			return o.classifyQuestion(v)
		default:
			return unknown("the result has an unknown type: %s", clip(o["resultType"]))
		}
	}
	if asks {
		return unknown("the result calls itself complete and asks for input")
	}
	if _, ok := o.list("content"); !ok {
		return unknown("the result has no list of content")
	}
	_, present := o["isError"]
	isError, ok := o.boolean("isError")
	if present && !ok {
		return unknown("isError is not a boolean")
	}
	if own, ok := o.object("structuredContent"); ok && isError {
		switch code, _ := own.text("code"); Reason(code) {
		case ReasonUnknown, ReasonInProgress:
			v = unknown("the server does not know the outcome")
			v.Reason = Reason(code)
			v.OperationID, _ = own.text("operationId")
			v.Retryable, _ = own.boolean("retryable")
		}
	}
	return v
}

func (o object) classifyQuestion(v Verdict) Verdict {
	if _, ok := o.object("inputRequests"); !ok && o.has("inputRequests") {
		return unknown("the input requests are not an object")
	}
	if _, ok := o.text("requestState"); !ok && o.has("requestState") {
		return unknown("the request state is not a string")
	}
	v.Kind = VerdictInputRequired
	return v
}

// ClassifyError reads a JSON-RPC error that a server sent. An error made up by
// the client's own library is no reply and must not be passed here: it is
// unknown, although the codes those errors usually carry are unknown here too.
func ClassifyError(code int64, message string, data []byte) Verdict {
	v := Verdict{Kind: VerdictReply, Code: code, Detail: message}
	var reason string
	if o, err := readObject(data); err == nil {
		reason, _ = o.text("reason")
		v.Retryable, _ = o.boolean("retryable")
		v.OperationID, _ = o.text("operationId")
	}
	switch {
	case code == 0, code <= -32000 && code >= -32019:
		// No server may use these codes. Client libraries do, for replies that
		// were lost after the effect.
		v.Kind, v.Retryable, v.OperationID = VerdictUnknown, false, ""
	case code == -32700, code == -32600, code == -32601, code <= -32020 && code >= -32022:
		v.Kind = VerdictNotDispatched
	case code == CodeRefused && refusals[Reason(reason)]:
		v.Kind, v.Reason = VerdictRefused, Reason(reason)
	case code == CodeRefused && (Reason(reason) == ReasonInProgress || Reason(reason) == ReasonUnknown):
		v.Kind, v.Reason = VerdictUnknown, Reason(reason)
	}
	return v
}

// ClassifyResponse reads the text of one JSON-RPC response. wantID is the JSON
// text of the id of the request, as in 7 or "a7".
func ClassifyResponse(text []byte, wantID string) Verdict {
	o, err := readObject(text)
	if err != nil {
		return unknown("the response cannot be read: %v", err)
	}
	if version, _ := o.text("jsonrpc"); version != "2.0" {
		return unknown("not a JSON-RPC 2.0 message")
	}
	if _, ok := o["method"]; ok {
		return unknown("not a response")
	}
	if !sameID(o["id"], []byte(wantID)) {
		return unknown("a response to another request: id %s, want %s", clip(o["id"]), wantID)
	}
	if o.has("result") == o.has("error") {
		return unknown("a response has either a result or an error")
	}
	if o.has("result") {
		return ClassifyResult(o["result"])
	}
	e, ok := o.object("error")
	if !ok {
		return unknown("the error is not an object")
	}
	code, okCode := e.integer("code")
	message, okMessage := e.text("message")
	if !okCode || !okMessage {
		return unknown("the error lacks a code or a message")
	}
	return ClassifyError(code, message, e["data"])
}

// sameID compares two JSON-RPC ids: numbers by their text, strings by value.
func sameID(got, want []byte) bool {
	if g, ok := asText(got); ok {
		w, ok := asText(want)
		return ok && g == w
	}
	return len(got) > 0 && bytes.Equal(got, want)
}

// Members of _meta on the wire.
const (
	MetaOperationID = "mcpreplay/operation-id" // of a request: the operation id, a string
	MetaOperation   = "mcpreplay/operation"    // of a result: its Mark
)

// Mark is what a guarded server writes beside a result: which operation it is
// the result of, and which ledger says so.
type Mark struct {
	OperationID string    `json:"operationId"`
	State       State     `json:"state"` // unknown if nothing was recorded, applied, partial or not_applied
	Replayed    bool      `json:"replayed"`
	RecordedAt  string    `json:"recordedAt,omitempty"` // when it was; absent if nothing was recorded
	Ledger      LedgerRef `json:"ledger"`
}

var errMark = errors.New("the mark of the operation in _meta cannot be read")

// ReadMark reads the mark of a tool result. found is false if there is none. It
// returns an error if the result or its mark cannot be read. A state that is not
// told to the outside, as in_progress is not, cannot be read.
func ReadMark(result []byte) (m Mark, found bool, err error) {
	o, err := readObject(result)
	if err != nil {
		return Mark{}, false, err
	}
	return o.mark()
}

func (o object) mark() (m Mark, found bool, err error) {
	if !o.has("_meta") {
		return Mark{}, false, nil
	}
	meta, ok := o.object("_meta")
	if !ok {
		return Mark{}, false, errMark
	}
	if _, found := meta[MetaOperation]; !found {
		return Mark{}, false, nil
	}
	raw, ok := meta.object(MetaOperation)
	if !ok {
		return Mark{}, false, errMark
	}
	var state string
	var okID, okState, okReplayed, okLedger bool
	m.OperationID, okID = raw.text("operationId")
	state, okState = raw.text("state")
	m.State = State(state)
	m.Replayed, okReplayed = raw.boolean("replayed")
	m.RecordedAt, _ = raw.text("recordedAt")
	m.Ledger, okLedger = raw.ledger()
	if !okID || m.OperationID == "" || !okState || m.State != m.State.Observed() || !okReplayed || !okLedger {
		return Mark{}, false, errMark
	}
	return m, true, nil
}

// ledger is the member ledger, complete and plausible.
func (o object) ledger() (l LedgerRef, ok bool) {
	raw, ok := o.object("ledger")
	if !ok {
		return LedgerRef{}, false
	}
	var okInstance, okIncarnation, okPosition bool
	l.Instance, okInstance = raw.text("instance")
	l.Incarnation, okIncarnation = raw.integer("incarnation")
	l.Position, okPosition = raw.integer("position")
	if !okInstance || !okIncarnation || !okPosition || l.Instance == "" || l.Incarnation < 0 || l.Position < 0 {
		return LedgerRef{}, false
	}
	return l, true
}

// Follows reports whether l is the ledger that was seen as earlier, and not an
// older state of it. Another instance or incarnation is another ledger, or one
// that was restored: what it does not know may have happened all the same.
func (l LedgerRef) Follows(earlier LedgerRef) bool {
	return l.Instance == earlier.Instance && l.Incarnation == earlier.Incarnation && l.Position >= earlier.Position
}
