package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"mcpreplay/guard"
	"mcpreplay/sqlite"
)

func TestEveryAttemptIsToldOf(t *testing.T) {
	f := newFixture(t)
	spans, reader := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	allowed := true
	g := f.guard(f.store, func(o *guard.Options) {
		o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		o.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	server := newServer()
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in payment) (receipt, error) {
		if !allowed {
			return receipt{}, errors.New("no money")
		}
		return pay(ctx, tx, op, in)
	}))
	outside := payTool()
	outside.Name = "outside"
	guard.AddTool(g, server, outside, guard.External(func(context.Context, *guard.Op, payment) (receipt, error) {
		return receipt{}, errors.New("reset")
	}))
	g.Install(server)
	cs := connect(t, server, nil)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, mcp.Meta{"traceparent": parent})
	call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
	call(cs, "pay", `{"operation_id":"pay-1","amount":2}`, nil)
	call(cs, "pay", `{"amount":3}`, nil) // is given an id, and continues
	allowed = false
	call(cs, "pay", `{"operation_id":"pay-2","amount":1}`, nil)
	call(cs, "outside", `{"operation_id":"pay-3","amount":1}`, nil)
	mustCall(t, cs, "fence_operation", `{"operation_id":"pay-4"}`)
	call(cs, "pay", `{"operation_id":"pay-4","amount":1}`, nil)
	observed(t, cs, "pay-1")

	var told []string
	for _, s := range spans.Ended() {
		line := s.Name()
		for _, a := range s.Attributes() {
			if strings.HasPrefix(string(a.Key), "mcpreplay.outcome") {
				line += " " + a.Value.AsString()
			}
		}
		if s.Status().Code == codes.Error {
			line += ", an error"
		}
		if s.Parent().TraceID().String() == "0af7651916cd43dd8448eb211c80319c" {
			line += ", of the client's"
		}
		told = append(told, line)
	}
	want := []string{"tools/call pay applied, of the client's", "tools/call pay replayed", "tools/call pay operation_conflict", "tools/call pay asked", "tools/call pay applied",
		"tools/call pay failed", "tools/call outside unknown, an error", "tools/call pay operation_fenced"}
	if !slices.Equal(told, want) {
		t.Errorf("spans:\n%s\nwant:\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"pay-1", "pay-3", "alice"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the metrics tell of %s", secret)
		}
	}
	docs, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			if !strings.Contains(string(docs), "`"+m.Name+"`") {
				t.Errorf("docs/operating.md does not tell of %s", m.Name)
			}
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "mcpreplay.attempts" {
				for _, p := range sum.DataPoints {
					tool, _ := p.Attributes.Value("gen_ai.tool.name")
					outcome, _ := p.Attributes.Value("mcpreplay.outcome")
					counts[tool.AsString()+" "+outcome.AsString()] = p.Value
				}
			}
		}
	}
	if fmt.Sprint(counts) != "map[outside unknown:1 pay applied:2 pay asked:1 pay failed:1 pay operation_conflict:1 pay operation_fenced:1 pay replayed:1]" {
		t.Errorf("counted %v", counts)
	}
}

// A provider that panics does a call no harm.
func TestTelemetryChangesNoOutcome(t *testing.T) {
	f := newFixture(t)
	g := f.guard(f.store, func(o *guard.Options) { o.TracerProvider, o.MeterProvider = wildTracer{}, wildMeter{} })
	server := newServer()
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	g.Install(server)
	cs := connect(t, server, nil)
	for i := range 2 {
		if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); res.IsError || replayed(res) != (i > 0) {
			t.Errorf("call %d: %s", i, text(res))
		}
	}
	if o := observed(t, cs, "pay-1"); o.State != "applied" {
		t.Errorf("status: %s", o.State)
	}
}

type wildTracer struct{ tracenoop.TracerProvider }

func (wildTracer) Tracer(string, ...trace.TracerOption) trace.Tracer { return wild{} }

type wild struct{ tracenoop.Tracer }

func (wild) Start(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span) {
	panic("tracer")
}

type wildMeter struct{ metricnoop.MeterProvider }

func (wildMeter) Meter(string, ...metric.MeterOption) metric.Meter { return wildInstruments{} }

type wildInstruments struct{ metricnoop.Meter }

func (wildInstruments) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return wildCounter{}, nil
}

func (wildInstruments) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return wildHistogram{}, nil
}

type wildCounter struct{ metricnoop.Int64Counter }

func (wildCounter) Add(context.Context, int64, ...metric.AddOption) { panic("counter") }

type wildHistogram struct{ metricnoop.Float64Histogram }

func (wildHistogram) Record(context.Context, float64, ...metric.RecordOption) { panic("histogram") }

func TestHealthIsToldToAnybody(t *testing.T) {
	var sick error
	asked := 0
	handler, err := guard.HTTPHandler(newServer(), &guard.HTTPOptions{Tokens: map[string]string{strings.Repeat("t", 20): "alice"}, Health: func(context.Context) error {
		asked++
		return sick
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	get := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	for range 50 {
		if status, text := get("GET", "/readyz"); status != 200 || text != "ok\n" {
			t.Fatalf("ready: %d %q", status, text)
		}
	}
	if asked > 10 {
		t.Errorf("50 questions cost %d looks", asked)
	}
	sick = errors.New("the disk is full")
	eventually(t, "it to be told", func() bool { status, text := get("GET", "/readyz"); return status == 503 && text == "not ready\n" })
	if status, _ := get("HEAD", "/healthz"); status != 200 {
		t.Errorf("alive: %d", status)
	}
	if status, _ := get("POST", "/readyz"); status != 405 {
		t.Errorf("a POST: %d", status)
	}
	req, err := http.NewRequest("GET", server.URL+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "evil.example.test"
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("by another name: %v, %v", res, err)
	}
}
