package consumer

import (
	"encoding/json"
	"errors"

	"mcpreplay"
)

// Intent is what a call is about: the identity and the request. A journal keeps
// it, so that a client that lost everything else can still ask what happened.
type Intent struct {
	// Scope is the identity. Call needs the operation id; Reconcile needs all of
	// it, because an observation of anything else is not believed.
	Scope     mcpreplay.Scope
	Tool      string
	Arguments json.RawMessage // one JSON object; nil stands for {}

	// Ledger is the ledger as the caller saw it last, with the highest position
	// seen; nil when none was. Reconcile believes no other and no older one, and
	// none but the one in the journal, which keeps what Call sees.
	Ledger *mcpreplay.LedgerRef
}

// Kind says where an outcome comes from.
type Kind string

// The kinds of outcome.
const (
	KindVerdict  Kind = "verdict"  // a reply to rely on: see Verdict
	KindObserved Kind = "observed" // settled by an observation
	KindUnknown  Kind = "unknown"  // nothing to rely on; Verdict tells what came, if anything did
	KindNotSent  Kind = "not_sent" // the request provably never left
)

// Outcome is how a call ended, or what was found out about it.
type Outcome struct {
	Kind    Kind
	Verdict mcpreplay.Verdict // of the last reply; unknown if there was none

	// Effect is what is known of the effect: applied, partial, not_applied or
	// unknown. A reply tells it by its mark alone, which only a guarded server
	// writes.
	Effect mcpreplay.State
	Action mcpreplay.Action

	// Result is the whole tool result as it was received or stored. It is nil
	// unless Kind is verdict and Verdict.Kind is result, or Action is
	// return_stored_result.
	Result json.RawMessage

	Mark        *mcpreplay.Mark        // of the reply, or nil
	Observation *mcpreplay.Observation // of a Reconcile that believed one, or nil

	// FreshWriteAuthorized is always false: nothing here permits a new write.
	FreshWriteAuthorized bool

	Detail string
	Err    error // what the SDK or the journal reported, for the log
}

// Ledger is where the outcome comes from, or nil if it does not say.
func (o Outcome) Ledger() *mcpreplay.LedgerRef {
	switch {
	case o.Observation != nil:
		return &o.Observation.Ledger
	case o.Mark != nil:
		return &o.Mark.Ledger
	}
	return nil
}

func unknown(v mcpreplay.Verdict, detail string, err error) Outcome {
	if detail == "" {
		detail = "the outcome is not known"
	}
	if v.Kind == "" {
		v = mcpreplay.Verdict{Kind: mcpreplay.VerdictUnknown, Detail: detail}
	}
	return Outcome{
		Kind: KindUnknown, Verdict: v, Effect: mcpreplay.StateUnknown, Action: mcpreplay.ActionReconcile,
		Detail: detail, Err: err,
	}
}

func notSent(err error) Outcome {
	o := unknown(mcpreplay.Verdict{}, "the request never left", err)
	o.Kind, o.Action = KindNotSent, mcpreplay.ActionStop
	return o
}

// replied is the outcome of a call whose last reply was judged as v.
func replied(in Intent, v mcpreplay.Verdict, reply []byte, err error) Outcome {
	if in.foreign(v) {
		return unknown(mcpreplay.Verdict{}, "the reply is about another operation", err)
	}
	o := unknown(v, v.Detail, err)
	switch v.Kind {
	case mcpreplay.VerdictResult:
		return o.result(reply)
	case mcpreplay.VerdictRefused:
		o.Kind, o.Action = KindVerdict, mcpreplay.ActionStop
		if v.Reason == mcpreplay.ReasonFenced {
			// Whether new work may start is for an observation to say.
			o.Action = mcpreplay.ActionReconcile
		}
	case mcpreplay.VerdictNotDispatched:
		o.Kind, o.Action = KindVerdict, mcpreplay.ActionStop
	case mcpreplay.VerdictInputRequired:
		o.Detail = "the server asks a question that was not answered"
	case mcpreplay.VerdictReply:
		o.Detail = "the server answered with an error that says nothing about the effect: " + v.Detail
	}
	return o
}

func (o Outcome) result(reply []byte) Outcome {
	mark, marked, err := mcpreplay.ReadMark(reply)
	if err != nil {
		return unknown(mcpreplay.Verdict{}, err.Error(), errors.Join(o.Err, err))
	}
	o.Kind, o.Action, o.Result, o.Detail = KindVerdict, mcpreplay.ActionReturnResult, reply, ""
	if marked {
		o.Mark, o.Effect = &mark, mark.State
		if o.Effect == mcpreplay.StatePartial || o.Effect == mcpreplay.StateNotApplied {
			o.Action = mcpreplay.ActionStop
		}
	}
	return o
}

// settles reports whether o ends what an earlier attempt left unknown, and if not
// why. Only a complete result does, and a marked one only if its record is final.
// It must come from the ledger that is known: another one, or an older state of
// it, may not know of the earlier attempt, and without a mark nobody can tell
// which one it is.
func (o Outcome) settles(known ledgers) (ok bool, why string) {
	switch {
	case o.Kind != KindVerdict || o.Verdict.Kind != mcpreplay.VerdictResult:
		return false, o.Detail
	case !o.Verdict.Settles():
		return false, "its result left no record"
	case o.Mark == nil && len(known) > 0:
		return false, "its result does not say which ledger it comes from"
	case o.Mark != nil && !known.admit(o.Mark.Ledger):
		return false, "its result does not settle it: " + known.differ(o.Mark.Ledger)
	}
	return true, ""
}
