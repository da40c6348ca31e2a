package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"mcpreplay"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The actions of an elicitation result (client/elicitation).
const (
	actionAccept  = "accept"
	actionDecline = "decline"
	actionCancel  = "cancel"
)

// maxRounds is how often a tool may ask. The SDK's own client gives up after as
// many.
const maxRounds = 10

// answer is one answer in normal form: only what was asked for, without _meta.
type answer struct {
	Action  string          `json:"action"`
	Content json.RawMessage `json:"content,omitempty"`
}

// answers are the answers of all rounds so far.
type answers struct {
	byName    map[string]answer
	complete  bool // nothing asked in this round is missing or invalid
	declined  bool
	cancelled bool
}

// normal is the normal form that is fingerprinted, or nil if nothing was ever
// asked.
func (s *answers) normal() json.RawMessage {
	if len(s.byName) == 0 {
		return nil
	}
	text, err := marshal(s.byName) // map keys are sorted
	if err != nil {
		panic(err) // strings and JSON texts that were decoded before
	}
	return text
}

// contents is what an effect may read.
func (s *answers) contents() map[string]json.RawMessage {
	out := make(map[string]json.RawMessage, len(s.byName))
	for name, a := range s.byName {
		if a.Action == actionAccept {
			out[name] = a.Content
		}
	}
	return out
}

// readAnswers takes the answers of earlier rounds from the verified state and
// those of this round from the request, and holds each against the schema it was
// asked with. Members nobody asked for are ignored, a missing or invalid answer
// leaves the round incomplete, and what is no answer at all is refused.
func (a *attempt) readAnswers() error {
	given := make(map[string]answer)
	if err := json.Unmarshal(a.claims.Answers, &given); err != nil {
		return a.refuse(mcpreplay.ReasonRequestState, fmt.Errorf("earlier answers: %w", err))
	}
	if given == nil { // null: no earlier round asked anything
		given = make(map[string]answer)
	}
	a.answers = answers{byName: given, complete: true}
	for _, name := range slices.Sorted(maps.Keys(a.claims.Questions)) {
		response, ok := a.req.Params.InputResponses[name]
		if !ok || response == nil {
			a.answers.complete = false
			continue
		}
		result, ok := response.(*mcp.ElicitResult)
		if !ok || result == nil {
			return a.refuseResponse(name, "is not an elicitation result")
		}
		switch result.Action {
		case actionAccept:
			content, err := normalContent(a.claims.Questions[name], result.Content)
			var syntax *mcpreplay.JSONError
			switch {
			case errors.Is(err, errInexact):
				return a.refuseResponse(name, err.Error())
			case errors.As(err, &syntax) && syntax.Limit:
				return a.refuseInput(err)
			}
			if err != nil {
				a.answers.complete = false
				continue
			}
			given[name] = answer{Action: actionAccept, Content: content}
		case actionDecline:
			given[name] = answer{Action: actionDecline}
			a.answers.declined = true
		case actionCancel:
			a.answers.cancelled = true
			a.answers.complete = false
		default:
			return a.refuseResponse(name, "has an action that is none of accept, decline and cancel")
		}
	}
	// A declined question settles the operation whatever else was left open.
	a.answers.complete = a.answers.complete || a.answers.declined
	return nil
}

func (a *attempt) refuseResponse(name, problem string) *refusal {
	r := a.refuse(mcpreplay.ReasonInputResponse, nil)
	r.detail = fmt.Sprintf("the response to %q %s", name, problem)
	return r
}

var errInexact = errors.New("has a number that this transport cannot carry exactly")

