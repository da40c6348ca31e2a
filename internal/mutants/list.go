package main

// mutants are the breaks. docs/cases.md has the same list.
var mutants = []mutant{
	{
		name:  "no-comparison",
		what:  "a repeat is not held against the recorded fingerprint",
		edits: []edit{{"guard/compare.go", "	if len(differs) == 0 {", "	if len(differs) >= 0 {"}},
		cells: []string{"04-stdio", "05-http"},
	},
	{
		name:  "state-not-compared",
		what:  "a repeat may bring other request state",
		edits: []edit{{"guard/compare.go", "if !bytes.Equal(now.State, then.State) &&", "if false &&"}},
		cells: []string{"05-stdio"},
	},
	{
		name: "record-first",
		what: "the record is committed before the effect, in a transaction of its own",
		edits: []edit{{"sqlite/store.go", "		r.Seq = claim.Seq\n",
			"		r.Seq = claim.Seq\n		if err := c.commit.run(nil); err != nil {\n			return false, err\n		}\n		if err := c.begin.run(nil); err != nil {\n			return false, err\n		}\n"}},
		cells: []string{"fault-exit-after-ledger-insert-atomic"},
	},
	{
		name: "reply-first",
		what: "the reply is sent before the commit",
		edits: []edit{
			{"guard/effect.go", "		return s.Apply(ctx, o, func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {\n			once := *op",
				"		early := make(chan mcpreplay.Record, 2)\n		apply := func() (mcpreplay.Record, bool, error) { return s.Apply(context.WithoutCancel(ctx), o, func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {\n			once := *op"},
			{"guard/effect.go", "			return mcpreplay.Outcome{Result: result, Effect: once.effect}, err\n		})\n",
				"			early <- mcpreplay.Record{Operation: o, State: mcpreplay.StateApplied, Effect: once.effect, Result: &result}\n			return mcpreplay.Outcome{Result: result, Effect: once.effect}, err\n		}) }\n		go func() { rec, _, _ := apply(); early <- rec }()\n		return <-early, true, nil\n"},
		},
		cells: []string{"fault-kill-after-issue-insert-atomic"},
	},
	{
		name: "status-to-anyone",
		what: "status returns the stored result to another principal",
		edits: []edit{
			{"sqlite/reader.go", "	case r == nil || r.Principal != key.Principal:", "	case r == nil:"},
			{"observe.go", "rec.Key != (Key{Principal: scope.Principal, ID: scope.OperationID})", "rec.ID != scope.OperationID"},
		},
		cells: []string{"06-stdio", "06-http"},
	},
	{
		name:  "deadlines-reversed",
		what:  "deadlines are compared the wrong way round",
		edits: []edit{{"guard/attempt.go", "!deadline.IsZero() && !now.Before(deadline)", "!deadline.IsZero() && now.Before(deadline)"}},
		cells: []string{"01-stdio", "07-stdio", "10-http"},
	},
	{
		name:  "deadlines-too-long",
		what:  "a deadline that is reached is not over",
		edits: []edit{{"guard/attempt.go", "!deadline.IsZero() && !now.Before(deadline)", "!deadline.IsZero() && now.After(deadline)"}},
		cells: []string{"07-stdio", "10-stdio"},
	},
	{
		name: "absence-is-proof",
		what: "an operation without a record is called not applied",
		edits: []edit{{"observe.go", "		o.Detail = detailAbsent\n		return o",
			"		o.Detail, o.State, o.NewOperationSafe, o.NextAction = detailAbsent, StateNotApplied, true, ActionStop\n		return o"}},
		cells: []string{"02-stdio", "02-legacy"},
	},
	{
		name:  "state-of-anyone",
		what:  "request state is not bound to its principal",
		edits: []edit{{"guard/seal.go", "	case c.Principal != a.op.Principal:", "	case c.Principal == \"\":"}},
		cells: []string{"06-stdio"},
	},
	{
		name:  "answers-without-state",
		what:  "answers are taken without the state they belong to",
		edits: []edit{{"guard/attempt.go", "	} else if len(a.req.Params.InputResponses) > 0 {", "	} else if len(a.req.Params.InputResponses) > 1000 {"}},
		cells: []string{"11-stdio"},
	},
	{
		name:  "replays-as-fresh",
		what:  "a replay is not marked as one",
		edits: []edit{{"guard/attempt.go", "		return a.reply(rec, true)", "		return a.reply(rec, false)"}},
		cells: []string{"01-stdio", "08-stdio"},
	},
	{
		name: "unknown-is-failure",
		what: "a commit that was not confirmed is told as a failure",
		edits: []edit{{"guard/errors.go", "	case errors.Is(err, mcpreplay.ErrUnknown):\n		return a.unknown(err), nil",
			"	case errors.Is(err, mcpreplay.ErrUnknown):\n		return nil, a.refuseStore(ctx, err)"}},
		cells: []string{"fault-error-after-commit-atomic"},
	},
	{
		name: "failed-effect-commits",
		what: "what a failing effect has done is committed",
		edits: []edit{{"sqlite/store.go", "		if err != nil {\n			return false, err\n		}\n		e, err := r.change(mcpreplay.Change{\n			To: mcpreplay.StateApplied",
			"		e, err := r.change(mcpreplay.Change{\n			To: mcpreplay.StateApplied"}},
		cells: []string{"fault-error-after-issue-insert-atomic"},
	},
	{
		name:  "time-runs-backwards",
		what:  "the ledger's time follows a clock that was set back",
		edits: []edit{{"sqlite/change.go", "	if now.Before(info.Time) {", "	if false {"}},
		cells: []string{"fault-clock-back"},
	},
	{
		name:  "claims-are-retried",
		what:  "a claim whose owner is gone is told as not done",
		edits: []edit{{"guard/attempt.go", "	return a.unknown(fmt.Errorf(\"the record is %s and its owner is gone\", rec.State)), nil", "	return nil, a.refuse(mcpreplay.ReasonUnavailable, nil)"}},
		cells: []string{"fault-exit-after-ledger-insert-partial"},
	},
	{
		name:  "file-not-watched",
		what:  "a server goes on writing into a file that was replaced",
		edits: []edit{{"sqlite/file.go", "	for i, f := range c.files {", "	for i, f := range c.files[:0] {"}},
		cells: []string{"fault-file-replaced"},
	},
	{
		name:  "fence-forgotten",
		what:  "a fence does not stop a request that arrives late",
		edits: []edit{{"guard/attempt.go", "	if rec.Fenced {", "	if rec.Fenced && rec.Tool != \"\" {"}},
		cells: []string{"transport-late-fenced"},
	},
	{
		name:  "any-token",
		what:  "a token that nobody has is alice's",
		edits: []edit{{"guard/bearer.go", "		if principal := h.principalOf(token); principal != \"\" {", "		if principal := cmp.Or(h.principalOf(token), \"alice\"); principal != \"\" {"}, {"guard/bearer.go", "import (\n", "import (\n	\"cmp\"\n"}},
		cells: []string{"transport-tokens"},
	},
	{
		name:  "lost-is-failure",
		what:  "the consumer takes a lost reply for a call that was not sent",
		edits: []edit{{"consumer/consumer.go", "	return unknown(mcpreplay.Verdict{}, fmt.Sprintf(\"no reply came: %v\", err), err), nil", "	return notSent(err), nil"}},
		cells: []string{"transport-drop-reply-consumer", "transport-answer-502-consumer"},
	},
	{
		name:  "keys-kept",
		what:  "the consumer lets an Idempotency-Key through",
		edits: []edit{{"consumer/http.go", "		if _, ok := req.Header[name]; ok {", "		if _, ok := req.Header[name]; ok && req.Method == http.MethodGet {"}},
		cells: []string{"transport-key-consumer"},
	},
	{
		name:  "reply-during-commit",
		what:  "the reply is sent while the commit is on its way",
		edits: []edit{{"sqlite/writer.go", "	w.phase = committing\n	if err := w.commit(); err != nil {", "	w.phase = committing\n	r.done <- nil\n	r.done = make(chan error, 1)\n	if err := w.commit(); err != nil {"}},
		cells: []string{"fault-disk-full-atomic"},
	},
}
