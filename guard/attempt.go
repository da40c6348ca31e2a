package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const methodCall = "tools/call"

// attempt is one request on the wire for a guarded tool. What the checks find is
// collected in it, in the order the checks are made.
type attempt struct {
	g    *Guard
	tool *tool
	req  *mcp.CallToolRequest

	op        *Op
	normal    []byte // arguments without operation_id, defaults filled in
	args      []byte // as the effect decodes them
	canonical []byte // canonical form of normal
	asSent    []byte // canonical form before defaults were filled in

	claims  *claims // of the request state, if there was one
	plain   string  // its plaintext, which a continuation is bound by
	answers answers // all rounds so far

	ledger mcpreplay.Info // as of the look-up
	stale  error          // the request state was good once, and is no longer
	past   bool           // there is a record, and its retention has passed
}

// call makes the checks, each before any effect, and then either replays, asks,
// refuses or lets the effect run.
func (g *Guard) call(ctx context.Context, t *tool, req *mcp.CallToolRequest) (res *mcp.CallToolResult, err error) {
	a := &attempt{g: g, tool: t, req: req, op: &Op{backend: g.info.Backend}}
	ctx, end := g.tell.begin(ctx, t.name, req.Params.Meta)
	defer func() { end(a.op.ID, outcomeOf(res, err)) }()
	res, err = apart(func() (*mcp.CallToolResult, error) { return a.answer(ctx) })
	var crashed *crash
	if errors.As(err, &crashed) {
		g.opts.Logger.Error("crashed", "tool", t.name, "operation", a.op.ID, "error", crashed, "stack", string(crashed.stack))
		if a.op.sent {
			return a.unknown(crashed), nil
		}
		res, err = a.effectFailed(&mcpreplay.EffectError{Err: crashed, Panic: true})
	}
	var refused *refusal
	if errors.As(err, &refused) {
		g.opts.Logger.Info("refused", "tool", t.name, "operation", refused.operation, "reason", refused.reason, "why", refused.why)
		return nil, refused.wire()
	}
	return res, err
}

func (a *attempt) answer(ctx context.Context) (*mcp.CallToolResult, error) {
	if err := a.identify(ctx); err != nil {
		return nil, err
	}
	rec, err := a.lookup(ctx)
	switch {
	case err == nil:
		res, err := a.existing(ctx, rec)
		if res != nil || err != nil {
			return res, err
		}
		// Nothing has come of it and it may be tried again, or the tool has questions:
		// then it asks again, and will meet the tombstone.
		a.past = a.op.from == nil
	case !errors.Is(err, mcpreplay.ErrNotFound):
		return nil, err
	case a.stale != nil:
		return nil, a.refuse(mcpreplay.ReasonRequestState, a.stale)
	case a.op.ID == "" && !a.mayHandshake():
		return nil, a.refuse(mcpreplay.ReasonIDRequired, nil)
	default:
		if err := a.checkLost(ctx); isLost(err) {
			return a.unknown(err), nil
		} else if err != nil {
			return nil, err
		}
	}
	if res, err := a.nextRound(ctx); res != nil || err != nil {
		return res, err
	}
	return a.write(ctx)
}

// identify finds out who asks for what under which id: the arguments, the id in
// all the places it can travel, and the request state.
func (a *attempt) identify(ctx context.Context) error {
	principal, err := a.g.principal(ctx, a.req.Extra)
	if err != nil {
		return a.refuse(mcpreplay.ReasonPrincipal, err)
	}
	a.op.Principal = principal
	limits := &mcpreplay.Limits{Bytes: a.g.opts.MaxArguments, Depth: a.g.opts.MaxDepth}
	args, err := a.tool.input.read(a.req.Params.Arguments, limits)
	if err != nil {
		return a.refuseInput(err)
	}
	a.normal, a.canonical, a.asSent = args.normal, args.canonical, args.asSent
	if err := a.takeID(args.id); err != nil {
		return err
	}
	if token := a.req.Params.RequestState; token != "" {
		c, plain, err := open(a.g.opts.Keys, token)
		if err != nil {
			return a.refuse(mcpreplay.ReasonRequestState, err)
		}
		if a.op.ID != "" && a.op.ID != c.Operation {
			return a.refuse(mcpreplay.ReasonRequestState, errors.New("it names another operation than the call"))
		}
		a.op.ID, a.claims, a.plain = c.Operation, &c, plain
	} else if len(a.req.Params.InputResponses) > 0 {
		r := a.refuse(mcpreplay.ReasonContinuation, nil)
		r.detail = "input responses require requestState"
		return r
	}
	a.args, err = a.tool.input.forEffect(a.normal, a.op.ID)
	return err
}

