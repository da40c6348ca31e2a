package evidence

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
)

// settings are the flags of a server. Those with a value here have no other; what
// the others are is told, where it is not as usual, or is a place.
var settings = map[string]string{
	"--ledger": "", "--backend": "", "--clock": "", "--authority-ttl": "", "--replay-retention": "", "--state-ttl": "",
	"--principal": "", "--state-key-hex": fmt.Sprintf("%x", StateSecret), "--fingerprint-key-hex": fmt.Sprintf("%x", FingerprintSecret),
	"--fault": "", "--probe": "", "--http": "127.0.0.1:0", "--token": "", "--unguarded": "", "--until-eof": "",
	"--lease": "", "--wait": "", "--max-clock-jump": "", "--max-result": "", "--max-file-size": "",
}

// usualLedger is the file of a cell that has one. It may be gone: some cells remove
// it, and keep its log.
const usualLedger = "store" + Extension

// required are those that every server has.
var required = []string{
	"--ledger", "--backend", "--clock", "--authority-ttl", "--replay-retention", "--state-ttl", "--principal", "--state-key-hex", "--fingerprint-key-hex",
}

// checkStarts: a server is started with nothing but what the story tells of it, and
// is spoken to in the way its transcript says.
func (c *cell) checkStarts() (facts Facts) {
	for _, p := range c.processes {
		for _, r := range p.Records {
			if r.Event == nil || r.Event.Kind != EventStart {
				continue
			}
			if why := r.Event.unusual(); why != "" {
				facts = append(facts, broken("start", "%s: %s", p.Name, why))
			}
			ledger, _ := strings.CutPrefix(r.Event.flag("--ledger", ""), "sqlite:")
			moved := slices.ContainsFunc(c.processes, func(p *Process) bool { return p.Name == Acts }) // the story tells of it
			if ledger != usualLedger && !moved && !slices.ContainsFunc(c.databases, func(d *Database) bool { return d.Name+Extension == ledger }) {
				facts = append(facts, broken("start", "%s: its ledger is not among the files", p.Name))
			}
			overHTTP := r.Event.Transport == "http"
			if slices.ContainsFunc(p.Records, func(r Record) bool { return r.Dir != "" && (r.Conn > 0) != overHTTP }) {
				facts = append(facts, broken("start", "%s: what passed did not pass over %s", p.Name, r.Event.Transport))
			}
		}
	}
	return facts
}

// unusual says what a story does not tell of the arguments of a start, or "".
func (e *Event) unusual() string {
	if e.has("--http") != (e.Transport == "http") || e.Transport != "http" && e.Transport != "stdio" {
		return "its transport is not that of its arguments"
	}
	if len(e.Args) < 2 || e.Args[0] != "lab" || e.Args[1] != "serve" {
		return "it is no server of the lab"
	}
	seen := map[string]bool{}
	for i := 2; i < len(e.Args); i++ {
		flag := e.Args[i]
		value, known := settings[flag]
		switch {
		case !known:
			return fmt.Sprintf("it has %q", flag)
		case seen[flag] && flag != "--token":
			return "it has " + flag + " twice"
		}
		seen[flag] = true
		if flag == "--unguarded" || flag == "--until-eof" {
			continue
		}
		i++
		switch {
		case i == len(e.Args):
			return flag + " has no value"
		case value != "" && e.Args[i] != value:
			return flag + " is not the usual one"
		case flag == "--token" && e.Args[i] != "alice="+Token("alice") && e.Args[i] != "bob="+Token("bob"):
			return "it takes a token that is not published"
		}
	}
	for _, flag := range required {
		if !seen[flag] {
			return "it has no " + flag
		}
	}
	return ""
}

// checkHeads: what was accepted over HTTP says the same in its head as in its body,
// and is answered as accepted.
func (c *cell) checkHeads() (facts Facts) {
	for _, call := range c.calls {
		x := call.http
		if x == nil || call.Reply == nil || call.Reply.Result == nil {
			continue
		}
		named := call.Params.Name
		if call.Method != "tools/call" {
			named = ""
		}
		modern := call.version() == ProtocolModern
		switch h := x.header; {
		case x.status != http.StatusOK:
			facts = append(facts, broken("head", "%s: %s has a result under HTTP %d", call.Process.Name, call.ID, x.status))
		case x.method != http.MethodPost || len(h.Values("Authorization")) > 1:
			facts = append(facts, broken("head", "%s: %s was accepted from a request that is none", call.Process.Name, call.ID))
		case modern && (h.Get("Mcp-Protocol-Version") != call.version() || h.Get("Mcp-Method") != call.Method || h.Get("Mcp-Name") != named):
			facts = append(facts, broken("head", "%s: the head of %s says something else than its body", call.Process.Name, call.ID))
		}
	}
	return facts
}

// otherTransport is the first transcript whose server was spoken to over another
// transport, or "".
func otherTransport(files Files, transport string) (string, error) {
	list, err := files.Names()
	if err != nil {
		return "", err
	}
	for _, name := range list {
		if path.Ext(name) != TranscriptExtension {
			continue
		}
		p, err := readFile(files, name)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(p.Records, func(r Record) bool {
			return r.Event != nil && r.Event.Kind == EventStart && !strings.EqualFold(r.Event.Transport, transport)
		}) {
			return name, nil
		}
	}
	return "", nil
}
