package guard

import (
	"bytes"
	"errors"

	"mcpreplay"
)

// compare holds the call against what the record stands for. A call without
// answers asks for the result of the operation, so only what it brings counts;
// anything else must be the same request in every part.
func (a *attempt) compare(rec mcpreplay.Record) error {
	digests, err := a.g.opts.FingerprintKeys.DigestUnder(rec.Digests.KeyID, a.binding())
	if errors.Is(err, mcpreplay.ErrKeyRetired) {
		return a.refuse(mcpreplay.ReasonKeyRetired, err)
	}
	if err != nil {
		return a.refuseInput(err)
	}
	var differs []string
	if rec.Tool != a.tool.name {
		differs = append(differs, "tool")
	}
	if rec.Version != a.tool.version {
		differs = append(differs, "tool version")
	}
	// The same arguments as sent are the same request, though a schema that
	// changed since fills in other defaults.
	if !bytes.Equal(digests.Arguments, rec.Digests.Arguments) && !bytes.Equal(digests.Sent, rec.Digests.Sent) {
		differs = append(differs, "arguments")
	}
	if a.writes() {
		differs = append(differs, a.continuationDiffers(digests, rec)...)
	}
	if len(differs) == 0 {
		return nil
	}
	r := a.refuse(mcpreplay.ReasonConflict, nil)
	r.differs = differs
	return r
}

// continuationDiffers compares what a continuation brings beside its arguments. A
// legacy client has never seen the state: the SDK keeps it while it asks, so two
// of its calls that differ only there are the same. So are two that were asked anew
// because nothing came of the first.
func (a *attempt) continuationDiffers(now mcpreplay.Digests, rec mcpreplay.Record) (differs []string) {
	then := rec.Digests
	anew := rec.State == mcpreplay.StateReleased || a.tool.idempotent && !rec.State.Final()
	if !bytes.Equal(now.Answers, then.Answers) {
		differs = append(differs, "answers")
	}
	if !bytes.Equal(now.State, then.State) && eraOf(a.req) != eraLegacy && !anew {
		differs = append(differs, "state")
	}
	return differs
}

func (a *attempt) binding() mcpreplay.Binding {
	return mcpreplay.Binding{
		Principal: a.op.Principal,
		Tool:      a.tool.name,
		Version:   a.tool.version,
		Arguments: a.canonical,
		Sent:      a.asSent,
		State:     a.plain,
		Answers:   a.answers.normal(),
	}
}
