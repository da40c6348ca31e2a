// Package consumer calls tools that have side effects, and never guesses.
//
// A call ends in a verdict, which is a reply of the server that can be relied
// on, or in an honest unknown. Everything that is not a reply is unknown: a
// timeout, a connection that closed, an error page, an error that the SDK made
// up. What provably never left is not_sent. Unknown is settled by evidence: by
// Reconcile, which asks the server's read-only status tool and believes only
// what is bound to the very operation and to the ledger known before, be it to
// the caller or to the journal. Nothing in this package repeats a call.
//
//	session, err := consumer.Connect(ctx, client, transport, nil)
//	c := consumer.New(nil)
//	out := c.Call(ctx, session, intent)
//	if out.Kind == consumer.KindUnknown {
//		out, err = c.Reconcile(ctx, session, intent)
//	}
package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
)

// Options are the options of New.
type Options struct {
	// Journal remembers attempts. Defaults to a MemoryJournal.
	Journal Journal

	// StatusTool is the tool that Reconcile asks. Defaults to
	// "get_operation_status".
	StatusTool string
}

// Consumer makes calls and finds out what became of them. It is safe for
// concurrent use.
type Consumer struct {
	journal    Journal
	statusTool string
}

// New returns a Consumer. nil options are the defaults.
func New(opts *Options) *Consumer {
	c := &Consumer{statusTool: "get_operation_status"}
	if opts != nil {
		c.journal = opts.Journal
		if opts.StatusTool != "" {
			c.statusTool = opts.StatusTool
		}
	}
	if c.journal == nil {
		c.journal = NewMemoryJournal()
	}
	return c
}

// Call sends a call once and says how it ended. Questions of the server are
// answered by the handlers of the client, as in any call; each round is in the
// journal before it leaves.
//
// Calling again with the same intent is an exact repeat, which a guarded server
// answers with the stored result. If an earlier attempt is in doubt, only a
// complete result settles it, which is recorded in the ledger that is known or,
// while none is, has no mark: an error of the repeat, or a result that left no
// record, says nothing about the attempt before it.
//
// ctx bounds the wait. Without a deadline Call waits as long as the session does.
func (c *Consumer) Call(ctx context.Context, s *Session, in Intent) Outcome {
	if err := in.check(); err != nil {
		return notSent(err)
	}
	// The SDK writes to the map that it is given, so every call has its own.
	params := &mcp.CallToolParams{
		Meta:      mcp.Meta{mcpreplay.MetaOperationID: in.Scope.OperationID},
		Name:      in.Tool,
		Arguments: in.arguments(),
	}
	request, err := encode(params)
	if err != nil {
		return notSent(err)
	}
	a := &attempt{journal: c.journal, in: in}
	if err := a.sending(ctx, request); err != nil {
		return notSent(fmt.Errorf("record the attempt: %w", err))
	}
	x := &exchange{tool: in.Tool, id: in.Scope.OperationID, sending: a.continuing}
	strays := s.rec.strays.Load()
	_, err = s.CallTool(x.in(ctx), params)
	out, reply := judge(in, x.close(), s.rec.strays.Load() == strays, err)
	return a.end(ctx, out, reply)
}

// judge is the outcome of the rounds of one call, with the reply that it rests
// on. seen says that nothing left unseen.
func judge(in Intent, rounds []*round, seen bool, err error) (Outcome, []byte) {
	if len(rounds) == 0 {
		if !seen {
			return unknown(mcpreplay.Verdict{}, "the request may have left unseen", err), nil
		}
		return notSent(err), nil
	}
	last := rounds[len(rounds)-1]
	switch {
	case last.answered:
		return replied(in, last.verdict, last.reply, err), last.reply
	case !last.left && len(rounds) == 1:
		return notSent(err), nil
	case !last.left:
		return unknown(mcpreplay.Verdict{}, "the answers to a question of the server were not sent", err), nil
	}
	if err == nil {
		return unknown(mcpreplay.Verdict{}, "what came back cannot be relied on", nil), nil
	}
	return unknown(mcpreplay.Verdict{}, fmt.Sprintf("no reply came: %v", err), err), nil
}

