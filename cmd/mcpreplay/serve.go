package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"mcpreplay"
	"mcpreplay/faults"
	"mcpreplay/guard"
	"mcpreplay/internal/issues"
	"mcpreplay/jwt"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
)

// serveFlags mirror the options of the guard, its store and its transport.
type serveFlags struct {
	ledger    string
	backend   string
	principal string
	http      string
	tokens    []string
	issuer    string
	audience  string
	jwks      string
	resource  string
	metrics   string
	keyFile   string
	authority time.Duration
	retention time.Duration
	state     time.Duration
	maxJump   time.Duration
	sweep     time.Duration
	forget    time.Duration
	grace     time.Duration
}

func newServe(e *env) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the guarded issue tracker over stdio or HTTP",
		Long: `Serve the issue tracker of the demo: create_guarded_issue, get_operation_status,
fence_operation, acknowledge_operation and list_my_operations, over standard input
and output or, with --http, over streamable HTTP. Issues and ledger are in one SQLite file.

At the end of input and on SIGTERM every accepted call is finished and answered
before the process exits.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd, false); err != nil {
				return err
			}
			return serve(cmd.Context(), e, &f, nil)
		},
	}
	f.register(cmd)
	cmd.Flags().DurationVar(&f.sweep, "sweep-interval", time.Hour, "about how often results nobody needs are dropped; 0: never")
	cmd.Flags().DurationVar(&f.grace, "sweep-grace", guard.SweepGrace, "how long such a result is kept, unless acknowledged")
	cmd.Flags().DurationVar(&f.forget, "sweep-forget", 0, "how long a record is kept after its id was minted here, at least 24h; 0: for ever")
	return cmd
}

func (f *serveFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.ledger, "ledger", "", "ledger to keep, as sqlite:PATH (default: issues.db in the user's state directory)")
	flags.StringVar(&f.backend, "backend", "issues", "name of the ledger; one of another name is refused")
	flags.StringVar(&f.principal, "principal", "local", "principal of calls over stdio")
	flags.StringVar(&f.http, "http", "", "address to serve HTTP on, such as :8080 (loopback unless a host is named)")
	flags.StringArrayVar(&f.tokens, "token", nil, "bearer token of a principal, as NAME=TOKEN; may be repeated")
	flags.StringVar(&f.issuer, "issuer", "", "issuer of the tokens (JWT) that are accepted over HTTP, instead of --token")
	flags.StringVar(&f.audience, "audience", "", "whom the tokens are for: this server, as its issuer names it")
	flags.StringVar(&f.jwks, "jwks", "", "key set of the issuer: a file, or an https URL")
	flags.StringVar(&f.resource, "resource", "", "URL that clients reach this server by (default: the audience)")
	flags.StringVar(&f.metrics, "metrics", "", "address to serve metrics on, such as :9464 (loopback unless a host is named)")
	flags.StringVar(&f.keyFile, "key-file", "", "file of secrets, created if absent (default: the ledger's path and .keys)")
	flags.DurationVar(&f.authority, "authority-ttl", 15*time.Minute, "how long after its first round an operation may be written")
	flags.DurationVar(&f.retention, "replay-retention", 7*24*time.Hour, "how long a result may be replayed")
	flags.DurationVar(&f.state, "state-ttl", 10*time.Minute, "how long request state may be echoed")
	flags.DurationVar(&f.maxJump, "max-clock-jump", 366*24*time.Hour, "how far the clock may be ahead of the ledger; negative: any")
}

// check refuses what was given and cannot be meant, before anything is created.
func (f *serveFlags) check(cmd *cobra.Command, lab bool) error {
	for name, value := range map[string]string{"principal": f.principal, "backend": f.backend, "ledger": f.ledger, "key-file": f.keyFile, "http": f.http,
		"issuer": f.issuer, "audience": f.audience, "jwks": f.jwks, "resource": f.resource} {
		if value == "" && cmd.Flags().Changed(name) {
			return misused("leave the flag out, or give it a value", "--%s is empty", name)
		}
	}
	if err := mcpreplay.ValidatePrincipal(f.principal); err != nil {
		return misused("name somebody", "--principal: %w", err)
	}
	for name, value := range map[string]time.Duration{"authority-ttl": f.authority, "replay-retention": f.retention, "state-ttl": f.state} {
		if value <= 0 {
			return misused("give it as a duration, such as 15m", "--%s is not above zero", name)
		}
	}
	if err := checkForget("sweep-forget", f.forget); err != nil {
		return err
	}
	if f.forget > 0 && f.forget < f.state+f.authority {
		return misused("keep records for longer: an id is minted before the first round", "--sweep-forget %v is shorter than --state-ttl and --authority-ttl together", f.forget)
	}
	if f.sweep < 0 || f.grace < 0 {
		return misused("give it as a duration, such as 1h, or 0", "--sweep-interval or --sweep-grace is below zero")
	}
	if f.retention < f.authority && !lab {
		return misused("a result must be replayable at least as long as it may be written", "--replay-retention %v is shorter than --authority-ttl %v", f.retention, f.authority)
	}
	return nil
}

// recoverEvery is how often a server looks for what dead owners left in progress.
const recoverEvery = time.Minute

// keys are the two rings of a server: for what it seals and for fingerprints.
type keys struct{ seal, fingerprint *mcpreplay.Keyring }

func serve(ctx context.Context, e *env, f *serveFlags, lab *labFlags) error {
	debug.SetGCPercent(400) // the SDK's decoder makes much short-lived garbage
	log := slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	httpOptions, err := f.httpOptions(e, log)
	if err != nil {
		return err
	}
	path, err := f.path(e)
	if err != nil {
		return err
	}
	clock, wrap, err := lab.seams()
	if err != nil {
		return err
	}
	store, err := openLedger(path, &sqlite.Options{Backend: f.backend, Clock: clock, MaxClockJump: f.maxJump, Logger: log})
	if err != nil {
		return err
	}
	defer store.Close()
	if err := issues.Setup(ctx, store); err != nil {
		return failed(err, "check the ledger's file and its permissions")
	}
	ring, err := f.keys(path, lab)
	if err != nil {
		return err
	}
	wrapped := wrap(store)
	options := guard.Options{
		Keys: ring.seal, FingerprintKeys: ring.fingerprint, Name: "mcpreplay-issues", Principal: f.principal,
		AuthorityTTL: f.authority, Retention: f.retention, StateTTL: f.state, ShortRetention: lab != nil, Logger: log,
	}
	tracker := issues.Options{Version: buildVersion(), Outside: outside(store, wrapped)}
	if err := lab.tune(&options); err != nil {
		return err
	}
	if f.metrics != "" {
		m, err := serveMetrics(e, f.metrics)
		if err != nil {
			return err
		}
		defer m.stop()
		options.MeterProvider = m.provider
	}
	g, err := guard.New(wrapped, &options)
	if err != nil {
		return &commandError{code: exitMisused, err: err, hint: "see serve --help"}
	}
	server := issues.NewServer(g, wrapped, tracker)
	if lab != nil && lab.unguarded {
		server = lab.control(store)
	}
	if lab == nil { // the lab looks at what asking brings
		recovering, stop := context.WithCancel(ctx)
		defer stop()
		go g.RecoverEvery(recovering, recoverEvery)
	}
	defer f.sweeping(ctx, wrapped, log)()
	if httpOptions != nil {
		httpOptions.Health = g.Health
		ctx, stop := lab.untilEOF(ctx, e.stdin)
		defer stop()
		return serveHTTP(ctx, f.http, server, httpOptions)
	}
	if err := (&guard.Stdio{In: e.stdin, Out: e.stdout, Logger: log}).Run(ctx, server); err != nil {
		return failed(err, "calls may have been cut off: ask get_operation_status what became of them")
	}
	return nil
}

// outside is where the demo's external effect happens: in the same file, in a
// transaction of which the ledger knows nothing. wrapped has the faults, if any.
func outside(store *sqlite.Store, wrapped mcpreplay.Applier[*sqlite.Tx]) issues.Outside {
	return func(ctx context.Context, operation string, fn func(context.Context, *sqlite.Tx) error) error {
		err := store.Setup(ctx, fn)
		if err == nil && operation != "" {
			err = faults.Outside(ctx, wrapped, operation)
		}
		return err
	}
}

// sweeping drops results that are no longer needed for as long as the server runs.
// The lab's servers do not: what they leave is compared.
func (f *serveFlags) sweeping(ctx context.Context, s mcpreplay.Store, log *slog.Logger) (stop func()) {
	if f.sweep == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		guard.SweepEvery(ctx, s, guard.Sweeping{
			Interval: f.sweep, Policy: mcpreplay.SweepPolicy{Grace: f.grace, Acknowledged: true, Forget: f.forget}, Logger: log,
		})
	}()
	return func() { cancel(); <-done }
}

func serveHTTP(ctx context.Context, addr string, server *mcp.Server, o *guard.HTTPOptions) error {
	handler, err := guard.HTTPHandler(server, o)
	if err != nil {
		return &commandError{code: exitMisused, err: err, hint: "see serve --help"}
	}
	if err := guard.RunHTTP(ctx, addr, handler, o); err != nil {
		return failed(err, "is the address free, and of this machine?")
	}
	return nil
}

// path is where the ledger is. The default has a directory of its own, made for
// it; a path that was given must be in one that exists.
func (f *serveFlags) path(e *env) (string, error) {
	if f.ledger != "" {
		return ledgerPath(f.ledger)
	}
	dir, err := stateDir(e)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", failed(err, "name a ledger with --ledger sqlite:PATH")
	}
	return filepath.Join(dir, "issues.db"), nil
}

func (f *serveFlags) keys(path string, lab *labFlags) (keys, error) {
	if lab != nil && (lab.stateKey != "" || lab.fingerprintKey != "") {
		return lab.keys()
	}
	file := f.keyFile
	if file == "" {
		file = path + ".keys"
	}
	ring, err := guard.KeyFile(file)
	if err != nil {
		return keys{}, failed(err, "name a file with --key-file; each of its lines is a secret of at least 32 bytes in hexadecimal")
	}
	return keys{seal: ring, fingerprint: ring.Fingerprints()}, nil
}

// httpOptions is nil when stdio is served.
func (f *serveFlags) httpOptions(e *env, log *slog.Logger) (*guard.HTTPOptions, error) {
	identities := f.issuer != "" || f.audience != "" || f.jwks != "" || f.resource != ""
	if f.http == "" {
		if len(f.tokens) > 0 || identities {
			return nil, misused("serve HTTP with --http ADDR", "--token, --issuer, --audience, --jwks and --resource are for HTTP only")
		}
		return nil, nil
	}
	if identities {
		return f.jwtOptions(e, log)
	}
	if len(f.tokens) == 0 {
		return nil, misused("give each client one with --token NAME=TOKEN, or say whose tokens are accepted with --issuer, --audience and --jwks", "HTTP is not served without a token")
	}
	tokens := make(map[string]string, len(f.tokens))
	for _, t := range f.tokens {
		name, token, ok := strings.Cut(t, "=")
		if !ok || name == "" || token == "" {
			return nil, misused("write it as NAME=TOKEN", "a --token has no name or no value")
		}
		if _, twice := tokens[token]; twice {
			return nil, misused("give each principal a token of its own", "the same token is given twice")
		}
		tokens[token] = name
	}
	o := &guard.HTTPOptions{Tokens: tokens}
	return o, f.listening(e, o, log)
}

// jwtOptions is for identities that an issuer gives.
func (f *serveFlags) jwtOptions(e *env, log *slog.Logger) (*guard.HTTPOptions, error) {
	if len(f.tokens) > 0 {
		return nil, misused("use one or the other", "--token and --issuer are two ways to say who somebody is")
	}
	if f.issuer == "" || f.audience == "" || f.jwks == "" {
		return nil, misused("give all three", "--issuer, --audience and --jwks belong together")
	}
	resource := f.resource
	if resource == "" {
		resource = f.audience
	}
	u, err := url.Parse(resource)
	if err != nil || u.Host == "" {
		return nil, misused("give the URL that clients reach this server by with --resource", "%q is not the URL of a server", resource)
	}
	v, err := jwt.New(&jwt.Options{Issuer: f.issuer, Audience: f.audience, Keys: f.jwks, Logger: log})
	if err != nil {
		return nil, &commandError{code: exitMisused, err: err, hint: "see serve --help"}
	}
	o := &guard.HTTPOptions{
		Verifier: v.Verify, Resource: resource, AuthorizationServers: []string{f.issuer},
		AllowedHosts: []string{u.Hostname()}, // a proxy in front passes on the name that clients use
	}
	return o, f.listening(e, o, log)
}

func (f *serveFlags) listening(e *env, o *guard.HTTPOptions, log *slog.Logger) error {
	o.Logger = log
	o.Listening = func(a net.Addr) { fmt.Fprintf(e.stderr, "serving on http://%s\n", a) }
	if err := o.Validate(); err != nil {
		return &commandError{code: exitMisused, err: err, hint: "see serve --help"}
	}
	return nil
}

// parseKey reads one secret given in hexadecimal.
func parseKey(flag, text string) (*mcpreplay.Keyring, error) {
	secret, err := hex.DecodeString(text)
	if err != nil {
		return nil, misused("give at least 32 bytes in hexadecimal", "--%s is not hexadecimal", flag)
	}
	ring, err := mcpreplay.NewKeyring(secret)
	if err != nil {
		return nil, &commandError{code: exitMisused, err: fmt.Errorf("--%s: %w", flag, err), hint: "give at least 32 bytes in hexadecimal"}
	}
	return ring, nil
}
