package guard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// effectGrace is how long an effect may take to end once its deadline has passed.
// Then its caller is told that the outcome is unknown; what it says later is
// recorded all the same.
const effectGrace = 2 * time.Second

// External is an effect somewhere else: a call of an API, a message, a file. The
// operation is claimed first, and the claim is durable before fn is called; then fn
// runs once, on a context that ends with the effect's own deadline (see Timeout) and
// not with the request; then what became of it is recorded.
//
// What fn returns says how it ended:
//
//   - a result: applied. That it is an error (isError), too large to be kept or not
//     as the output schema has it changes nothing about that: the effect ended, and
//     what is recorded tells of it.
//   - NotApplied(err): nothing happened and nothing will. Final.
//   - TryAgain(err): nothing happened this time. The claim is given back, and the
//     same call may be sent again.
//   - any other error, or a panic: unknown, until a reconciler (see Reconcile) or a
//     person settles it. Nothing is repeated.
//
// If the process ends before the outcome is recorded the operation is unknown as
// well, once the lease of the claim has run out.
func External[In, Out any](fn func(ctx context.Context, op *Op, in In) (Out, error)) Effect[In, Out] {
	run := func(ctx context.Context, w *work, in In, encode encoder[Out]) (mcpreplay.Record, bool, error) {
		return w.external(ctx, func(ctx context.Context) (mcpreplay.Result, error) {
			out, err := fn(ctx, w.op, in)
			if err != nil {
				return mcpreplay.Result{}, err
			}
			return keepable(encode, out, mcpreplay.StateApplied), nil
		})
	}
	return Effect[In, Out]{run: run, claims: true}
}

// ExternalHandler is External for a low-level tool handler, which sees the request
// and returns a whole result.
func ExternalHandler(fn func(ctx context.Context, op *Op, req *mcp.CallToolRequest) (*mcp.CallToolResult, error)) Effect[json.RawMessage, *mcp.CallToolResult] {
	return External(func(ctx context.Context, op *Op, in json.RawMessage) (*mcp.CallToolResult, error) {
		req, err := requestOf(ctx, in)
		if err != nil {
			return nil, NotApplied(err)
		}
		return fn(ctx, op, req)
	})
}

// Timeout bounds how long an external effect, or each step of one, may run. It is
// Options.EffectTimeout unless named. Its context ends then; an effect that goes on
// regardless is not stopped, but nobody waits for it much longer.
func Timeout[In, Out any](d time.Duration, e Effect[In, Out]) Effect[In, Out] {
	if inner := e.run; inner != nil {
		e.run = func(ctx context.Context, w *work, in In, encode encoder[Out]) (mcpreplay.Record, bool, error) {
			w.timeout = d
			return inner(ctx, w, in, encode)
		}
	}
	if d <= 0 {
		e.err = fmt.Errorf("guard.Timeout: must be above zero (got %v)", d)
	}
	return e
}

// Idempotent declares that an external effect may be run again under the same
// operation id without doing its work a second time: the system it calls knows the
// id, or its IdempotencyKey, for at least as long as the authority to write lasts.
// Only then is an effect whose owner is gone run again, by the next attempt. If that
// one tells NotApplied or TryAgain the operation stays unknown all the same: it speaks
// for itself, and the attempt before it may have done the work.
func Idempotent[In, Out any](e Effect[In, Out]) Effect[In, Out] {
	if e.err == nil && !e.claims {
		e.err = errors.New("guard.Idempotent is for an external effect: an atomic one is never left in doubt, and steps are never run again")
	}
	e.idempotent = true
	return e
}

// NotApplied says that nothing happened and nothing will: the operation is final as
// not_applied, with the text of err as its result. Only what is certain may be told
// so: the system refused the request, or it was never sent.
func NotApplied(err error) error { return &definiteError{err: err} }

// TryAgain says that nothing happened this time: the claim is given back, and the
// same call may be sent again under the same operation id, until the authority to
// write ends. A rate limit, or a connection that could not be opened.
func TryAgain(err error) error { return &definiteError{err: err, again: true} }

// definiteError is an error that proves that nothing happened.
type definiteError struct {
	err   error
	again bool
}

func (e *definiteError) Error() string {
	var effect *mcpreplay.EffectError
	switch {
	case e.err == nil:
		return "nothing was done"
	case errors.As(e.err, &effect): // of a step that was rolled back
		return effect.Err.Error()
	}
	return e.err.Error()
}

func (e *definiteError) Unwrap() error { return e.err }

