package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"mcpreplay"
)

// statusView is what status and fence tell of one operation. Its members are a
// contract: docs/cli.md.
type statusView struct {
	Observation mcpreplay.Observation `json:"observation"`
	Record      *recordView           `json:"record"` // null if there is none
	Events      []eventView           `json:"events"`

	body []byte // of the stored result
}

type recordView struct {
	OperationID    string          `json:"operationId"`
	Principal      string          `json:"principal"`
	Tool           string          `json:"tool"`
	ToolVersion    string          `json:"toolVersion"`
	State          mcpreplay.State `json:"state"` // as the ledger holds it
	Fenced         bool            `json:"fenced"`
	Revision       int64           `json:"revision"`
	Owner          string          `json:"owner"`
	Live           bool            `json:"live"`
	Attempt        int64           `json:"attempt"`
	Acknowledged   bool            `json:"acknowledged"`
	Effect         string          `json:"effect"`
	Result         *resultView     `json:"result"`
	KeyID          string          `json:"keyId"`
	Seq            int64           `json:"seq"`
	Position       int64           `json:"position"`
	CreatedAt      string          `json:"createdAt"`
	UpdatedAt      string          `json:"updatedAt"`
	AuthorityUntil *string         `json:"authorityUntil"`
	RetentionUntil *string         `json:"retentionUntil"`
	EffectUntil    *string         `json:"effectUntil"`
}

type resultView struct {
	IsError bool   `json:"isError"`
	Digest  string `json:"digest"`
	Size    int64  `json:"size"`
	Dropped bool   `json:"dropped"`
}

type eventView struct {
	Position int64               `json:"position"`
	At       string              `json:"at"`
	Kind     mcpreplay.EventKind `json:"kind"`
	State    mcpreplay.State     `json:"state"`
	Revision int64               `json:"revision"`
	Step     string              `json:"step"`
	Outcome  string              `json:"outcome"`
	Actor    string              `json:"actor"`
	Evidence string              `json:"evidence"`
}

func viewRecord(rec mcpreplay.Record) *recordView {
	v := &recordView{
		OperationID: rec.ID, Principal: rec.Principal, Tool: rec.Tool, ToolVersion: rec.Version,
		State: rec.State, Fenced: rec.Fenced, Revision: rec.Revision, Owner: rec.Owner, Live: rec.Live,
		Attempt: rec.Attempt, Acknowledged: rec.Acknowledged, EffectUntil: deadline(rec.Deadline),
		Effect: rec.Effect, KeyID: rec.Digests.KeyID, Seq: rec.Seq, Position: rec.Position,
		CreatedAt: timeText(rec.CreatedAt), UpdatedAt: timeText(rec.UpdatedAt),
		AuthorityUntil: deadline(rec.Authority), RetentionUntil: deadline(rec.Retention),
	}
	if r := rec.Result; r != nil {
		v.Result = &resultView{IsError: r.IsError, Digest: hex.EncodeToString(r.Digest), Size: r.Size, Dropped: r.Dropped()}
	}
	return v
}

func viewEvents(events []mcpreplay.Event) []eventView {
	out := make([]eventView, 0, len(events))
	for _, ev := range events {
		out = append(out, eventView{
			Position: ev.Position, At: timeText(ev.At), Kind: ev.Kind, State: ev.State, Revision: ev.Revision,
			Step: ev.Step, Outcome: ev.Outcome, Actor: ev.Actor, Evidence: ev.Evidence,
		})
	}
	return out
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// deadline is null for the zero time, which is no deadline.
func deadline(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := timeText(t)
	return &s
}

// printJSON prints v indented, with <, > and & as they are.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// reply writes the answer of a command: v as JSON, or what print makes of it.
func (e *env) reply(asJSON bool, v any, print func(io.Writer) error) error {
	var err error
	if asJSON {
		err = printJSON(e.stdout, v)
	} else {
		err = print(e.stdout)
	}
	if err != nil {
		return failed(err, "")
	}
	return nil
}

// print shows v to a person.
func (v *statusView) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	o := v.Observation
	row("operation", "%s", plain(o.OperationID))
	row("state", "%s", o.State)
	row("", "%s", o.Detail)
	row("next", "%s", o.NextAction)
	if r := v.Record; r != nil {
		row("recorded", "%s, revision %d", r.State, r.Revision)
		if r.Tool != "" {
			row("tool", "%s %s", plain(r.Tool), plain(r.ToolVersion))
		}
		row("principal", "%s", plain(r.Principal))
		row("created", "%s", r.CreatedAt)
		row("updated", "%s", r.UpdatedAt)
		row("authority until", "%s", orNone(r.AuthorityUntil))
		row("retention until", "%s", orNone(r.RetentionUntil))
		if r.Effect != "" {
			row("effect", "%s", plain(r.Effect))
		}
		if r.Owner != "" && !r.State.Final() {
			row("owner", "%s, %s", plain(r.Owner), map[bool]string{true: "alive", false: "without a lease"}[r.Live])
		}
		if r.EffectUntil != nil && !r.State.Final() {
			row("effect until", "%s", *r.EffectUntil)
		}
		if r.Result != nil {
			row("result", "%s", v.result())
		}
	}
	row("ledger", "%s, instance %s, incarnation %d, position %d", plain(o.Backend), o.Ledger.Instance, o.Ledger.Incarnation, o.Ledger.Position)
	for _, ev := range v.Events {
		row(fmt.Sprintf("event %d", ev.Position), "%s", ev.line())
	}
	return t.Flush()
}

// shownResult is how much of a stored result is shown to a person.
const shownResult = 400

func (v *statusView) result() string {
	r := v.Record.Result
	text := fmt.Sprintf("%d bytes, SHA-256 %s", r.Size, r.Digest)
	if r.IsError {
		text = "an error, " + text
	}
	if v.Record.Acknowledged {
		text += ", acknowledged"
	}
	body := string(v.body)
	switch {
	case r.Dropped:
		return text + ", no longer kept"
	case len(body) > shownResult:
		body = strings.ToValidUTF8(body[:shownResult], "") + "..."
	}
	return text + "\n\t" + plain(body)
}

func (ev *eventView) line() string {
	parts := []string{ev.At, string(ev.Kind)}
	if ev.Step != "" {
		parts = append(parts, plain(ev.Step))
	}
	if ev.Outcome != "" {
		parts = append(parts, plain(ev.Outcome))
	}
	parts = append(parts, "-> "+string(ev.State), "by "+plain(ev.Actor))
	if ev.Evidence != "" {
		parts = append(parts, strconv.Quote(ev.Evidence))
	}
	return strings.Join(parts, "  ")
}

func orNone(s *string) string {
	if s == nil {
		return "no limit"
	}
	return *s
}

// plain is text from outside as it may go to a terminal: quoted if it holds
// anything that is not printable.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) || r == '\uFFFD' }) {
		return strconv.Quote(s)
	}
	return s
}
