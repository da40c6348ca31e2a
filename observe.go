package mcpreplay

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Scope is the identity an observation is bound to.
type Scope struct {
	OperationID string `json:"operationId"`
	Principal   string `json:"principal"`
	Backend     string `json:"backend"`
}

// LedgerRef names a ledger and how far it had come. See Info.
type LedgerRef struct {
	Instance    string `json:"instance"`
	Incarnation int64  `json:"incarnation"`
	Position    int64  `json:"position"`
}

// Ref is the part of i that a client keeps.
func (i Info) Ref() LedgerRef {
	return LedgerRef{Instance: i.Instance, Incarnation: i.Incarnation, Position: i.Position}
}

// DroppedResult stands for a stored result whose bytes retention has dropped.
type DroppedResult struct {
	Digest string `json:"digest"` // SHA-256 of the bytes, in lower-case hex
	Size   int64  `json:"size"`
}

// Action is what an observation allows. None of them repeats a write.
type Action string

// The actions.
const (
	ActionReconcile         Action = "reconcile"            // ask again, or bring evidence
	ActionReturnResult      Action = "return_stored_result" // it happened; this is its result
	ActionStop              Action = "stop"                 // it is settled and there is nothing to return
	ActionStartNewOperation Action = "start_new_operation"  // it never can happen; a new id can do the work
)

// Observation is what a read-back says about one operation. It never authorises
// a write.
type Observation struct {
	Scope
	Binding              Scope           `json:"scopeBinding"`
	ScopeText            string          `json:"scope"` // the same for people
	State                State           `json:"state"` // unknown, applied, partial or not_applied
	Authoritative        bool            `json:"authoritative"`
	FreshWriteAuthorized bool            `json:"freshWriteAuthorized"` // always false
	MatchingIDs          []string        `json:"matchingIds"`          // references to the effect, opaque
	StoredResult         json.RawMessage `json:"storedResult"`         // a whole tool result, or null
	Detail               string          `json:"detail"`
	ObservedAt           string          `json:"observedAt"` // RFC 3339 with an offset
	NextAction           Action          `json:"nextAction"`
	Ledger               LedgerRef       `json:"ledger"`
	ResultIsError        bool            `json:"resultIsError"`
	ResultDropped        *DroppedResult  `json:"resultDropped,omitempty"`

	// Steps are those of an operation that is made of several, as far as they are
	// known. They inform, and decide nothing.
	Steps Steps `json:"steps,omitempty"`

	// NewOperationSafe: it is settled that nothing happened and nothing can, so
	// a new operation cannot double the work.
	NewOperationSafe bool `json:"newOperationSafe"`
}

// What an observation says to people and models.
const (
	detailAbsent     = "There is no record of this operation here. That is no proof that nothing happened: the call may still be on its way or may have gone elsewhere. Ask again later."
	detailForgotten  = "This operation is so old that its record may have been swept: what was done under it is not known here any more. Nothing runs under its id again. Do not repeat the work under another id before its system of record says what happened."
	detailLive       = "A live owner is working on this operation. Ask again later."
	detailOrphan     = "This operation has no live owner: it was started, and whether its effect happened is not known. Do not repeat it under another id; only evidence from the system of record can settle it."
	detailReleased   = "Nothing has happened under this operation: the last attempt could not begin and said so. The same call may be sent again with the same operation id."
	detailWaiting    = "This operation waits for answers to a question, and has %s owner."
	detailDisputed   = "The ledger records this operation as %s, but what came later says otherwise. A person has to find out what happened; nothing may run again until then."
	detailMissing    = "The ledger records this operation as %s, but its effect was not found."
	detailDamaged    = "The ledger records this operation as %s, but its stored result cannot be used: %v."
	detailApplied    = "This operation was applied. Its stored result is here; nothing may run again."
	detailDropped    = "This operation was applied. Its stored result is no longer kept; only its digest and size are. Nothing may run again."
	detailPartial    = "A part of this operation was applied and the rest was not. Nothing may run again; a person has to decide what follows."
	detailFenced     = "This operation was fenced: it has not been applied and never will be. Only a new operation id can do the work."
	detailNotApplied = "It is settled that this operation was not applied: it was declined or refused, and nothing can follow under this id."
	detailEffect     = " An effect is known already: %q."
)

