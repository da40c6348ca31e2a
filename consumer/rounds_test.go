package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

// spy writes down what a journal is told.
type spy struct {
	mu       sync.Mutex
	known    consumer.Known
	fail     map[int]error // by number of the Sending
	told     []string
	ledgers  []*mcpreplay.LedgerRef // of each Received
	requests []mcp.CallToolParamsRaw
	sent     int

	unreadable error
}

func (s *spy) Known(context.Context, mcpreplay.Scope) (consumer.Known, error) {
	return s.known, s.unreadable
}

func (s *spy) Sending(_ context.Context, _ mcpreplay.Scope, request []byte, _ *mcpreplay.LedgerRef) (consumer.Known, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	if err := s.fail[s.sent-1]; err != nil {
		return consumer.Known{}, err
	}
	var p mcp.CallToolParamsRaw
	if err := json.Unmarshal(request, &p); err != nil {
		return consumer.Known{}, err
	}
	s.told = append(s.told, "sending")
	s.requests = append(s.requests, p)
	return s.known, nil
}

func (s *spy) Received(ctx context.Context, _ mcpreplay.Scope, v mcpreplay.Verdict, _ []byte, ledger *mcpreplay.LedgerRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, "received "+string(v.Kind))
	s.ledgers = append(s.ledgers, ledger)
	return ctx.Err()
}

func (s *spy) Observed(ctx context.Context, _ mcpreplay.Scope, _ []byte, _ *mcpreplay.LedgerRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, "observed")
	return ctx.Err()
}

func (s *spy) Settled(ctx context.Context, _ mcpreplay.Scope, state mcpreplay.State, _ []byte, _ *mcpreplay.LedgerRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, "settled "+string(state))
	return ctx.Err()
}

// asking asks once, and does its work when it is answered.
func asking(effects *atomic.Int64) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "effect", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if req.Params.InputResponses == nil {
			return &mcp.CallToolResult{RequestState: "state-1", InputRequests: mcp.InputRequestMap{"sure": &mcp.ElicitParams{
				Message: "Sure?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"yes":{"type":"boolean"}}}`),
			}}}, nil
		}
		effects.Add(1)
		return marked("op-1", mcpreplay.StateApplied, known), nil
	})
	return s
}

func yes(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"yes": true}}, nil
}

// overBoth runs a test over a pipe and over HTTP.
func overBoth(t *testing.T, server func(*atomic.Int64) *mcp.Server, test func(t *testing.T, open func(*mcp.Client) *consumer.Session, effects *atomic.Int64)) {
	t.Run("memory", func(t *testing.T) {
		var effects atomic.Int64
		test(t, func(c *mcp.Client) *consumer.Session { return connectMemory(t, c, server(&effects)) }, &effects)
	})
	t.Run("http", func(t *testing.T) {
		var effects atomic.Int64
		web := serveHTTP(t, server(&effects), false, nil)
		test(t, func(c *mcp.Client) *consumer.Session { return connectHTTP(t, c, web.URL, nil) }, &effects)
	})
}

func TestCallAnswersQuestionsAndJournalsEachRoundFirst(t *testing.T) {
	overBoth(t, asking, func(t *testing.T, open func(*mcp.Client) *consumer.Session, effects *atomic.Int64) {
		journal := &spy{}
		session := open(newClient(&mcp.ClientOptions{ElicitationHandler: yes}))
		out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), session, intent())
		if out.Kind != consumer.KindVerdict || out.Effect != mcpreplay.StateApplied || out.Action != mcpreplay.ActionReturnResult {
			t.Fatalf("outcome = %+v", out)
		}
		checkEffects(t, effects, 1)
		want := []string{"sending", "received input_required", "sending", "received result", "settled applied"}
		if !slices.Equal(journal.told, want) {
			t.Fatalf("the journal was told %q, want %q", journal.told, want)
		}
		first, last := journal.requests[0], journal.requests[1]
		if first.RequestState != "" || len(first.InputResponses) != 0 || string(first.Arguments) != `{"n":9007199254740993}` {
			t.Errorf("first round = %+v", first)
		}
		if last.RequestState != "state-1" || len(last.InputResponses) != 1 || string(last.Arguments) != `{"n":9007199254740993}` {
			t.Errorf("last round = %+v", last)
		}
	})
}