// normalContent validates the content of an answer by the schema it was asked
// with and keeps only what that schema names, defaults filled in.
func normalContent(schema json.RawMessage, content map[string]any) (json.RawMessage, error) {
	var s jsonschema.Schema
	if err := json.Unmarshal(schema, &s); err != nil {
		return nil, err
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		return nil, err
	}
	kept := make(map[string]any)
	for name, v := range content {
		if _, asked := s.Properties[name]; !asked {
			continue
		}
		// The SDK has decoded numbers to float64: beyond 2^53 two different
		// answers would look the same.
		if n, ok := v.(float64); ok && math.Abs(n) > 1<<53-1 {
			return nil, errInexact
		}
		kept[name] = v
	}
	if err := resolved.ApplyDefaults(&kept); err != nil {
		return nil, err
	}
	if err := resolved.Validate(kept); err != nil {
		return nil, err
	}
	text, err := marshal(kept)
	if err != nil {
		return nil, err
	}
	return mcpreplay.CanonicalObject(text, nil)
}

// nextRound decides what stands between the call and its effect: a question, the
// user's no, or the handshake that gives a keyless call an id. It returns nothing
// if the effect may run.
func (a *attempt) nextRound(ctx context.Context) (*mcp.CallToolResult, error) {
	a.op.answers = a.answers.contents()
	switch {
	case a.answers.declined:
		return a.decline(ctx)
	case a.answers.cancelled && a.past:
		return nil, a.refuse(mcpreplay.ReasonRetentionExpired, nil)
	case a.answers.cancelled:
		text := "The question was dismissed. Nothing was done. The same operation_id may be sent again."
		return a.mark(errorResult(text), a.notRecorded()), nil
	}
	minted := a.op.ID == ""
	if minted {
		a.op.ID = a.g.opts.Keys.MintID(a.ledger.Time)
		var err error
		if a.args, err = a.tool.input.forEffect(a.normal, a.op.ID); err != nil {
			return nil, err
		}
	}
	if refused, err := a.checkInput(); refused != nil || err != nil {
		return refused, err
	}
	pending, err := a.pending(ctx)
	if err != nil {
		return a.effectFailed(&mcpreplay.EffectError{Err: err})
	}
	switch {
	case len(pending) > 0:
		return a.askFor(pending)
	case minted:
		return a.inputRequired(Questions{}, 0)
	}
	return nil, nil
}

// pending is what the tool wants to know and has not been told.
func (a *attempt) pending(ctx context.Context) (Questions, error) {
	if a.tool.ask == nil {
		return nil, nil
	}
	asked, err := a.tool.ask(ctx, a.op, a.args)
	if err != nil {
		return nil, err
	}
	pending := make(Questions, len(asked))
	for name, q := range asked {
		if !a.op.Answered(name) {
			pending[name] = q
		}
	}
	return pending, nil
}

// askFor asks, if this client can be asked and there is still time to write.
func (a *attempt) askFor(pending Questions) (*mcp.CallToolResult, error) {
	round := 1
	if a.claims != nil {
		if expired(a.ledger.Time, fromMicros(a.claims.Authority)) {
			return nil, a.refuse(mcpreplay.ReasonAuthorityExpired, nil)
		}
		round = a.claims.Round
		if a.answers.complete {
			round++
		}
	}
	if round > maxRounds {
		return a.mark(errorResult(fmt.Sprintf("The tool asked in %d rounds and wants to know still more. Nothing was done.", maxRounds)), a.notRecorded()), nil
	}
	switch eraOf(a.req) {
	case eraModern:
	case eraLegacy:
		if a.claims != nil {
			return nil, a.refuseToAsk("a client of this protocol version can be asked only once")
		}
	default:
		return nil, a.refuseToAsk("this client cannot be asked over this connection")
	}
	if !declaresElicitation(a.req) {
		return nil, missingCapability()
	}
	return a.inputRequired(pending, round)
}

func (a *attempt) refuseToAsk(detail string) *refusal {
	r := a.refuse(mcpreplay.ReasonContinuation, nil)
	r.detail = detail
	return r
}

