package guard

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Op is what an effect may know of its operation.
type Op struct {
	ID        string // write it into the effect, or hand it on; see also IdempotencyKey
	Principal string
	Attempt   int64 // 1 the first time; more if an earlier one was given back or taken over

	backend string
	answers map[string]json.RawMessage
	effect  string
	sent    bool              // the store was asked to write
	from    *mcpreplay.Record // what is claimed again; nil for a new operation
	steps   mcpreplay.Steps
	state   mcpreplay.State // in the function that makes the result of steps
}

// Answer decodes what the user answered to the named question, whose content is
// valid by the schema it was asked with. It is an error to ask for an answer
// that was not asked for.
func (o *Op) Answer(name string, into any) error {
	content, ok := o.answers[name]
	if !ok {
		return fmt.Errorf("no answer named %q: it was not asked for", name)
	}
	return json.Unmarshal(content, into)
}

// Answered reports whether the named question has been answered.
func (o *Op) Answered(name string) bool {
	_, ok := o.answers[name]
	return ok
}

// Effect records an opaque reference to what was done, such as the id of a row.
// Status shows it.
func (o *Op) Effect(reference string) { o.effect = reference }

// Questions are what a tool wants to know from the user before it acts. Each is
// a form elicitation; its name is the key of its answer.
type Questions map[string]*mcp.ElicitParams

// Effect is what a guarded tool does. It is opaque: the constructors of this
// package make one, and its decorators (Ask, Check, Reconcile, Timeout, Version and
// so on) add to it.
//
// If In is json.RawMessage the effect gets the arguments undecoded: without
// operation_id, with schema defaults filled in, numbers as they were sent. If Out
// is *mcp.CallToolResult it returns a whole result.
type Effect[In, Out any] struct {
	err     error             // why this is no effect; AddTool reports it
	stores  []mcpreplay.Store // whatever it writes to; must be the guard's ledger
	run     func(ctx context.Context, w *work, in In, encode encoder[Out]) (mcpreplay.Record, bool, error)
	ask     func(context.Context, *Op, In) (Questions, error)
	check   func(context.Context, mcpreplay.Key) (rec mcpreplay.Record, present bool, err error)
	settle  func(ctx context.Context, op *Op, rec mcpreplay.Record, in In, encode encoder[Out]) (settlement, error)
	version string

	claims     bool // it is claimed before it runs
	keeps      bool // settle needs the request
	idempotent bool // it may be run again when its owner is gone
}

// encoder turns an effect's output into the stored result, or refuses it before
// anything is committed: too large, invalid by the output schema, an error.
type encoder[Out any] func(Out) (mcpreplay.Result, error)

// Atomic is an effect inside the ledger's own transaction: record, effect and
// result are committed together or not at all. fn may be called more than once
// and must touch nothing but tx. If it returns an error or a result with isError,
// or panics, nothing happened and the same operation id may be sent again.
func Atomic[Tx, In, Out any](s mcpreplay.Applier[Tx], fn func(ctx context.Context, tx Tx, op *Op, in In) (Out, error)) Effect[In, Out] {
	run := func(ctx context.Context, w *work, in In, encode encoder[Out]) (mcpreplay.Record, bool, error) {
		if w.op.from != nil {
			return mcpreplay.Record{}, false, errOtherKind
		}
		w.op.sent = true
		start, inEffect := time.Now(), time.Duration(0)
		rec, started, err := s.Apply(ctx, w.o, func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
			defer func(from time.Time) { inEffect += time.Since(from) }(time.Now())
			if err := w.allowed(ctx); err != nil {
				return mcpreplay.Outcome{}, err
			}
			once := *w.op // a second call starts from the same op as the first
			once.Attempt = 1
			out, err := fn(ctx, tx, &once, in)
			if err != nil {
				return mcpreplay.Outcome{}, err
			}
			result, err := encode(out)
			return mcpreplay.Outcome{Result: result, Effect: once.effect}, err
		})
		w.g.tell.called(ctx, "apply", time.Since(start)-inEffect, err)
		return rec, started, err
	}
	return Effect[In, Out]{stores: []mcpreplay.Store{s}, run: run}
}

// errOtherKind is a claim to be gone on with by an effect that makes none.
var errOtherKind = fmt.Errorf("%w: it was claimed for an external effect, and this tool has an atomic one of the same version", mcpreplay.ErrConflict)

// AtomicHandler is Atomic for a low-level tool handler, which sees the request
// and returns a whole result.
func AtomicHandler[Tx any](s mcpreplay.Applier[Tx], fn func(ctx context.Context, tx Tx, op *Op, req *mcp.CallToolRequest) (*mcp.CallToolResult, error)) Effect[json.RawMessage, *mcp.CallToolResult] {
	return Atomic(s, func(ctx context.Context, tx Tx, op *Op, in json.RawMessage) (*mcp.CallToolResult, error) {
		req, err := requestOf(ctx, in)
		if err != nil {
			return nil, err
		}
		return fn(ctx, tx, op, req)
	})
}