func TestCallSendsNoAnswersThatItCouldNotRecord(t *testing.T) {
	overBoth(t, asking, func(t *testing.T, open func(*mcp.Client) *consumer.Session, effects *atomic.Int64) {
		full := errors.New("disk full")
		session := open(newClient(&mcp.ClientOptions{ElicitationHandler: yes}))
		journal := &spy{fail: map[int]error{1: full}}
		out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), session, intent())
		checkUnknown(t, out)
		if want := []string{"sending", "received input_required"}; !slices.Equal(journal.told, want) {
			t.Errorf("the journal was told %q, want each Sending received once: %q", journal.told, want)
		}
		if out.Verdict.Kind != mcpreplay.VerdictInputRequired {
			t.Errorf("verdict = %+v, want the question", out.Verdict)
		}
		checkEffects(t, effects, 0)
	})
}

// While a question is open, another call of the same operation is lost. That the
// answers are refused says nothing of it.
func TestCallIsUnknownWhenAnotherIsLostBetweenItsRounds(t *testing.T) {
	server := func(effects *atomic.Int64) *mcp.Server {
		ask, refuse := asking(effects), refuseWith(mcpreplay.ReasonAuthorityExpired)
		ask.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && p.InputResponses != nil {
					return refuse(ctx, nil)
				}
				return next(ctx, method, req)
			}
		})
		return ask
	}
	overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, _ *atomic.Int64) {
		journal := consumer.NewMemoryJournal()
		session := open(newClient(&mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			if _, err := journal.Sending(ctx, scope, []byte(`{}`), nil); err != nil {
				return nil, err
			}
			if err := journal.Received(ctx, scope, mcpreplay.Verdict{Kind: mcpreplay.VerdictUnknown}, nil, nil); err != nil {
				return nil, err
			}
			return yes(ctx, req)
		}}))
		out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), session, intent())
		checkUnknown(t, out)
		if out.Verdict.Kind != mcpreplay.VerdictRefused {
			t.Errorf("verdict = %+v, want the refusal", out.Verdict)
		}
	})
}

func TestCallEndsWithAQuestionThatNobodyAnswers(t *testing.T) {
	cannot := func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return nil, errors.New("nobody there")
	}
	for name, opts := range map[string]*mcp.ClientOptions{
		"a handler that fails": {ElicitationHandler: cannot},
		"no rounds":            {ElicitationHandler: yes, MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}},
	} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, asking, func(t *testing.T, open func(*mcp.Client) *consumer.Session, effects *atomic.Int64) {
				journal := consumer.NewMemoryJournal()
				out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), open(newClient(opts)), intent())
				checkUnknown(t, out)
				if out.Verdict.Kind != mcpreplay.VerdictInputRequired {
					t.Errorf("verdict = %+v, want the question", out.Verdict)
				}
				checkEffects(t, effects, 0)
			})
		})
	}
}

// What a handler of a question calls is not a round of the call.
func TestCallIsNotMixedWithTheCallsOfItsHandlers(t *testing.T) {
	overBoth(t, asking, func(t *testing.T, open func(*mcp.Client) *consumer.Session, effects *atomic.Int64) {
		var session *consumer.Session
		journal := &spy{}
		session = open(newClient(&mcp.ClientOptions{
			ElicitationHandler: func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				answered := &mcp.CallToolParams{Name: "effect", InputResponses: mcp.InputResponseMap{"sure": &mcp.ElicitResult{Action: "accept"}}}
				if _, err := session.CallTool(ctx, answered); err != nil {
					return nil, err
				}
				return yes(ctx, req)
			},
		}))
		out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), session, intent())
		if out.Kind != consumer.KindVerdict || len(journal.requests) != 2 {
			t.Errorf("outcome = %+v after %d rounds, want a verdict after 2", out, len(journal.requests))
		}
		checkEffects(t, effects, 2)
	})
}

func TestCallLosesTheReplyToItsAnswers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := func(effects *atomic.Int64) *mcp.Server {
		s := asking(effects)
		s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				res, err := next(ctx, method, req)
				if effects.Load() > 0 {
					cancel()
					<-ctx.Done()
				}
				return res, err
			}
		})
		return s
	}
	var effects atomic.Int64
	journal := &spy{}
	session := connectMemory(t, newClient(&mcp.ClientOptions{ElicitationHandler: yes}), server(&effects))
	out := consumer.New(&consumer.Options{Journal: journal}).Call(ctx, session, intent())
	checkUnknown(t, out)
	if out.Err != context.Canceled { //nolint:errorlint // nothing from the journal beside it
		t.Errorf("error = %v, want nothing but the end of the context", out.Err)
	}
	checkEffects(t, &effects, 1)
	if want := []string{"sending", "received input_required", "sending", "received unknown"}; !slices.Equal(journal.told, want) {
		t.Errorf("the journal was told %q, want %q", journal.told, want)
	}
}
