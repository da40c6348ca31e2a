package evidence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mcpreplay"
)

// flag is the value of a flag of a start.
func (e *Event) flag(name, otherwise string) string {
	for i, a := range e.Args {
		if a == name && i+1 < len(e.Args) {
			return e.Args[i+1]
		}
	}
	return otherwise
}

func (e *Event) has(name string) bool {
	for _, a := range e.Args {
		if a == name {
			return true
		}
	}
	return false
}

// told reports whether the story tells of an event. When connections begin and
// when it is noticed that they ended differs from run to run.
func (e *Event) told() bool {
	return e.Kind != EventLink || slices.Contains([]string{"struck", "held", "released", "dropped", "reset", "unreachable"}, e.Text)
}

// text is the line of an event. Of a start it tells what is not as in the other
// cells.
func (e *Event) text() string {
	switch e.Kind {
	case EventStart:
		return e.startText()
	case EventExit:
		if e.Code == nil {
			return "exits"
		}
		return fmt.Sprintf("exits with %d", *e.Code)
	case EventKill:
		return "is killed"
	case EventReached:
		return strings.TrimSpace(fmt.Sprintf("is at %s of %s", e.Point, e.Operation))
	case EventRelease:
		return "goes on"
	case EventAct:
		return e.Text
	case EventOutcome:
		if e.Conclusion != nil {
			return e.Conclusion.text(e.Operation)
		}
		return "concludes nothing"
	case EventBetween:
		return "stands before " + e.Server + ": " + e.Text
	case EventLink:
		return "connection: " + e.Text
	}
	return "does what nobody knows: " + e.Kind
}

func (e *Event) startText() string {
	var b strings.Builder
	b.WriteString("starts")
	if e.has("--unguarded") {
		b.WriteString(" unguarded")
	}
	if clock := e.flag("--clock", ""); clock != "" {
		seconds, err := strconv.ParseFloat(clock, 64)
		if err != nil {
			return "starts at a time that is none"
		}
		b.WriteString(" at " + offset(int64(seconds*1e6)))
	}
	if p := e.flag("--principal", Principal); p != Principal {
		b.WriteString(", principal " + p)
	}
	for _, f := range []struct {
		flag, name string
		usual      int
	}{{"--authority-ttl", "authority", Authority}, {"--replay-retention", "retention", Retention}, {"--state-ttl", "state", StateTTL}} {
		usual := fmt.Sprintf("%ds", f.usual)
		if value := e.flag(f.flag, usual); value != usual {
			fmt.Fprintf(&b, ", %s %s", f.name, value)
		}
	}
	if backend := e.flag("--backend", Backend); backend != Backend {
		b.WriteString(", backend " + backend)
	}
	for _, f := range []struct{ flag, name string }{
		{"--lease", "lease"}, {"--wait", "wait"}, {"--max-clock-jump", "clock jumps up to"}, {"--max-result", "results up to"},
		{"--max-file-size", "files up to"}, {"--fault", "fault"},
	} {
		if value := e.flag(f.flag, ""); value != "" {
			fmt.Fprintf(&b, ", %s %s", f.name, value)
		}
	}
	return b.String()
}

// answerText is one answer in the shortest form that loses nothing of it.
func answerText(raw json.RawMessage) string {
	var a struct {
		Action  string
		Content map[string]json.RawMessage
	}
	if json.Unmarshal(raw, &a) == nil && len(a.Content) == 1 && a.Action == "accept" {
		return compact(a.Content[sortedNames(a.Content)[0]])
	}
	if a.Action != "" && len(a.Content) == 0 {
		return a.Action
	}
	return compact(raw)
}

// errorText is a JSON-RPC error: its reason and what of it a client acts on.
func errorText(raw json.RawMessage) string {
	var e struct {
		Code    int64
		Message string
		Data    json.RawMessage
	}
	if json.Unmarshal(raw, &e) != nil {
		return "an error that cannot be read"
	}
	v := mcpreplay.ClassifyError(e.Code, e.Message, e.Data)
	if v.Reason == "" {
		return fmt.Sprintf("error %d %q", e.Code, e.Message)
	}
	text := "refused " + string(v.Reason)
	if v.Reason == mcpreplay.ReasonRequestState {
		text = fmt.Sprintf("refused %q", e.Message)
	}
	var d struct{ Differs []string }
	if json.Unmarshal(e.Data, &d) == nil && len(d.Differs) > 0 {
		text += " (" + strings.Join(d.Differs, ", ") + ")"
	}
	if v.Retryable {
		text += ", retryable"
	}
	return text
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return string(raw)
	}
	return shorten(b.String())
}

// shorten keeps a line readable where a value is long.
func shorten(s string) string {
	const most = 300
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:most], ""), len(s))
}

// facts are what a database holds.
func (d *Database) facts() Facts {
	line := func(format string, args ...any) string { return d.Name + ": " + fmt.Sprintf(format, args...) }
	if d.Damage != "" {
		return Facts{line("%s", d.Damage)}
	}
	facts := Facts{line("%s, %s", count(len(d.Issues), "issue"), count(len(d.Operations), "operation"))}
	for _, i := range d.Issues {
		facts = append(facts, line("issue %d of %s: %q, %q", i.ID, i.Operation, i.Title, shorten(i.Body)))
	}
	for _, w := range d.Watchers {
		facts = append(facts, line("watcher %s", w))
	}
	for _, o := range d.Operations {
		facts = append(facts, line("operation %s", o.text()))
	}
	for _, e := range d.Events {
		facts = append(facts, line("event %d %s", e.Position, e.text()))
	}
	return facts
}

func (o Operation) text() string {
	text := fmt.Sprintf("%s of %s: %s", o.ID, o.Principal, o.State)
	if o.Fenced {
		text += ", fenced"
	}
	if o.Effect != "" {
		text += ", effect " + o.Effect
	}
	switch {
	case o.Dropped:
		text += ", result dropped"
	case o.Result != nil && o.ResultIsError:
		text += ", result an error"
	case o.Result != nil:
		text += ", result stored"
	}
	if o.Authority.Valid {
		text += ", authority until " + offset(o.Authority.Int64)
	}
	if o.Retention.Valid {
		text += ", retention until " + offset(o.Retention.Int64)
	}
	return text
}

func (e LedgerEvent) text() string {
	text := fmt.Sprintf("%s %s", e.Operation, e.Kind)
	for _, word := range []string{e.Step, e.Outcome} {
		if word != "" {
			text += " " + word
		}
	}
	if e.Class != "" {
		text += " (" + e.Class + ")"
	}
	return text + " -> " + e.State
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
