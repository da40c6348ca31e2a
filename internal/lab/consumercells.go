package lab

import (
	"context"
	"encoding/json"
	"net/http"

	"mcpreplay"
	"mcpreplay/consumer"
	"mcpreplay/faults"
	"mcpreplay/internal/evidence"
	"mcpreplay/internal/issues"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// user is a client as people write one: the SDK's, with the consumer around it.
type user struct {
	p      *play
	client *mcp.Client
	*consumer.Consumer
	intent consumer.Intent
}

func (p *play) user() *user {
	arguments, err := json.Marshal(map[string]string{"operation_id": p.op, "title": "title of " + p.op})
	p.must(err)
	return &user{
		p: p, Consumer: consumer.New(nil),
		intent: consumer.Intent{
			Scope: mcpreplay.Scope{OperationID: p.op, Principal: evidence.Principal, Backend: evidence.Backend},
			Tool:  issues.Tool, Arguments: arguments,
		},
		client: mcp.NewClient(&mcp.Implementation{Name: "lab", Version: "1"}, &mcp.ClientOptions{
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"body": alpha}}, nil
			},
		}),
	}
}

// bearer adds what every request carries.
type bearer struct {
	base   http.RoundTripper
	header http.Header
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	for name, values := range b.header {
		req.Header[name] = values
	}
	return b.base.RoundTrip(req)
}

// credentials are alice's.
func credentials() http.Header { return http.Header{"Authorization": authorization("")} }

// connect begins a session over HTTP through round, which is around a transport of
// its own.
func (u *user) connect(s *server, round func(http.RoundTripper) http.RoundTripper) *consumer.Session {
	base := &http.Transport{}
	u.p.atEnd(func() error { base.CloseIdleConnections(); return nil })
	return u.session(&mcp.StreamableClientTransport{
		Endpoint: "http://" + s.addr + "/mcp", HTTPClient: &http.Client{Transport: round(base)},
	})
}

func authorized(base http.RoundTripper) http.RoundTripper { return bearer{base, credentials()} }

func (u *user) session(t mcp.Transport) *consumer.Session {
	session, err := consumer.Connect(u.p.ctx, u.client, t, nil)
	u.p.must(err)
	return session
}

// call makes the usual call and records what the consumer concludes, once
// whatever happens at the same time has happened.
func (u *user) call(ctx context.Context, client string, s *consumer.Session, meanwhile ...func()) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	out := u.Call(ctx, s, u.intent)
	for _, wait := range meanwhile {
		wait()
	}
	u.p.concluded(client, evidence.FromCall, out)
}

// reconcile asks what became of it, and records that.
func (u *user) reconcile(client string, s *consumer.Session) {
	ctx, cancel := context.WithTimeout(u.p.ctx, replyLimit)
	defer cancel()
	out, _ := u.Reconcile(ctx, s, u.intent) // an error is told by an outcome that is unknown
	u.p.concluded(client, evidence.FromStatus, out)
}

// loseConsumer has a consumer lose its reply and, over another session, find out
// what became of its call. Nothing is sent again.
func loseConsumer(p *play, m faults.Mishap) {
	var flags []string
	if m == faults.DuplicateConcurrent {
		flags = atOnce
	}
	s := p.start("server", flags...)
	i := s.between(m, selecting(m))
	u := p.user()
	session := u.connect(s, authorized)
	if m == faults.DuplicateConcurrent {
		go i.overlap(s)
	}
	ctx, giveUp := context.WithCancel(p.ctx)
	defer giveUp()
	if m == faults.DelayReply {
		go func() {
			i.await(faults.Held, 1)
			giveUp()
		}()
	}
	u.call(ctx, clientSide, session, func() {
		if m == faults.DelayReply {
			i.await(faults.Dropped, 1)
		}
	})
	i.struck(1)
	session.Close() // one that the SDK gave up says so
	session = u.connect(s, authorized)
	u.reconcile(clientSide, session)
	session.Close()
	s.stop()
}

// guess is what people write without the consumer: whatever the SDK calls an error
// has failed.
func guess(p *play) {
	s := p.start("server")
	i := s.between(faults.Answer502, faults.IntermediaryOptions{})
	u := p.user()
	session := u.connect(s, authorized)
	_, err := session.CallTool(p.ctx, &mcp.CallToolParams{Name: issues.Tool, Arguments: u.intent.Arguments})
	i.struck(1)
	if err != nil {
		p.concluded(clientSide, evidence.FromCall, consumer.Outcome{Kind: consumer.KindVerdict, Effect: mcpreplay.StateNotApplied, Action: mcpreplay.ActionStop})
	}
	session.Close()
	s.stop()
}