// Observe tells what rec, read in one snapshot, says about the operation that
// scope names. physical says whether the effect of an applied or partial record
// was found; nil means that nobody looked.
//
// A record of another principal, operation or backend is told exactly like an
// absent one, whatever found says. rec.Ledger must be filled in all cases.
func Observe(scope Scope, rec Record, found bool, physical *bool) Observation {
	o := Observation{
		Scope:         scope,
		Binding:       scope,
		ScopeText:     fmt.Sprintf("operation %q of principal %q in backend %q", scope.OperationID, scope.Principal, scope.Backend),
		State:         StateUnknown,
		Authoritative: true,
		MatchingIDs:   []string{},
		ObservedAt:    rec.Ledger.Time.UTC().Format(time.RFC3339Nano),
		NextAction:    ActionReconcile,
		Ledger:        rec.Ledger.Ref(),
	}
	if !found || rec.Key != (Key{Principal: scope.Principal, ID: scope.OperationID}) || rec.Ledger.Backend != scope.Backend {
		o.Detail = detailAbsent
		if rec.Ledger.Forgotten.Refuses(scope.OperationID) {
			o.Detail = detailForgotten
		}
		return o
	}
	switch {
	case rec.Contradicted:
		o.Detail = fmt.Sprintf(detailDisputed, rec.State) + knownEffect(rec)
	case rec.State == StateNotApplied:
		o.State, o.NewOperationSafe = StateNotApplied, true
		o.NextAction, o.Detail = ActionStop, detailNotApplied
		if rec.Fenced {
			o.NextAction, o.Detail = ActionStartNewOperation, detailFenced
		}
	case !rec.State.Final():
		o.Detail = unsettled(rec)
	case physical != nil && !*physical:
		o.Detail = fmt.Sprintf(detailMissing, rec.State) + knownEffect(rec)
	default:
		o.settled(rec)
	}
	return o
}

// unsettled explains a record that is not final. It names an effect that is
// known already: whoever has to settle the operation by hand needs it most.
func unsettled(rec Record) string {
	detail := detailOrphan
	switch {
	case rec.State == StateReleased:
		return detailReleased
	case rec.State == StateAwaitingInput && rec.Live:
		detail = fmt.Sprintf(detailWaiting, "a live")
	case rec.State == StateAwaitingInput:
		detail = fmt.Sprintf(detailWaiting, "no live")
	case rec.Live:
		detail = detailLive
	}
	return detail + knownEffect(rec)
}

func knownEffect(rec Record) string {
	if rec.Effect == "" {
		return ""
	}
	return fmt.Sprintf(detailEffect, rec.Effect)
}

// settled fills o from an applied or partial record.
func (o *Observation) settled(rec Record) {
	if err := checkStored(rec.State, rec.Result); err != nil {
		o.Detail = fmt.Sprintf(detailDamaged, rec.State, err) + knownEffect(rec)
		return
	}
	o.State, o.Detail, o.NextAction = rec.State, detailPartial, ActionStop
	if rec.Effect != "" {
		o.MatchingIDs = append(o.MatchingIDs, rec.Effect)
	}
	r := rec.Result
	if r != nil {
		o.ResultIsError = r.IsError
	}
	if r.Dropped() {
		o.ResultDropped = &DroppedResult{Digest: hex.EncodeToString(r.Digest), Size: r.Size}
	} else if r != nil {
		o.StoredResult = r.Body
	}
	if rec.State == StateApplied {
		o.Detail, o.NextAction = detailApplied, ActionReturnResult
		if r.Dropped() {
			o.Detail, o.NextAction = detailDropped, ActionStop
		}
	}
}

// checkStored reports why the result of a final record cannot be shown. A client
// would refuse the observation and learn nothing from it.
func checkStored(state State, r *Result) error {
	switch {
	case r.Dropped():
		return nil
	case r == nil || r.Body == nil:
		if state == StatePartial {
			return nil
		}
		return errors.New("it is missing")
	}
	return checkToolResult(r.Body, r.IsError)
}

// checkToolResult reports why body is not one complete tool result that says
// isError.
func checkToolResult(body []byte, isError bool) error {
	if v := ClassifyResult(body); v.Kind != VerdictResult {
		return fmt.Errorf("not a complete tool result (%s)", v.Detail)
	}
	o, err := readObject(body)
	if err != nil {
		return err
	}
	if said, _ := o.boolean("isError"); said != isError {
		return fmt.Errorf("its isError is %t, not %t", said, isError)
	}
	return nil
}