// takeID settles the id the caller gave, in the arguments, in _meta, or in both
// alike.
func (a *attempt) takeID(fromArguments string) error {
	a.op.ID = fromArguments
	if v, ok := a.req.Params.Meta[mcpreplay.MetaOperationID]; ok {
		id, isString := v.(string)
		if !isString {
			return a.refuseInput(&mcpreplay.IDError{Reason: "must be a string"})
		}
		if err := mcpreplay.ValidateID(id); err != nil {
			return a.refuseInput(err)
		}
		if fromArguments != "" && fromArguments != id {
			return a.refuseInput(&mcpreplay.IDError{Reason: "must be the same in the arguments and in _meta"})
		}
		a.op.ID = id
	}
	return nil
}

// lookup reads the record, if any, and settles what of the continuation depends
// on the ledger's identity and time. A call that names no operation has none.
func (a *attempt) lookup(ctx context.Context) (mcpreplay.Record, error) {
	var rec mcpreplay.Record
	var err error
	bounded, cancel := context.WithTimeout(ctx, a.g.opts.Wait)
	defer cancel()
	if a.op.ID == "" {
		rec.Ledger, err = a.g.store.Info(bounded)
		if err == nil {
			err = mcpreplay.ErrNotFound
		}
	} else {
		rec, err = a.g.store.Get(bounded, mcpreplay.Key{Principal: a.op.Principal, ID: a.op.ID})
	}
	if err != nil && !errors.Is(err, mcpreplay.ErrNotFound) {
		return rec, a.refuseStore(ctx, err)
	}
	a.ledger = rec.Ledger
	if a.claims != nil {
		a.stale = a.g.admit(*a.claims, a, rec.Ledger)
		if a.stale != nil && !errors.Is(a.stale, errStale) {
			return rec, a.refuse(mcpreplay.ReasonRequestState, a.stale)
		}
		if err := a.readAnswers(); err != nil {
			return rec, err
		}
	}
	return rec, err
}

// existing answers for a record that is there already. It returns nothing at all
// if the call must ask its questions again.
func (a *attempt) existing(ctx context.Context, rec mcpreplay.Record) (*mcp.CallToolResult, error) {
	if rec.Fenced {
		return nil, a.refuse(mcpreplay.ReasonFenced, nil)
	}
	// Stale request state still names the request whose result is here: the
	// deadlines of the record count, not the token's.
	if err := a.compare(rec); err != nil {
		return nil, err
	}
	now := rec.Ledger.Time
	if a.stale != nil && (expired(now, rec.Authority) || expired(now, rec.Retention)) {
		return nil, a.refuse(mcpreplay.ReasonRequestState, a.stale)
	}
	if rec.Contradicted {
		return a.unknown(errors.New("a late outcome disagrees with the record")), nil
	}
	if a.writes() && expired(now, rec.Authority) {
		return nil, a.refuse(mcpreplay.ReasonAuthorityExpired, nil)
	}
	if expired(now, rec.Retention) {
		if pending, err := a.pending(ctx); !a.writes() && err == nil && len(pending) > 0 {
			return nil, nil
		}
		return nil, a.refuse(mcpreplay.ReasonRetentionExpired, nil)
	}
	rec, err := a.wait(ctx, rec)
	if err != nil {
		return nil, err
	}
	if rec = a.g.reconcile(ctx, rec); rec.State == mcpreplay.StateInProgress && rec.Live {
		if rec, err = a.wait(ctx, rec); err != nil { // somebody else is asking
			return nil, err
		}
	}
	switch {
	case rec.Contradicted:
	case rec.State.Final():
		return a.reply(rec, true)
	case rec.Live:
		return nil, a.refuse(mcpreplay.ReasonInProgress, nil)
	case a.mayClaim(rec):
		a.op.from = &rec
		return nil, nil
	case rec.State == mcpreplay.StateReleased:
		return nil, a.refuse(mcpreplay.ReasonAuthorityExpired, nil)
	}
	return a.unknown(fmt.Errorf("the record is %s and its owner is gone", rec.State)), nil
}

