package guard_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/internal/issues"
	"mcpreplay/sqlite"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected parts of the transcripts")

// TestTranscripts plays what a client sends, line by line, to a guarded server
// over its stdio transport and compares every reply and every row with what the
// transcript says. See testdata/transcripts/README.md for the format.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			play(t, file)
		})
	}
}

func play(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := &player{t: t, path: filepath.Join(t.TempDir(), "store.sqlite3"), replies: map[string]map[string]any{}}
	defer func() {
		p.stop()
		p.verify()
	}()
	for i := range archive.Files {
		step := &archive.Files[i]
		verb, rest, _ := strings.Cut(step.Name, " ")
		var got string
		switch verb {
		case "server":
			p.start(rest)
			continue
		case "send":
			p.send(string(step.Data))
			continue
		case "claim":
			p.claim(rest)
			continue
		case "reached":
			<-p.looked
			continue
		case "writing":
			<-p.wrote
			continue
		case "hold":
			p.hold()
			continue
		case "release":
			close(p.held)
			continue
		case "ledger":
			p.move(rest)
			continue
		case "recv":
			got = p.recv(rest)
		case "rows":
			got = p.rows()
		default:
			t.Fatalf("%s: unknown step %q", file, step.Name)
		}
		want := string(step.Data)
		if *update {
			step.Data = []byte(got)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.Name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// player is the client of a transcript, and the operator who restarts its server.
type player struct {
	t       *testing.T
	path    string
	store   *sqlite.Store
	in      *io.PipeWriter
	out     *bufio.Reader
	done    chan error
	replies map[string]map[string]any
	held    chan struct{}    // closed to let go of the write lock
	looked  chan struct{}    // a call has looked its record up
	wrote   chan struct{}    // a call has asked the ledger to write
	web     *httptest.Server // instead of in and out
	body    []byte           // of its last reply
}

// The keys of every transcript.
var (
	stateSecret       = bytes.Repeat([]byte("state key "), 4)[:32]
	fingerprintSecret = bytes.Repeat([]byte("print key "), 4)[:32]
)

func ring(t testing.TB, secrets ...[]byte) *mcpreplay.Keyring {
	t.Helper()
	keys, err := mcpreplay.NewKeyring(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// start runs a server with options like "clock=60 principal=bob". The clock
// counts from the transcripts' epoch.
func (p *player) start(options string) {
	p.stop()
	set := map[string]string{"clock": "0", "principal": "alice", "authority": "300s", "retention": "360s", "state": "600s", "backend": "sqlite:guarded", "wait": "2s", "key": "", "http": "", "deny": "", "inflight": "0"}
	for _, kv := range strings.Fields(options) {
		k, v, _ := strings.Cut(kv, "=")
		if _, known := set[k]; !known {
			p.t.Fatalf("unknown server option %q", k)
		}
		set[k] = v
	}
	seconds, err := strconv.Atoi(set["clock"])
	if err != nil {
		p.t.Fatal(err)
	}
	now := time.Unix(1790035200+int64(seconds), 0)
	p.store, err = sqlite.Open(p.path, &sqlite.Options{Backend: set["backend"], Clock: func() time.Time { return now }})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := issues.Setup(context.Background(), p.store); err != nil {
		p.t.Fatal(err)
	}
	duration := func(name string) time.Duration {
		d, err := time.ParseDuration(set[name])
		if err != nil {
			p.t.Fatal(err)
		}
		return d
	}
	prints := fingerprintSecret
	if set["key"] != "" {
		prints = bytes.Repeat([]byte(set["key"]), 32)
	}
	inFlight, err := strconv.Atoi(set["inflight"])
	if err != nil {
		p.t.Fatal(err)
	}
	allow := func(_ context.Context, o mcpreplay.Operation) error {
		if set["deny"] == o.Principal {
			return errors.New("revoked")
		}
		return nil
	}
	p.looked, p.wrote = make(chan struct{}, 1), make(chan struct{}, 1)
	g, err := guard.New(watched{p.store, p.looked}, &guard.Options{
		Keys: ring(p.t, stateSecret), FingerprintKeys: ring(p.t, prints),
		Principal: set["principal"], AuthorityTTL: duration("authority"), Retention: duration("retention"),
		StateTTL: duration("state"), Wait: duration("wait"), ShortRetention: true,
		Authorize: allow, MaxInFlight: inFlight,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	server := issues.NewServer(g, entered{p.store, p.wrote}, issues.Options{Version: "test"})
	if set["http"] != "" { // as somebody may mount it, without authentication
		p.web = httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
			&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
		return
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p.in, p.out, p.done = inW, bufio.NewReader(outR), make(chan error, 1)
	go func() {
		p.done <- (&guard.Stdio{In: inR, Out: outW}).Run(context.Background(), server)
		outW.Close()
	}()
}

func (p *player) stop() {
	if p.web != nil {
		p.web.Close()
		p.store.Close()
		p.web = nil
	}
	if p.in == nil {
		return
	}
	p.in.Close()
	go io.Copy(io.Discard, p.out)
	if err := <-p.done; err != nil {
		p.t.Errorf("the server ended with %v", err)
	}
	if err := p.store.Close(); err != nil {
		p.t.Error(err)
	}
	p.in = nil
}

// verify proves the ledger consistent after every transcript.
func (p *player) verify() {
	if p.t.Failed() {
		return
	}
	store, err := sqlite.Open(p.path, &sqlite.Options{Backend: "sqlite:guarded"})
	if err != nil {
		p.t.Fatal(err)
	}
	defer store.Close()
	report, err := mcpreplay.Verify(context.Background(), store)
	if err != nil || len(report.Findings) > 0 {
		p.t.Errorf("the ledger does not verify: %v %v", report.Findings, err)
	}
}

var (
	metaModern = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"transcript","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}`
	metaMute   = strings.Replace(metaModern, `"elicitation":{"form":{}}`, "", 1)
	use        = regexp.MustCompile(`\$\{(\w+) (\w+)\}`)
)

// send sends the text of a step as one line, with its macros filled in: $META and
// $MUTE for the _meta of a client that can and cannot be asked, ${state x} for the
// state of reply x, ${flip x}, ${cut x} and ${break x} for it altered, and
// ${repeat n} for n times the letter x.
func (p *player) send(text string) {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "\n", " ")), " ")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "$META", metaModern), "$MUTE", metaMute)
	text = use.ReplaceAllStringFunc(text, func(m string) string {
		part := use.FindStringSubmatch(m)
		if part[1] == "repeat" {
			n, err := strconv.Atoi(part[2])
			if err != nil {
				p.t.Fatal(err)
			}
			return strings.Repeat("x", n)
		}
		return p.state(part[1], part[2])
	})
	select { // only what this call reaches counts
	case <-p.looked:
	default:
	}
	if p.web != nil {
		_, body := postLine(p.t, p.web.URL, "", "create_guarded_issue", text)
		p.body = []byte(body)
		return
	}
	if _, err := fmt.Fprintln(p.in, text); err != nil {
		p.t.Fatal(err)
	}
}

// watched tells when a record has been looked up.
type watched struct {
	*sqlite.Store
	looked chan struct{}
}

func (w watched) Get(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
	rec, err := w.Store.Get(ctx, key)
	select {
	case w.looked <- struct{}{}:
	default:
	}
	return rec, err
}

// entered tells when an effect is about to be written.
type entered struct {
	*sqlite.Store
	wrote chan struct{}
}

func (e entered) Apply(ctx context.Context, op mcpreplay.Operation, effect func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error)) (mcpreplay.Record, bool, error) {
	select {
	case e.wrote <- struct{}{}:
	default:
	}
	return e.Store.Apply(ctx, op, effect)
}

// claim puts the operation "id lease" of the tool with title "one" in progress,
// as an attempt that has not ended does.
func (p *player) claim(words string) {
	id, lease, _ := strings.Cut(words, " ")
	d, err := time.ParseDuration(lease)
	if err != nil {
		p.t.Fatal(err)
	}
	digests, err := ring(p.t, fingerprintSecret).Digest(mcpreplay.Binding{
		Principal: "alice", Tool: issues.Tool, Version: "1", Arguments: json.RawMessage(`{"mode":"atomic","title":"one"}`),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	_, started, err := p.store.Begin(context.Background(), mcpreplay.Operation{
		Key: mcpreplay.Key{Principal: "alice", ID: id}, Tool: issues.Tool, Version: "1", Digests: digests,
	}, mcpreplay.Change{To: mcpreplay.StateInProgress, Owner: "other", Lease: d, Event: mcpreplay.Event{Kind: mcpreplay.EventClaim, Actor: "other"}})
	if err != nil || !started {
		p.t.Fatalf("claim %s: %v, %v", id, started, err)
	}
}

// hold keeps the ledger's writer busy until release.
func (p *player) hold() {
	p.held = make(chan struct{})
	entered := make(chan struct{})
	go p.store.Setup(context.Background(), func(context.Context, *sqlite.Tx) error {
		close(entered)
		<-p.held
		return nil
	})
	<-entered
}

// move takes the ledger's file away, or brings it back.
func (p *player) move(where string) {
	from, to := p.path, p.path+".away"
	if where == "back" {
		from, to = to, from
	}
	if err := os.Rename(from, to); err != nil {
		p.t.Fatal(err)
	}
}

func (p *player) state(how, reply string) string {
	result, _ := p.replies[reply]["result"].(map[string]any)
	state, _ := result["requestState"].(string)
	if state == "" {
		p.t.Fatalf("reply %q has no requestState", reply)
	}
	middle := len(state) / 2
	switch how {
	case "state":
		return state
	case "flip":
		with := byte('A')
		if state[middle] == with {
			with = 'B'
		}
		return state[:middle] + string(with) + state[middle+1:]
	case "cut":
		return state[:middle]
	case "break":
		return state[:middle] + `\n` + state[middle:]
	}
	p.t.Fatalf("unknown macro %q", how)
	return ""
}

var volatile = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`"requestState": "v1\.[^"]*"`), `"requestState": "STATE"`},
	{regexp.MustCompile(`(\\?)"instance(\\?)":( ?)(\\?)"[^"\\]*(\\?)"`), `$1"instance$2":$3$4"INSTANCE$5"`},
	{regexp.MustCompile(`op_[0-9a-v]{48}`), `op_MINTED`},
}

func (p *player) recv(name string) string {
	line, err := p.body, error(nil)
	if p.web == nil {
		line, err = p.out.ReadBytes('\n')
	}
	if err != nil {
		p.t.Fatalf("recv %s: %v", name, err)
	}
	var reply map[string]any
	if err := json.Unmarshal(line, &reply); err != nil {
		p.t.Fatalf("recv %s: %v in %s", name, err, line)
	}
	p.replies[name] = reply
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, line, "", "  "); err != nil {
		p.t.Fatal(err)
	}
	return normalize(strings.TrimSpace(pretty.String()) + "\n")
}

