package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scopeName is the instrumentation scope of everything that is measured here.
const scopeName = "mcpreplay/guard"

// The outcomes of an attempt that are no refusals. Refusals are counted under their
// reason. They are stable strings: docs/operating.md.
const (
	outcomeAsked    = "asked"    // the client was asked, or given an id
	outcomeReplayed = "replayed" // a stored result was given again
	outcomeFailed   = "failed"   // nothing was done, and that is certain
	outcomeError    = "error"    // an error of the protocol that is none of ours
)

// telemetry is what the guard tells of itself. Nothing in it may change what becomes of
// a call: what a provider does to it is caught.
type telemetry struct {
	log      *slog.Logger
	tracer   trace.Tracer
	attempts metric.Int64Counter
	duration metric.Float64Histogram
	running  metric.Int64UpDownCounter
	statuses metric.Int64Counter
	ledger   metric.Float64Histogram
}

// seconds are bounds for what takes from a commit to the longest wait.
var seconds = metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)

func newTelemetry(o *Options) (*telemetry, error) {
	t := &telemetry{log: o.Logger, tracer: o.TracerProvider.Tracer(scopeName)}
	meter := o.MeterProvider.Meter(scopeName)
	var errs [5]error
	t.attempts, errs[0] = meter.Int64Counter("mcpreplay.attempts", metric.WithDescription("Attempts at guarded tools, by outcome."))
	t.duration, errs[1] = meter.Float64Histogram("mcpreplay.attempt.duration", metric.WithUnit("s"), seconds, metric.WithDescription("How long attempts took."))
	t.running, errs[2] = meter.Int64UpDownCounter("mcpreplay.attempts.running", metric.WithDescription("Attempts that are running now."))
	t.statuses, errs[3] = meter.Int64Counter("mcpreplay.statuses", metric.WithDescription("Status requests, by what they told."))
	t.ledger, errs[4] = meter.Float64Histogram("mcpreplay.ledger.duration", metric.WithUnit("s"), seconds, metric.WithDescription("How long calls of the ledger took, without the effects in them."))
	return t, errors.Join(errs[:]...)
}

// guarded runs what only tells, and catches what it does.
func (t *telemetry) guarded(tell func()) {
	defer func() {
		if p := recover(); p != nil {
			t.log.Error("telemetry panicked", "panic", fmt.Sprint(p))
		}
	}()
	tell()
}

// begin starts the span of an attempt, as a child of the client's if it names one in
// _meta (SEP-414). end is to be called with what became of it.
func (t *telemetry) begin(ctx context.Context, tool string, meta mcp.Meta) (_ context.Context, end func(operation, outcome string)) {
	start := time.Now()
	named := attribute.String("gen_ai.tool.name", tool)
	spanned := ctx
	var span trace.Span
	t.guarded(func() {
		t.running.Add(ctx, 1, metric.WithAttributes(named))
		spanned, span = t.tracer.Start(remote(ctx, meta), "tools/call "+tool, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("mcp.method.name", methodCall), named))
	})
	if spanned == nil {
		spanned = ctx
	}
	return spanned, func(operation, outcome string) {
		took := time.Since(start)
		t.guarded(func() {
			became := attribute.String("mcpreplay.outcome", outcome)
			t.running.Add(ctx, -1, metric.WithAttributes(named))
			t.attempts.Add(ctx, 1, metric.WithAttributes(named, became))
			t.duration.Record(ctx, took.Seconds(), metric.WithAttributes(named, became))
			if span == nil {
				return
			}
			span.SetAttributes(became)
			if operation != "" {
				span.SetAttributes(attribute.String("mcpreplay.operation.id", operation))
			}
			switch outcome { // what is nobody's mistake is no error
			case string(mcpreplay.StateUnknown), string(mcpreplay.ReasonUnavailable), outcomeError:
				span.SetStatus(codes.Error, outcome)
			}
			span.End()
		})
	}
}