// mayClaim reports whether the effect of rec may be run, though it is not new: its
// claim was given back, or its owner is gone and running it again does no harm.
func (a *attempt) mayClaim(rec mcpreplay.Record) bool {
	if expired(rec.Ledger.Time, rec.Authority) {
		return false
	}
	return rec.State == mcpreplay.StateReleased || rec.State == mcpreplay.StateInProgress && !rec.Live && a.tool.idempotent
}

// writes reports whether the call asks to write. A continuation does: its right
// to write counts first. A first round asks for the answer alone.
func (a *attempt) writes() bool { return a.claims != nil && a.answers.complete }

func expired(now, deadline time.Time) bool { return !deadline.IsZero() && !now.Before(deadline) }

// wait waits for the owner of a claim to finish, within the limit.
func (a *attempt) wait(ctx context.Context, rec mcpreplay.Record) (mcpreplay.Record, error) {
	if !a.g.waiting.take() {
		return rec, nil
	}
	defer a.g.waiting.give()
	limit := time.NewTimer(a.g.opts.Wait)
	defer limit.Stop()
	for pause := 5 * time.Millisecond; !rec.State.Final() && rec.Live; pause = min(2*pause, 250*time.Millisecond) {
		select {
		case <-limit.C:
			return rec, nil
		case <-ctx.Done():
			return rec, a.refuse(mcpreplay.ReasonCancelled, ctx.Err())
		case <-time.After(pause):
		}
		again, err := a.g.store.Get(ctx, rec.Key)
		if err != nil {
			return rec, a.refuse(mcpreplay.ReasonInProgress, err)
		}
		rec = again
	}
	return rec, nil
}

// write lets the effect run, once, and answers with what was recorded.
func (a *attempt) write(ctx context.Context) (*mcp.CallToolResult, error) {
	o, err := a.operation()
	if err != nil {
		return nil, err
	}
	if expired(a.ledger.Time, o.Authority) {
		return nil, a.refuse(mcpreplay.ReasonAuthorityExpired, nil)
	}
	if expired(a.ledger.Time, o.Retention) {
		return nil, a.refuse(mcpreplay.ReasonRetentionExpired, nil)
	}
	if err := ctx.Err(); err != nil {
		return nil, a.refuse(mcpreplay.ReasonCancelled, err)
	}
	if !a.g.writing.take() {
		return nil, a.refuse(mcpreplay.ReasonBusy, nil)
	}
	defer a.g.writing.give()
	bounded, cancel := context.WithTimeout(context.WithValue(ctx, requestKey{}, a.req), a.g.opts.Wait)
	defer cancel()
	w := &work{g: a.g, op: a.op, o: o, timeout: a.g.opts.EffectTimeout}
	w.allowed = func(ctx context.Context) error {
		if err := a.g.opts.Authorize(ctx, o); err != nil {
			return a.refuse(mcpreplay.ReasonForbidden, err)
		}
		return nil
	}
	rec, started, err := a.tool.run(bounded, w, a.args)
	if err != nil {
		return a.failed(ctx, err, started)
	}
	return a.settled(ctx, rec, started)
}

