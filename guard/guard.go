package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Options configures a Guard.
type Options struct {
	// Keys seals request state, mints operation ids and, unless FingerprintKeys
	// is set, keys the fingerprints. Every process that serves the same ledger
	// needs the same keys. Required; KeyFile makes a ring from a file.
	Keys *mcpreplay.Keyring

	// FingerprintKeys keys the fingerprints of requests. A record names the key
	// it was made under, so a key may be retired once its records no longer
	// matter. Defaults to those that Keys has for them.
	FingerprintKeys *mcpreplay.Keyring

	// Name of the server. It is sealed into request state, so that two servers
	// with the same keys do not accept each other's. Defaults to "mcpreplay".
	Name string

	// Principal on whose behalf calls over stdio run. Calls over HTTP take
	// theirs from the verified bearer token. Defaults to "local".
	Principal string

	// AuthorityTTL is how long after the first round an operation may still be
	// written. Defaults to 15 minutes.
	AuthorityTTL time.Duration

	// Retention is how long after the first round a result may still be
	// replayed. It must not be shorter than AuthorityTTL. Defaults to 7 days.
	Retention time.Duration

	// StateTTL is how long request state may be echoed. Defaults to 10 minutes.
	StateTTL time.Duration

	// Wait bounds how long a call waits for the ledger or for another attempt
	// at the same operation. Defaults to 25 seconds.
	Wait time.Duration

	// EffectTimeout is how long an external effect, or each step of one, may run,
	// unless its tool has a Timeout of its own. Defaults to 1 minute.
	EffectTimeout time.Duration

	// Lease is how long the owner of a claim may be silent before he is taken to be
	// gone. He renews it three times as often. Defaults to 15 seconds.
	Lease time.Duration

	// ReconcileTimeout bounds a question to a system of record. Defaults to 10
	// seconds.
	ReconcileTimeout time.Duration

	// Authorize is asked at the moment of each write, after every other check: in
	// the transaction of an atomic effect, and right before the claim of another.
	// An error refuses the operation (operation_forbidden); its text goes to the log
	// only. Defaults to allowing what passed the other checks.
	Authorize func(ctx context.Context, op mcpreplay.Operation) error

	// MaxInFlight bounds how many operations are written at once, and how many calls
	// wait for another attempt at theirs. Replays and status are never bounded.
	// Defaults to 1024.
	MaxInFlight int

	// MaxArguments and MaxResult bound the bytes of a call's arguments and of
	// the result of a tool. Each defaults to 1 MiB.
	MaxArguments int
	MaxResult    int

	// MaxDepth bounds the nesting of arguments. Defaults to 128.
	MaxDepth int

	// NoReplayNote leaves out the text block that tells a model that a result
	// was recorded earlier and that nothing ran again.
	NoReplayNote bool

	// ShortRetention permits a Retention shorter than AuthorityTTL: a result
	// that cannot be replayed while its operation could still be written. Only
	// tests of exactly that want it.
	ShortRetention bool

	// TracerProvider and MeterProvider receive what the guard tells of itself: see
	// docs/operating.md. They default to OpenTelemetry's global ones. An exporter that
	// blocks holds up calls; one that fails, or panics, does them no harm.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider

	// Logger gets the reasons that are kept from the wire. Nil discards them.
	Logger *slog.Logger
}

