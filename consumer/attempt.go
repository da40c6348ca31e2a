package consumer

import (
	"context"
	"errors"
	"fmt"

	"mcpreplay"
)

// attempt is one Call as the journal sees it.
type attempt struct {
	journal Journal
	in      Intent
	known   Known // before its rounds, the last one included
	open    bool  // the journal waits for the reply to a round
}

// sending records a round before it leaves.
func (a *attempt) sending(ctx context.Context, request []byte) error {
	known, err := a.journal.Sending(ctx, a.in.Scope, request, a.in.Ledger)
	if err != nil {
		return err
	}
	a.open = true
	a.known.Doubt = a.known.Doubt || known.Doubt
	if known.Ledger != nil {
		a.known.Ledger = known.Ledger
	}
	return nil
}

// continuing records a question, and the round that answers it before it leaves.
func (a *attempt) continuing(ctx context.Context, last *round, request []byte) error {
	if last == nil {
		return nil // Call has recorded the first one
	}
	if a.in.foreign(last.verdict) {
		return errors.New("the question is one of another operation")
	}
	ctx = context.WithoutCancel(ctx)
	if err := a.received(ctx, last.verdict, last.reply); err != nil {
		return fmt.Errorf("record the question: %w", err)
	}
	if err := a.sending(ctx, request); err != nil {
		return fmt.Errorf("record the answers: %w", err)
	}
	return nil
}

// received records the reply to the round that the journal waits for, if it waits
// for any: a question whose answers could not be recorded is in it already.
func (a *attempt) received(ctx context.Context, v mcpreplay.Verdict, reply []byte) error {
	if !a.open {
		return nil
	}
	if err := a.journal.Received(ctx, a.in.Scope, v, reply, a.in.ledgerOf(reply)); err != nil {
		return err
	}
	a.open = false
	return nil
}

// end puts the end of the call into the journal, and returns what is left of out
// if an earlier attempt is in doubt. What never left is told like an error that
// proves that nothing was dispatched.
func (a *attempt) end(ctx context.Context, out Outcome, reply []byte) Outcome {
	ctx = context.WithoutCancel(ctx)
	settles, why := out.settles(ledgersOf(a.in.Ledger, a.known.Ledger))
	if a.known.Doubt && !settles {
		out = unknown(out.Verdict, "an earlier attempt is unknown, and this one does not settle it: "+why, out.Err)
	}
	v := out.Verdict
	if out.Kind == KindNotSent {
		v = mcpreplay.Verdict{Kind: mcpreplay.VerdictNotDispatched, Detail: out.Detail}
	}
	err := a.received(ctx, v, reply)
	if err == nil && settles {
		err = a.journal.Settled(ctx, a.in.Scope, out.Effect, out.Result, out.Ledger())
	}
	if err != nil {
		out.Err = errors.Join(out.Err, fmt.Errorf("record the reply: %w", err))
	}
	return out
}

// foreign reports whether v names another operation than the one of in.
func (in Intent) foreign(v mcpreplay.Verdict) bool {
	return v.OperationID != "" && v.OperationID != in.Scope.OperationID
}

// ledgerOf is the ledger that a reply names in the mark of the operation, or nil.
// Whoever gives no result names it too: one that asks, or does not know.
func (in Intent) ledgerOf(reply []byte) *mcpreplay.LedgerRef {
	mark, marked, err := mcpreplay.ReadMark(reply)
	if err != nil || !marked || mark.OperationID != in.Scope.OperationID {
		return nil
	}
	return &mark.Ledger
}

// ledgers are the states of a ledger that are known, from wherever they are.
type ledgers []mcpreplay.LedgerRef

func ledgersOf(refs ...*mcpreplay.LedgerRef) ledgers {
	var known ledgers
	for _, l := range refs {
		if l != nil {
			known = append(known, *l)
		}
	}
	return known
}

// admit reports whether l is the ledger that is known, and no older than any
// known state of it. While none is known, every ledger is admitted.
func (known ledgers) admit(l mcpreplay.LedgerRef) bool { return known.differ(l) == "" }

// differ says why l is not admitted, for people; "" if it is.
func (known ledgers) differ(l mcpreplay.LedgerRef) string {
	for _, k := range known {
		switch {
		case l.Follows(k):
		case l.Instance != k.Instance:
			return fmt.Sprintf("it comes from another ledger (instance %s, known is %s)", l.Instance, k.Instance)
		case l.Incarnation > k.Incarnation:
			return fmt.Sprintf("the ledger was restored: it is incarnation %d, and the operation went to incarnation %d; what was done between the backup and the restore is not in it", l.Incarnation, k.Incarnation)
		default:
			return fmt.Sprintf("it is an older state of the ledger (incarnation %d at position %d, known is incarnation %d at %d)", l.Incarnation, l.Position, k.Incarnation, k.Position)
		}
	}
	return ""
}