// Reconcile asks what became of an operation. It is read-only and may be called
// at any time, on any session with the same server and principal.
//
// An observation is believed only if it is complete, about exactly the intent's
// scope, and from the ledger that the intent and the journal know, at no lower
// position than either: another ledger knows nothing of what this one has done,
// not even when the operation was fenced there. If an observation is not
// believed, or there is none, the outcome is unknown and the error says why; a
// rejected observation is a *mcpreplay.ObservationError. An unknown outcome
// without an error is the server's own honest answer.
func (c *Consumer) Reconcile(ctx context.Context, s *Session, in Intent) (Outcome, error) {
	fail := func(err error) (Outcome, error) {
		return unknown(mcpreplay.Verdict{}, "the status is not known", err), err
	}
	// Before the question: what a call under way sees after it may be newer.
	journaled, err := c.journal.Known(ctx, in.Scope)
	if err != nil {
		return fail(fmt.Errorf("read the journal: %w", err))
	}
	question, err := json.Marshal(map[string]string{"operation_id": in.Scope.OperationID})
	if err != nil {
		return fail(err)
	}
	x := &exchange{tool: c.statusTool}
	_, err = s.CallTool(x.in(ctx), &mcp.CallToolParams{Name: c.statusTool, Arguments: json.RawMessage(question)})
	rounds := x.close()
	if len(rounds) == 0 || !rounds[len(rounds)-1].answered {
		if err == nil {
			err = errors.New("the reply was not seen")
		}
		return fail(fmt.Errorf("ask for the status of %q: %w", in.Scope.OperationID, err))
	}
	last := rounds[len(rounds)-1]
	if v := last.verdict; v.Kind != mcpreplay.VerdictResult {
		if err == nil {
			err = errors.New(v.Detail)
		}
		return fail(fmt.Errorf("ask for the status of %q: %w", in.Scope.OperationID, err))
	}
	obs, err := mcpreplay.ParseStatus(last.reply, in.Scope)
	if err != nil {
		return fail(err)
	}
	if why := ledgersOf(in.Ledger, journaled.Ledger).differ(obs.Ledger); why != "" {
		err := &mcpreplay.ObservationError{Rule: "ledger_changed", Detail: why}
		return unknown(mcpreplay.Verdict{}, "the status does not settle it: "+why, err), err
	}
	return c.observed(ctx, in, obs, last.reply)
}

// observed is the outcome of an observation that is believed.
func (c *Consumer) observed(ctx context.Context, in Intent, obs mcpreplay.Observation, reply []byte) (Outcome, error) {
	out := unknown(mcpreplay.Verdict{}, obs.Detail, nil)
	out.Observation, out.Action, out.Effect = &obs, obs.NextAction, obs.State
	ctx = context.WithoutCancel(ctx)
	if obs.State == mcpreplay.StateUnknown {
		return out, c.journal.Observed(ctx, in.Scope, reply, &obs.Ledger)
	}
	out.Kind = KindObserved
	if obs.NextAction == mcpreplay.ActionReturnResult {
		out.Result = obs.StoredResult
	}
	return out, c.journal.Settled(ctx, in.Scope, obs.State, obs.StoredResult, &obs.Ledger)
}

func (in Intent) check() error {
	if err := mcpreplay.ValidateID(in.Scope.OperationID); err != nil {
		return err
	}
	if in.Tool == "" {
		return errors.New("no tool")
	}
	if _, err := mcpreplay.CanonicalObject(in.arguments(), nil); err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	return nil
}

func (in Intent) arguments() json.RawMessage {
	if in.Arguments == nil {
		return json.RawMessage("{}")
	}
	return in.Arguments
}

// encode is v as the SDK sends it: the digits and the characters of arguments
// stay as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}