// resolve copies o with its defaults filled, or returns everything wrong with it.
func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	var errs []error
	if r.Keys == nil {
		errs = append(errs, errors.New("guard: Options.Keys: required; guard.KeyFile makes a ring from a file"))
	}
	if r.FingerprintKeys == nil && r.Keys != nil {
		r.FingerprintKeys = r.Keys.Fingerprints()
	}
	if r.Name == "" {
		r.Name = "mcpreplay"
	}
	if r.Principal == "" {
		r.Principal = "local"
	}
	if err := mcpreplay.ValidatePrincipal(r.Principal); err != nil {
		errs = append(errs, fmt.Errorf("guard: Options.Principal: %w", err))
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		fill  time.Duration
	}{
		{"AuthorityTTL", &r.AuthorityTTL, 15 * time.Minute},
		{"Retention", &r.Retention, 7 * 24 * time.Hour},
		{"StateTTL", &r.StateTTL, 10 * time.Minute},
		{"Wait", &r.Wait, 25 * time.Second},
		{"EffectTimeout", &r.EffectTimeout, time.Minute},
		{"Lease", &r.Lease, 15 * time.Second},
		{"ReconcileTimeout", &r.ReconcileTimeout, 10 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.fill
		}
		if *d.value < 0 {
			errs = append(errs, fmt.Errorf("guard: Options.%s: must not be negative (got %v)", d.name, *d.value))
		}
	}
	if r.Retention < r.AuthorityTTL && !r.ShortRetention {
		errs = append(errs, fmt.Errorf("guard: Options.Retention: %v is shorter than AuthorityTTL %v; a result must be replayable at least as long as it may be written", r.Retention, r.AuthorityTTL))
	}
	for _, n := range []struct {
		name  string
		value *int
		fill  int
	}{
		{"MaxArguments", &r.MaxArguments, 1 << 20},
		{"MaxResult", &r.MaxResult, 1 << 20},
		{"MaxDepth", &r.MaxDepth, 128},
		{"MaxInFlight", &r.MaxInFlight, 1024},
	} {
		if *n.value == 0 {
			*n.value = n.fill
		}
		if *n.value < 0 {
			errs = append(errs, fmt.Errorf("guard: Options.%s: must not be negative (got %d)", n.name, *n.value))
		}
	}
	if r.Authorize == nil {
		r.Authorize = func(context.Context, mcpreplay.Operation) error { return nil }
	}
	if r.TracerProvider == nil {
		r.TracerProvider = otel.GetTracerProvider()
	}
	if r.MeterProvider == nil {
		r.MeterProvider = otel.GetMeterProvider()
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, errors.Join(errs...)
}

// Guard makes the tools of an MCP server happen at most once. It is safe for
// concurrent use, and any number of processes may guard with the same ledger.
type Guard struct {
	store mcpreplay.Store
	opts  Options
	info  mcpreplay.Info // of the ledger when the guard was made
	tell  *telemetry

	owner   string       // random: this process, in what it claims
	claims  atomic.Int64 // how many it has claimed, so that each has an owner of its own
	writing slots
	waiting slots

	restores restores

	mu    sync.RWMutex
	tools map[toolKey]*tool
}

// toolKey is what a record says of its tool. Two servers of one guard that have a
// tool of the same name and version have the same tool.
type toolKey struct{ name, version string }

// New makes a guard over a ledger. It reads the ledger's identity.
func New(store mcpreplay.Store, o *Options) (*Guard, error) {
	opts, err := o.resolve()
	if err != nil {
		return nil, err
	}
	info, err := store.Info(context.Background())
	if err != nil {
		return nil, fmt.Errorf("guard: read the ledger: %w", err)
	}
	tell, err := newTelemetry(&opts)
	if err != nil {
		return nil, fmt.Errorf("guard: telemetry: %w", err)
	}
	g := &Guard{
		store: measured{store, tell}, opts: opts, info: info, tell: tell, tools: make(map[toolKey]*tool),
		owner:   rand.Text(),
		writing: make(slots, opts.MaxInFlight), waiting: make(slots, opts.MaxInFlight),
	}
	g.restores.learn(info)
	return g, nil
}

// slots bounds how many do something at once. Nobody waits for one.
type slots chan struct{}

func (s slots) take() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s slots) give() { <-s }

// Install adds the tools every guarded server has (get_operation_status,
// fence_operation, acknowledge_operation and list_my_operations) and contains
// what a handler of any tool could do to the process: a panic, a nil result,
// internal text in an error. Call it once per server.
func (g *Guard) Install(server *mcp.Server) {
	g.addStatus(server)
	g.addFence(server)
	g.addAcknowledge(server)
	g.addList(server)
	server.AddReceivingMiddleware(containMiddleware(g.opts.Logger))
}

// register remembers a guarded tool, for what status needs to know of it.
func (g *Guard) register(t *tool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tools[toolKey{t.name, t.version}] = t
}

func (g *Guard) tool(name, version string) *tool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.tools[toolKey{name, version}]
}