// IdempotencyKey is the operation as a key for a system that takes one, such as an
// Idempotency-Key header: 64 hexadecimal characters, the same for every attempt at
// the operation, and another for every other one of this backend, whoever's it is.
//
// Go's net/http sends a POST that has an Idempotency-Key header again by itself when
// a connection breaks. That is what such a key is for; it must not be set for a
// system that does not know it.
func (o *Op) IdempotencyKey() string {
	h := sha256.New()
	for _, part := range []string{"mcpreplay/idempotency-key/v1", o.backend, o.Principal, o.ID} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// work is one attempt to write, as an effect gets it.
type work struct {
	g       *Guard
	op      *Op
	o       mcpreplay.Operation
	timeout time.Duration
	memo    []byte // what a reconciler needs of the request
	allowed func(context.Context) error
}

func (w *work) log() *slog.Logger {
	if w.g == nil { // settled by the guard, which logs that itself
		return slog.New(slog.DiscardHandler)
	}
	return w.g.opts.Logger
}

// ending is what became of an effect.
type ending struct {
	result mcpreplay.Result
	err    error
}

// external claims the operation, runs fn, and records how it ended.
func (w *work) external(ctx context.Context, fn func(context.Context) (mcpreplay.Result, error)) (mcpreplay.Record, bool, error) {
	if err := w.allowed(ctx); err != nil {
		return mcpreplay.Record{}, false, err
	}
	// The deadline is counted from before the claim, so that it comes no later than
	// the one that the ledger knows.
	began := time.Now()
	deadline := began.Add(w.timeout)
	w.op.sent = true
	c, rec, err := w.g.claim(ctx, w)
	if c == nil {
		return rec, false, err
	}
	w.op.Attempt = rec.Attempt
	if since(began) >= w.timeout { // this process slept: others may have given it up
		never := errors.New("the deadline passed before the effect began")
		rec, err := c.write(ctx, c.release(never.Error()))
		return rec, err != nil || rec.State != mcpreplay.StateReleased, errors.Join(err, &mcpreplay.EffectError{Err: never})
	}
	detached, gone := context.WithCancelCause(context.WithoutCancel(ctx))
	c.gone = gone
	stop := c.keep(detached)
	ended := make(chan ending, 1)
	go func() {
		ctx, cancel := context.WithDeadlineCause(detached, deadline, errors.New("the effect's own deadline has passed"))
		defer cancel()
		result, err := apart(func() (mcpreplay.Result, error) { return fn(ctx) })
		ended <- ending{result, err}
	}()
	conclude := func(e ending) (mcpreplay.Record, bool, error) {
		stop()
		defer gone(nil)
		return w.conclude(detached, c, e)
	}
	timer := time.NewTimer(time.Until(deadline) + effectGrace)
	defer timer.Stop()
	select {
	case e := <-ended:
		return conclude(e)
	case <-timer.C:
	}
	stop()
	rec, err = c.write(detached, c.doubt("the effect did not end by its deadline"))
	go func() {
		if _, _, err := conclude(<-ended); err != nil {
			w.g.opts.Logger.Error("effect ended after its deadline", "operation", rec.ID, "error", err)
		}
	}()
	return rec, true, err
}

// since is how long ago t was, by the clock that goes on while its host is suspended
// or by the one that nobody can set back: whichever says more. time.Since alone asks
// the second.
func since(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// conclude records how an effect ended.
func (w *work) conclude(ctx context.Context, c *claim, e ending) (mcpreplay.Record, bool, error) {
	var definite *definiteError
	var crashed *crash
	switch {
	case e.err == nil:
		rec, err := c.write(ctx, c.finish(mcpreplay.StateApplied, e.result, w.op.effect, ""))
		return rec, true, err
	case errors.As(e.err, &definite) && definite.again:
		rec, err := c.write(ctx, c.release(definite.Error()))
		if err != nil || rec.State != mcpreplay.StateReleased {
			return rec, true, err
		}
		return rec, false, definite.effect()
	case errors.As(e.err, &definite):
		rec, err := c.write(ctx, c.finish(mcpreplay.StateNotApplied, failure(definite.Error()), w.op.effect, definite.Error()))
		return rec, true, err
	case errors.As(e.err, &crashed):
		w.g.opts.Logger.Error("effect crashed", "operation", w.o.ID, "error", crashed, "stack", string(crashed.stack))
	}
	doubt := c.doubt(e.err.Error())
	doubt.Effect = w.op.effect
	rec, err := c.write(ctx, doubt)
	if err == nil && rec.State.Final() { // it has been settled meanwhile
		return rec, false, nil
	}
	return rec, true, errors.Join(err, e.err)
}

// effect is e as an effect that was rolled back says it.
func (e *definiteError) effect() *mcpreplay.EffectError {
	var effect *mcpreplay.EffectError
	switch {
	case e.err == nil:
		return &mcpreplay.EffectError{Err: e}
	case errors.As(e.err, &effect):
		return effect
	}
	return &mcpreplay.EffectError{Err: e.err}
}

// failure is a stored result that says what went wrong.
func failure(text string) mcpreplay.Result {
	body, err := json.Marshal(errorResult(text))
	if err == nil {
		body, err = deliverable(body)
	}
	if err != nil { // a text block cannot fail
		panic(err)
	}
	return mcpreplay.Result{Body: body, IsError: true}
}

// keepable is the result of an effect that has ended, whatever it is: one that
// cannot be stored is replaced by a notice, because the effect cannot be taken back.
func keepable[Out any](encode encoder[Out], out Out, state mcpreplay.State) mcpreplay.Result {
	done := "The operation was done"
	if state == mcpreplay.StatePartial {
		done = "A part of the operation was done"
	}
	// What it is made of may panic, which must not pass for the effect's own.
	result, err := apart(func() (mcpreplay.Result, error) { return encode(out) })
	var isError *isErrorResult
	var unkept *unkeptResult
	switch {
	case err == nil:
		return result
	case errors.As(err, &isError):
		return mcpreplay.Result{Body: isError.body, IsError: true}
	case errors.As(err, &unkept):
		sum := sha256.Sum256(unkept.body)
		return failure(fmt.Sprintf("%s, but its result is not kept: %s. It had %d bytes with SHA-256 %x. Do not repeat the operation.",
			done, unkept.why, len(unkept.body), sum))
	}
	return failure(done + ", but its result cannot be kept. Do not repeat the operation.")
}

// unkeptResult is a result that is refused for what it is.
type unkeptResult struct {
	why  string
	body []byte
	err  error
}

func (e *unkeptResult) Error() string { return e.err.Error() }
func (e *unkeptResult) Unwrap() error { return e.err }
