package guard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ResolveSkew is how long after a claim's deadline an effect may still happen:
// the clocks of its owner and of the ledger need not agree.
const ResolveSkew = maxSkew

// MaxReason bounds the text of a reason, in bytes.
const MaxReason = 1000

// Resolution is what an operator found out about an operation whose owner is
// gone: what nobody but the system of record could tell.
type Resolution struct {
	Key     mcpreplay.Key
	Outcome mcpreplay.State // applied, partial or not_applied

	// Result is the JSON of the whole tool result that callers are given from now
	// on. Applied needs one, not_applied has none. Where there is none, a small
	// error is stored that says what was decided, and by whom: not why, which is
	// for operators and not for a model. A ledger does not know the output schema
	// of a tool, so structured content is not checked against it.
	Result []byte

	// EffectOver vouches that the effect can no longer happen, whatever its
	// deadline says: its process has ended, and what it sent on its way has
	// arrived or never will. The history tells that somebody vouched.
	EffectOver bool

	Actor  string // who says so
	Reason string // how it is known; at most MaxReason bytes

	// MaxResult bounds the bytes of Result. 0 means 1 MiB.
	MaxResult int
}

// ResolveReason says why an operation was not resolved. They are stable strings.
type ResolveReason string

// Why an operation was not resolved.
const (
	ResolveAbsent    ResolveReason = "absent"    // there is no record for this principal; a fence is for that
	ResolveUnclaimed ResolveReason = "unclaimed" // nobody has claimed it now, so nothing runs; a fence is for that
	ResolveLive      ResolveReason = "live"      // its owner is working on it
	ResolveEarly     ResolveReason = "early"     // its effect may still happen
	ResolveDone      ResolveReason = "done"      // a step of it is recorded as done, so not_applied is not true
	ResolveSettled   ResolveReason = "settled"   // it has another outcome, or another result, for good
	ResolveResult    ResolveReason = "result"    // the result cannot be stored
)

// ResolveError is a refusal to resolve. Nothing was changed.
type ResolveError struct {
	Reason ResolveReason
	Detail string
	Wait   time.Duration // with ResolveEarly: how long to wait; 0 if waiting alone does not help
}

func (e *ResolveError) Error() string { return e.Detail }

// Validate reports what is wrong with r itself, whatever the ledger holds.
func (r *Resolution) Validate() error {
	if err := mcpreplay.ValidateID(r.Key.ID); err != nil {
		return err
	}
	if err := mcpreplay.ValidatePrincipal(r.Key.Principal); err != nil {
		return fmt.Errorf("principal: %w", err)
	}
	if err := mcpreplay.ValidatePrincipal(r.Actor); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	switch {
	case !r.Outcome.Final():
		return fmt.Errorf("%q is no outcome: it is applied, partial or not_applied", string(r.Outcome))
	case r.Outcome == mcpreplay.StateApplied && r.Result == nil:
		return errors.New("what was applied has a result: give it")
	case r.Outcome == mcpreplay.StateNotApplied && r.Result != nil:
		return errors.New("what was not applied has no result")
	case r.EffectOver && r.Outcome == mcpreplay.StateApplied:
		return errors.New("what was applied needs nobody to vouch that its effect is over")
	case strings.TrimSpace(r.Reason) == "":
		return errors.New("no reason given")
	case len(r.Reason) > MaxReason || !utf8.ValidString(r.Reason):
		return fmt.Errorf("the reason must be at most %d bytes of UTF-8", MaxReason)
	}
	return nil
}

// Resolve settles an operation that is in progress and has no live owner, by the
// word of an operator. It returns the record and whether this call changed it: to
// resolve an operation once more to the same outcome and result changes nothing
// and is no error.
//
// That something did not happen is only settled once it can no longer happen:
// partial and not_applied are refused until ResolveSkew after the deadline of the
// claim, because an owner that was paused may wake up. A claim without a deadline
// is never over by itself: there Resolution.EffectOver is needed.
//
// The error is a *ResolveError if it was refused. One matching
// mcpreplay.ErrUnknown says that it may or may not have been settled; to resolve
// it again is harmless.
func Resolve(ctx context.Context, s mcpreplay.Store, r Resolution) (rec mcpreplay.Record, changed bool, err error) {
	if err := r.Validate(); err != nil {
		return mcpreplay.Record{}, false, err
	}
	result, err := r.result()
	if err != nil {
		return mcpreplay.Record{}, false, err
	}
	for range 10 {
		rec, err = s.Get(ctx, r.Key)
		if errors.Is(err, mcpreplay.ErrNotFound) {
			return rec, false, &ResolveError{Reason: ResolveAbsent, Detail: "there is no record of this operation for this principal"}
		}
		if err != nil {
			return rec, false, err
		}
		if rec.State.Final() {
			return rec, false, r.settledBefore(rec, result)
		}
		if err := r.permitted(rec); err != nil {
			return rec, false, err
		}
		if err := r.contradicted(ctx, s); err != nil {
			return rec, false, err
		}
		evidence := r.Reason
		if r.EffectOver {
			evidence = "the operator vouches that the effect is over: " + evidence
		}
		after, err := s.Advance(ctx, mcpreplay.Change{
			Key: r.Key, Revision: rec.Revision, To: r.Outcome, Result: &result,
			Event: mcpreplay.Event{Kind: mcpreplay.EventSettle, Actor: r.Actor, Evidence: evidence},
		})
		if err == nil {
			return after, true, nil
		}
		if !errors.Is(err, mcpreplay.ErrStale) {
			return rec, false, err
		}
	}
	return rec, false, &ResolveError{Reason: ResolveLive, Detail: "somebody else is changing this operation all the time"}
}