// settled answers with a record that this attempt made or found.
func (a *attempt) settled(ctx context.Context, rec mcpreplay.Record, started bool) (*mcp.CallToolResult, error) {
	if !started { // another attempt was faster: this one is a repeat of it
		res, err := a.existing(ctx, rec)
		if res == nil && err == nil {
			if a.op.from != nil { // that one was given back too, since
				return nil, a.refuse(mcpreplay.ReasonInProgress, nil)
			}
			return nil, a.refuse(mcpreplay.ReasonRetentionExpired, nil)
		}
		return res, err
	}
	if rec.Contradicted {
		return a.unknown(errors.New("the record was settled otherwise before the effect ended")), nil
	}
	if !rec.State.Final() {
		return a.unknown(fmt.Errorf("the effect ended and left the record %s", rec.State)), nil
	}
	return a.reply(rec, false)
}

// operation is what this attempt would record. The deadlines of a continuation
// are those of its first round.
func (a *attempt) operation() (mcpreplay.Operation, error) {
	digests, err := a.g.opts.FingerprintKeys.Digest(a.binding())
	if err != nil {
		return mcpreplay.Operation{}, a.refuseInput(err)
	}
	if a.op.from != nil { // what is recorded counts
		return a.op.from.Operation, nil
	}
	authority, retention := a.deadlines()
	return mcpreplay.Operation{
		Key:       mcpreplay.Key{Principal: a.op.Principal, ID: a.op.ID},
		Tool:      a.tool.name,
		Version:   a.tool.version,
		Digests:   digests,
		Authority: authority,
		Retention: retention,
	}, nil
}

func (a *attempt) deadlines() (authority, retention time.Time) {
	if a.claims != nil {
		return fromMicros(a.claims.Authority), fromMicros(a.claims.Retention)
	}
	return a.ledger.Time.Add(a.g.opts.AuthorityTTL), a.ledger.Time.Add(a.g.opts.Retention)
}

// checkInput validates the arguments by the tool's schema, which is asked only
// once it is known that there is no result to give.
func (a *attempt) checkInput() (*mcp.CallToolResult, error) {
	if err := validate(a.tool.input.schema, a.args); err != nil {
		if a.past { // there is something to say of the operation after all
			return nil, a.refuse(mcpreplay.ReasonRetentionExpired, err)
		}
		return a.mark(errorResult(fmt.Sprintf("validating \"arguments\": %v", err)), a.notRecorded()), nil
	}
	return nil, nil
}

// refuse makes the refusal of this attempt for a reason of the table.
func (a *attempt) refuse(reason mcpreplay.Reason, why error) *refusal {
	return &refusal{reason: reason, operation: a.op.ID, why: why}
}

// refuseStore makes the refusal of an attempt that the ledger did not take. It is
// the caller's doing if he cancelled.
func (a *attempt) refuseStore(ctx context.Context, err error) *refusal {
	if ctx.Err() != nil {
		return a.refuse(mcpreplay.ReasonCancelled, err)
	}
	return a.refuse(mcpreplay.ReasonUnavailable, err)
}

// refuseInput makes the refusal of arguments that cannot be read.
func (a *attempt) refuseInput(err error) *refusal {
	var syntax *mcpreplay.JSONError
	var id *mcpreplay.IDError
	switch {
	case errors.As(err, &syntax) && syntax.Limit:
		r := a.refuse(mcpreplay.ReasonLimit, err)
		r.detail = syntax.Error()
		return r
	case errors.As(err, &syntax):
		r := a.refuse(mcpreplay.ReasonArguments, err)
		r.detail = syntax.Error()
		return r
	case errors.As(err, &id):
		r := a.refuse(mcpreplay.ReasonIDInvalid, err)
		r.detail = id.Error()
		return r
	}
	return a.refuse(mcpreplay.ReasonArguments, err)
}