// remote is ctx with the span of the client, if _meta names one.
func remote(ctx context.Context, meta mcp.Meta) context.Context {
	carrier := propagation.MapCarrier{}
	for _, name := range (propagation.TraceContext{}).Fields() {
		if text, ok := meta[name].(string); ok && len(text) <= 1024 {
			carrier[name] = text
		}
	}
	if len(carrier) == 0 || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, carrier)
}

// outcomeOf tells what a reply is.
func outcomeOf(res *mcp.CallToolResult, err error) string {
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		var data struct{ Reason string }
		if json.Unmarshal(wire.Data, &data) == nil && data.Reason != "" {
			return data.Reason
		}
	}
	if err != nil || res == nil {
		return outcomeError
	}
	mark, _ := res.Meta[mcpreplay.MetaOperation].(mcpreplay.Mark)
	unknown, _ := res.StructuredContent.(map[string]any)
	switch {
	case res.InputRequests != nil || res.RequestState != "":
		return outcomeAsked
	case mark.Replayed:
		return outcomeReplayed
	case mark.State.Final():
		return string(mark.State)
	case unknown["code"] == mcpreplay.ReasonUnknown:
		return string(mcpreplay.StateUnknown)
	}
	return outcomeFailed
}

// status counts what a status request told.
func (t *telemetry) status(ctx context.Context, told mcpreplay.State) {
	t.guarded(func() {
		t.statuses.Add(ctx, 1, metric.WithAttributes(attribute.String("mcpreplay.state", string(told))))
	})
}

// called records how long the ledger took, and how it answered.
func (t *telemetry) called(ctx context.Context, method string, took time.Duration, err error) {
	answer := "ok"
	switch {
	case errors.Is(err, mcpreplay.ErrUnknown):
		answer = "unknown"
	case errors.Is(err, mcpreplay.ErrUnavailable), errors.Is(err, mcpreplay.ErrClock), errors.Is(err, mcpreplay.ErrIncompatible):
		answer = "unavailable"
	case err != nil:
		answer = "refused"
	}
	t.guarded(func() {
		t.ledger.Record(ctx, took.Seconds(), metric.WithAttributes(attribute.String("mcpreplay.ledger.method", method), attribute.String("mcpreplay.ledger.answer", answer)))
	})
}

// measured is the guard's store, with its calls measured.
type measured struct {
	mcpreplay.Store
	t *telemetry
}

func (m measured) Info(ctx context.Context) (mcpreplay.Info, error) {
	start := time.Now()
	info, err := m.Store.Info(ctx)
	m.t.called(ctx, "info", time.Since(start), err)
	return info, err
}

func (m measured) Get(ctx context.Context, key mcpreplay.Key) (mcpreplay.Record, error) {
	start := time.Now()
	rec, err := m.Store.Get(ctx, key)
	m.t.called(ctx, "get", time.Since(start), err)
	return rec, err
}

func (m measured) Begin(ctx context.Context, op mcpreplay.Operation, first mcpreplay.Change) (mcpreplay.Record, bool, error) {
	start := time.Now()
	rec, started, err := m.Store.Begin(ctx, op, first)
	m.t.called(ctx, "begin", time.Since(start), err)
	return rec, started, err
}

func (m measured) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	start := time.Now()
	rec, err := m.Store.Advance(ctx, c)
	m.t.called(ctx, "advance", time.Since(start), err)
	return rec, err
}

// Health reports whether the guard can do its work now: whether its ledger can be read.
// The error is for the log; who asks from outside is told no more than that there is one.
func (g *Guard) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	info, err := g.store.Info(ctx)
	if err == nil && (info.Instance != g.info.Instance || info.Backend != g.info.Backend) {
		err = errors.New("it is another ledger than at the start")
	}
	return err
}

// healthTime bounds a look at the health, and healthFor is how long it is believed.
const (
	healthTime = 2 * time.Second
	healthFor  = time.Second
)