// permitted reports whether a record that is not final may be settled now.
func (r *Resolution) permitted(rec mcpreplay.Record) error {
	switch {
	case rec.State != mcpreplay.StateInProgress:
		return &ResolveError{Reason: ResolveUnclaimed, Detail: fmt.Sprintf("the operation is %s: nothing of it is running", rec.State)}
	case rec.Live:
		return &ResolveError{Reason: ResolveLive, Detail: "a live owner is working on this operation"}
	case r.Outcome == mcpreplay.StateApplied || r.EffectOver:
		return nil
	case rec.Deadline.IsZero():
		return &ResolveError{Reason: ResolveEarly, Detail: "the effect of this operation was claimed without a deadline, so it may still happen"}
	}
	if wait := rec.Deadline.Add(ResolveSkew).Sub(rec.Ledger.Time); wait > 0 {
		return &ResolveError{Reason: ResolveEarly, Wait: wait,
			Detail: fmt.Sprintf("the effect of this operation may still happen for %v", wait.Round(time.Second))}
	}
	return nil
}

// contradicted reports whether the history knows better: a step that is done, and
// was not undone, is a part that was applied.
func (r *Resolution) contradicted(ctx context.Context, s mcpreplay.Store) error {
	if r.Outcome != mcpreplay.StateNotApplied {
		return nil
	}
	events, err := s.Events(ctx, r.Key)
	if err != nil {
		return err
	}
	for _, step := range mcpreplay.StepsOf(events) {
		if step.Outcome == mcpreplay.OutcomeSucceeded && step.Compensation != mcpreplay.OutcomeSucceeded {
			return &ResolveError{Reason: ResolveDone, Detail: fmt.Sprintf("the step %q of this operation is recorded as done", step.Name)}
		}
	}
	return nil
}

// settledBefore reports how a final record differs from r, if it does.
func (r *Resolution) settledBefore(rec mcpreplay.Record, result mcpreplay.Result) error {
	if rec.State != r.Outcome {
		return &ResolveError{Reason: ResolveSettled, Detail: fmt.Sprintf("the operation is %s already", rec.State)}
	}
	if r.Result == nil { // then any result of this outcome will do
		return nil
	}
	digest := sha256.Sum256(result.Body)
	if rec.Result == nil || !bytes.Equal(rec.Result.Digest, digest[:]) {
		return &ResolveError{Reason: ResolveSettled, Detail: fmt.Sprintf("the operation is %s already, with another result", rec.State)}
	}
	return nil
}

// result is what will be stored: the given result in the form of a guard's own,
// or one that is made up.
func (r *Resolution) result() (mcpreplay.Result, error) {
	if r.Result == nil {
		return r.madeUp()
	}
	limit := r.MaxResult
	if limit == 0 {
		limit = 1 << 20
	}
	body, isError, err := checkResult(r.Result, limit)
	if err != nil {
		return mcpreplay.Result{}, &ResolveError{Reason: ResolveResult, Detail: "the result cannot be stored: " + err.Error()}
	}
	return mcpreplay.Result{Body: body, IsError: isError}, nil
}

// madeUp tells callers what was decided. It is an error, because they are not
// given what the tool would have told, and no output schema holds for errors.
func (r *Resolution) madeUp() (mcpreplay.Result, error) {
	text := "it was not done, and nothing can follow under this operation_id."
	if r.Outcome == mcpreplay.StatePartial {
		text = "a part of it was done and the rest was not. Nothing may run again; a person has to decide what follows."
	}
	body, err := json.Marshal(errorResult(fmt.Sprintf("The operator %s settled operation %s: %s", r.Actor, r.Key.ID, text)))
	return mcpreplay.Result{Body: body, IsError: true}, err
}

// checkResult checks a result that comes from outside as one that an effect
// returns, and gives it the form in which it is stored.
func checkResult(text []byte, limit int) (body []byte, isError bool, err error) {
	if err := mcpreplay.CheckJSON(text, &mcpreplay.Limits{Bytes: limit, Depth: 128}); err != nil {
		return nil, false, err
	}
	if v := mcpreplay.ClassifyResult(text); v.Kind != mcpreplay.VerdictResult {
		return nil, false, fmt.Errorf("no client would take it for a result: %s", v.Detail)
	}
	res, err := decodeResult(text)
	if err != nil {
		return nil, false, err
	}
	if err := storable(res); err != nil {
		return nil, false, err
	}
	if body, err = deliverable(text); err != nil {
		return nil, false, err
	}
	if len(body) > limit {
		return nil, false, fmt.Errorf("it has %d bytes, more than the %d that can be kept", len(body), limit)
	}
	return body, res.IsError, nil
}

// storable reports what a result must not have if it is to be stored.
func storable(res *mcp.CallToolResult) error {
	if res.InputRequests != nil || res.RequestState != "" {
		return errors.New("an effect cannot ask: declare its questions with guard.Ask")
	}
	if _, taken := res.Meta[mcpreplay.MetaOperation]; taken {
		return fmt.Errorf("the result's _meta has a %q of its own", mcpreplay.MetaOperation)
	}
	return nil
}