// rows reads what the file holds through a connection of its own.
func (p *player) rows() string {
	db := openRaw(p.t, p.path)
	defer db.Close()
	var b strings.Builder
	for _, q := range []string{
		`SELECT 'issue', id, operation_id, title, body FROM issues ORDER BY id`,
		`SELECT 'watcher', id, issue_id, name FROM watchers ORDER BY id`,
		`SELECT 'operation', operation_id, principal, tool, state, effect FROM mcpreplay_operations ORDER BY seq`,
		`SELECT 'event', o.operation_id, e.kind, e.step, e.outcome, CASE e.kind WHEN 'step' THEN e.evidence WHEN 'compensation' THEN e.evidence ELSE '' END, e.state FROM mcpreplay_events e JOIN mcpreplay_operations o USING (seq) ORDER BY e.position`,
	} {
		b.WriteString(dump(p.t, db, q))
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return normalize(b.String())
}

// normalize replaces what differs from run to run.
func normalize(text string) string {
	for _, v := range volatile {
		text = v.what.ReplaceAllString(text, v.as)
	}
	return text
}

func openRaw(t testing.TB, path string) *sql.DB {
	t.Helper()
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: "mode=ro"}
	db, err := sql.Open("sqlite3", u.String())
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func dump(t testing.TB, db *sql.DB, query string, args ...any) string {
	t.Helper()
	rows, err := db.Query(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, _ := rows.Columns()
	var b strings.Builder
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		words := make([]string, len(values))
		for i, v := range values {
			words[i] = v.String
		}
		b.WriteString(strings.TrimRight(strings.Join(words, " | "), " |") + "\n")
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
