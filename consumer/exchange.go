package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"mcpreplay"
)

// exchange is what went over the wire for one call: one round for each request.
// It hangs in the context of the call, where the connection finds it again.
type exchange struct {
	tool string
	id   string // the operation id that a request must carry; "" for a question about the status

	// sending runs before a request leaves. last is the answered round before
	// it, or nil.
	sending func(ctx context.Context, last *round, request []byte) error

	mu     sync.Mutex
	closed bool
	rounds []*round
}

type round struct {
	id       string // JSON text of the JSON-RPC id
	left     bool   // it may have left
	answered bool
	verdict  mcpreplay.Verdict
	reply    []byte // JSON of the result or of the error
}

type exchangeKey struct{}

func (x *exchange) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// mine reports whether a request is one of this exchange. The context alone does
// not say so: what is sent while a question is answered has it too.
func (x *exchange) mine(method string, params []byte) bool {
	if x == nil || method != methodCall {
		return false
	}
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
		Name string                     `json:"name"`
	}
	if json.Unmarshal(params, &p) != nil || p.Name != x.tool {
		return false
	}
	if x.id == "" {
		return true
	}
	var id string
	return json.Unmarshal(p.Meta[mcpreplay.MetaOperationID], &id) == nil && id == x.id
}

const methodCall = "tools/call"

// stop tells the SDK that a request was not sent and the connection is fine. It
// knows that by the code.
func stop(err error) error {
	return fmt.Errorf("the request was not sent: %w: %w", err, &jsonrpc.Error{Code: -32005, Message: "rejected by the consumer"})
}

// begin is called before a request of the exchange leaves. After the first there
// may only be one that answers a question: whoever tries to send a call twice,
// be it a middleware or an authorization that starts over, is stopped here.
func (x *exchange) begin(ctx context.Context, id string, request []byte) (*round, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, stop(err)
	}
	var last *round
	if n := len(x.rounds); n > 0 {
		last = x.rounds[n-1]
	}
	if x.closed || last != nil && (!last.answered || last.verdict.Kind != mcpreplay.VerdictInputRequired) {
		return nil, stop(errors.New("a call is sent once"))
	}
	if x.sending != nil {
		if err := x.sending(ctx, last, request); err != nil {
			return nil, stop(err)
		}
	}
	r := &round{id: id}
	x.rounds = append(x.rounds, r)
	return r, nil
}

// leaving is called when the first byte of a round may leave.
func (x *exchange) leaving(r *round) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.left = true
}

// answer records the reply to a round. The first one counts.
func (x *exchange) answer(r *round, v mcpreplay.Verdict, reply []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || r.answered {
		return
	}
	r.answered, r.verdict, r.reply = true, v, reply
}

// answerText records a message that may be the reply to a round. What is not, or
// cannot be read, is no reply.
func (x *exchange) answerText(r *round, text []byte) {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil || members["method"] != nil || string(members["id"]) != r.id {
		return
	}
	reply := members["result"]
	if reply == nil {
		reply = members["error"]
	}
	x.answer(r, mcpreplay.ClassifyResponse(text, r.id), reply)
}

// answerResponse does the same for a message that the SDK has decoded. Only an
// error that is itself a *jsonrpc.Error was sent by the server; the SDK makes up
// others for replies that never came.
func (x *exchange) answerResponse(r *round, resp *jsonrpc.Response) {
	if resp.Error == nil {
		x.answer(r, mcpreplay.ClassifyResult(resp.Result), resp.Result)
		return
	}
	//nolint:errorlint // a wrapped one is the SDK's
	sent, ok := resp.Error.(*jsonrpc.Error)
	if !ok || resp.Result != nil {
		return
	}
	reply, err := json.Marshal(sent)
	if err != nil {
		return
	}
	x.answer(r, mcpreplay.ClassifyError(sent.Code, sent.Message, sent.Data), reply)
}

// close ends the exchange and returns its rounds. What comes later is not heard.
func (x *exchange) close() []*round {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	return x.rounds
}