// requestOf is the request that an effect runs for, with the arguments as the effect
// may see them and without what only the guard is to see.
func requestOf(ctx context.Context, in json.RawMessage) (*mcp.CallToolRequest, error) {
	req, ok := ctx.Value(requestKey{}).(*mcp.CallToolRequest)
	if !ok {
		return nil, errors.New("the request is not in the context of the effect")
	}
	seen := *req
	params := *req.Params
	params.Arguments, params.InputResponses, params.RequestState = in, nil, ""
	seen.Params = &params
	return &seen, nil
}

// requestKey is where the context of an effect carries the low-level request.
type requestKey struct{}

// Choose picks one of several effects by the input. Version, Check and Idempotent
// belong around it, not inside: a record does not say how it was chosen.
func Choose[In, Out any](pick func(In) string, of map[string]Effect[In, Out]) Effect[In, Out] {
	chosen := Effect[In, Out]{claims: true}
	for name, e := range of {
		chosen.stores = append(chosen.stores, e.stores...)
		chosen.claims = chosen.claims && e.claims
		chosen.keeps = chosen.keeps || e.settle != nil
		switch {
		case e.err != nil:
			chosen.err = e.err
		case e.run == nil:
			chosen.err = fmt.Errorf("the choice %q is empty; make an effect with guard.Atomic or guard.External", name)
		case e.version != "" || e.check != nil || e.idempotent:
			chosen.err = fmt.Errorf("the choice %q has a Version, a Check or an Idempotent of its own; put them around guard.Choose", name)
		}
	}
	chosen.run = func(ctx context.Context, w *work, in In, encode encoder[Out]) (mcpreplay.Record, bool, error) {
		e, ok := of[pick(in)]
		if !ok {
			return mcpreplay.Record{}, false, &mcpreplay.EffectError{Err: fmt.Errorf("there is no %q way to do this", pick(in))}
		}
		return e.run(ctx, w, in, encode)
	}
	if chosen.keeps {
		chosen.settle = func(ctx context.Context, op *Op, rec mcpreplay.Record, in In, encode encoder[Out]) (settlement, error) {
			if e, ok := of[pick(in)]; ok && e.settle != nil {
				return e.settle(ctx, op, rec, in, encode)
			}
			return settlement{evidence: "what was chosen cannot be asked about"}, nil
		}
	}
	chosen.ask = func(ctx context.Context, op *Op, in In) (Questions, error) {
		if e, ok := of[pick(in)]; ok && e.ask != nil {
			return e.ask(ctx, op, in)
		}
		return nil, nil
	}
	return chosen
}

// Ask adds questions to an effect, which then runs only when every one is
// answered, those of an effect that asks already included. q is called in every
// round, with the answers so far; it returns what it wants to know by then, and
// the questions already answered do not count. It must have no effect of its own
// and should depend on nothing but its inputs.
func Ask[In, Out any](q func(ctx context.Context, op *Op, in In) (Questions, error), e Effect[In, Out]) Effect[In, Out] {
	inner := e.ask
	e.ask = func(ctx context.Context, op *Op, in In) (Questions, error) {
		asked, err := q(ctx, op, in)
		if err != nil || inner == nil {
			return asked, err
		}
		more, err := inner(ctx, op, in)
		if err != nil {
			return nil, err
		}
		all := maps.Clone(more)
		for name, question := range asked {
			if _, twice := all[name]; twice {
				return nil, fmt.Errorf("two questions are named %q", name)
			}
			if all == nil {
				all = make(Questions)
			}
			all[name] = question
		}
		return all, nil
	}
	return e
}

// Check lets status look whether the effect of a record is really there: look
// reads the application's tables in the same snapshot as the record. A record
// whose effect is gone (false, or sql.ErrNoRows) reads as unknown.
func Check[Tx, In, Out any](s mcpreplay.Applier[Tx], look func(ctx context.Context, tx Tx, rec mcpreplay.Record) (bool, error), e Effect[In, Out]) Effect[In, Out] {
	e.stores = append(slices.Clip(e.stores), s)
	e.check = func(ctx context.Context, key mcpreplay.Key) (rec mcpreplay.Record, present bool, err error) {
		rec, err = s.View(ctx, key, func(ctx context.Context, tx Tx, rec mcpreplay.Record) (err error) {
			present, err = look(ctx, tx, rec)
			switch {
			case errors.Is(err, sql.ErrNoRows):
				present, err = false, nil
			case err != nil:
				err = &lookError{err.Error()}
			}
			return err
		})
		return rec, present, err
	}
	return e
}

// lookError is an error of the application's look. It must not pass for one of
// the store's: "no such operation" would then be a lie.
type lookError struct{ text string }

func (e *lookError) Error() string { return "look for the effect: " + e.text }

// Version names the version of a tool. A request of one version is never taken
// for one of another: change it when what the tool does changes. It is "1"
// unless named.
func Version[In, Out any](v string, e Effect[In, Out]) Effect[In, Out] {
	e.version = v
	return e
}