// inputRequired answers with the questions of a round and the sealed state that a
// continuation brings back. No row is written. The deadlines are those of the
// first round; asking the same round again does not lengthen the life of its
// state.
func (a *attempt) inputRequired(questions Questions, round int) (*mcp.CallToolResult, error) {
	nonce, err := newNonce()
	if err != nil {
		return nil, err
	}
	schemas, requests, err := pose(questions)
	if err != nil { // the author's mistake, not the caller's
		return a.effectFailed(&mcpreplay.EffectError{Err: err, Internal: true})
	}
	now := a.ledger.Time
	authority, retention := a.deadlines()
	c := claims{
		Version: sealVersion, IssuedAt: now.UnixMicro(), ExpiresAt: now.Add(a.g.opts.StateTTL).UnixMicro(),
		Server: a.g.opts.Name, Backend: a.ledger.Backend, Instance: a.ledger.Instance, Incarnation: a.ledger.Incarnation,
		Method: methodCall, Tool: a.tool.name, ToolVersion: a.tool.version,
		Arguments: argumentsDigest(a.canonical), Sent: argumentsDigest(a.asSent), Principal: a.op.Principal, Operation: a.op.ID,
		Round: round, Questions: schemas, Answers: a.answers.normal(),
		Authority: authority.UnixMicro(), Retention: retention.UnixMicro(), Nonce: nonce,
	}
	if c.Answers == nil {
		c.Answers = json.RawMessage("null")
	}
	if a.claims != nil && round == a.claims.Round {
		c.IssuedAt, c.ExpiresAt = a.claims.IssuedAt, a.claims.ExpiresAt
	}
	token, err := seal(a.g.opts.Keys, c)
	if err != nil {
		return nil, err
	}
	if len(token) > maxStateSize { // it would be refused when it comes back
		r := a.refuse(mcpreplay.ReasonLimit, nil)
		r.detail = "the answers of all rounds together are too long to be carried on"
		return nil, r
	}
	res := &mcp.CallToolResult{InputRequests: requests, RequestState: token}
	return a.mark(res, a.notRecorded()), nil
}

// pose turns questions into input requests, and keeps the schema of each for the
// check of its answer.
func pose(questions Questions) (map[string]json.RawMessage, mcp.InputRequestMap, error) {
	schemas := make(map[string]json.RawMessage, len(questions))
	requests := make(mcp.InputRequestMap, len(questions)) // never nil: an empty one still asks to continue
	for name, q := range questions {
		if q == nil || (q.Mode != "" && q.Mode != "form") || q.RequestedSchema == nil {
			return nil, nil, fmt.Errorf("question %q is not a form with a schema", name)
		}
		schema, err := json.Marshal(q.RequestedSchema)
		if err != nil {
			return nil, nil, fmt.Errorf("question %q: %w", name, err)
		}
		if s, err := asSchema(json.RawMessage(schema)); err != nil {
			return nil, nil, fmt.Errorf("question %q: %w", name, err)
		} else if _, err := s.Resolve(nil); err != nil { // no answer could ever fit
			return nil, nil, fmt.Errorf("question %q: %w", name, err)
		}
		schemas[name] = schema
		requests[name] = q
	}
	return schemas, requests, nil
}

// decline records that the user said no. It is final: the same operation can
// never apply, and repeats are told so.
func (a *attempt) decline(ctx context.Context) (*mcp.CallToolResult, error) {
	o, err := a.operation()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(errorResult("The user declined. Nothing was done, and nothing will be under this operation_id."))
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, a.g.opts.Wait)
	defer cancel()
	a.op.sent = true
	rec, started, err := a.g.store.Begin(bounded, o, mcpreplay.Change{
		To:     mcpreplay.StateNotApplied,
		Result: &mcpreplay.Result{Body: body, IsError: true},
		Event:  mcpreplay.Event{Kind: mcpreplay.EventDecline, Actor: a.op.Principal, Evidence: "answered decline"},
	})
	if err != nil {
		return a.failed(ctx, err, false)
	}
	return a.settled(ctx, rec, started)
}
