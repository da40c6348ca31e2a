package guard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// HTTPOptions configures HTTPHandler and RunHTTP. One of Tokens, Verifier and
// AllowUnauthenticated is required.
type HTTPOptions struct {
	// Tokens maps static bearer tokens to the principals they stand for. Tokens
	// have at least 16 printable characters. For tests and small setups.
	Tokens map[string]string

	// Verifier checks bearer tokens. The UserID it returns is the principal: it
	// must be set, and unique across issuers. Its errors are told to the client
	// as "invalid token" if they match auth.ErrInvalidToken, and are logged.
	Verifier auth.TokenVerifier

	// AllowUnauthenticated takes every request without asking who sends it. All
	// of them then are one principal. RunHTTP insists on loopback.
	AllowUnauthenticated bool

	// Resource is the URL that clients name this server by, as the audience of their
	// tokens. If it is set the handler serves the protected resource metadata
	// (RFC 9728) under its well-known path, with AuthorizationServers and Scopes.
	Resource             string
	AuthorizationServers []string
	Scopes               []string

	// ResourceMetadata is the URL of the protected resource metadata, told to clients
	// that have no valid token. Defaults to where it is served, if Resource is set.
	ResourceMetadata string

	// AllowedHosts are the Host headers served beside those of the loopback
	// interface, each with or without a port. Without this check a web page
	// could reach a local server through a name of its own.
	AllowedHosts []string

	// AllowedOrigins are the origins, like https://example.com, whose pages may
	// call. Pages of the server's own origin and clients that are no browsers
	// always may. To let pages read the replies is for a CORS handler around it.
	AllowedOrigins []string

	// MaxBody bounds the bytes of one message. Defaults to 4 MiB.
	MaxBody int

	// MaxDepth bounds the nesting of one message. Defaults to 128.
	MaxDepth int

	// Stream answers every call with an event stream. By default only calls
	// whose _meta asks for progress or log messages get one. The others get one
	// JSON body: it has a length, so that a client can tell when it was cut.
	Stream bool

	// Health says whether calls can be served now, for /readyz: Guard.Health, or a
	// function that asks it and more. Its answer is believed for a second.
	Health func(context.Context) error

	// DrainTimeout bounds the time in which RunHTTP lets running calls finish.
	// Defaults to 30 seconds.
	DrainTimeout time.Duration

	// Listening is called by RunHTTP with the address it listens on.
	Listening func(net.Addr)

	// Logger gets what the client is not told. Nil discards it.
	Logger *slog.Logger
}

// Validate reports everything that is wrong with o, as HTTPHandler would.
func (o *HTTPOptions) Validate() error {
	_, err := o.resolve()
	return err
}

// resolve copies o with its defaults filled, or returns everything wrong with it.
func (o *HTTPOptions) resolve() (HTTPOptions, error) {
	var r HTTPOptions
	if o != nil {
		r = *o
	}
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("guard: HTTPOptions."+format, args...))
	}
	ways := 0
	for _, set := range []bool{len(r.Tokens) > 0, r.Verifier != nil, r.AllowUnauthenticated} {
		if set {
			ways++
		}
	}
	if ways != 1 {
		fault("Tokens, Verifier, AllowUnauthenticated: exactly one is needed (got %d)", ways)
	}
	for token, principal := range r.Tokens {
		if len(token) < minToken || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
			fault("Tokens: a token must have at least %d printable ASCII characters and no spaces", minToken)
		}
		if err := mcpreplay.ValidatePrincipal(principal); err != nil {
			fault("Tokens: a principal: %w", err)
		}
	}
	if r.Resource != "" {
		u, err := url.Parse(r.Resource)
		switch {
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Fragment != "" || u.User != nil || u.RawQuery != "":
			fault("Resource: must be an absolute URL without query, fragment and user")
		case len(r.AuthorizationServers) == 0:
			fault("AuthorizationServers: a resource needs somebody who gives out tokens for it")
		case r.ResourceMetadata == "":
			well := url.URL{Scheme: u.Scheme, Host: u.Host, Path: wellKnown + strings.TrimSuffix(u.Path, "/")}
			r.ResourceMetadata = well.String()
		}
	}
	if r.MaxBody == 0 {
		r.MaxBody = defaultMessageBytes
	}
	if r.MaxDepth == 0 {
		r.MaxDepth = mcpreplay.DefaultJSONDepth
	}
	if r.DrainTimeout == 0 {
		r.DrainTimeout = defaultDrain
	}
	if r.MaxBody < 0 || r.MaxDepth < 0 || r.DrainTimeout < 0 {
		fault("MaxBody, MaxDepth, DrainTimeout: must not be negative")
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, errors.Join(errs...)
}

// HTTPHandler serves server over streamable HTTP, stateless: the only form of it
// that MCP 2026-07-28 has. Whatever is refused is refused before anything was
// dispatched, and says so in a JSON-RPC error:
//
//	405  not a POST
//	403  a Host or an Origin that may not call
//	401  no token, or one that is not valid (400 if there are several)
//	415  a body that is not plain JSON in UTF-8
//	413  a body beyond MaxBody
//	400  a body that is not one well-formed message, or an Accept header that
//	     does not take both JSON and an event stream
//
// A client that goes away does not cancel its call: the effect and its record are
// completed. The specification (basic/patterns/cancellation) wants a disconnect
// treated as cancellation, and lets a server ignore a cancellation of what cannot
// be cancelled. A committed effect is that, and from outside nobody can tell
// whether the commit came before the disconnect or after it.
//
// GET /healthz says that the process serves, and GET /readyz whether calls would be
// served well now (503 if not); neither asks for a token or tells more.
//
// Idempotency-Key headers are dropped. They mean nothing here, and net/http
// silently repeats a request that carries one.
func HTTPHandler(server *mcp.Server, o *HTTPOptions) (http.Handler, error) {
	opts, err := o.resolve()
	if err != nil {
		return nil, err
	}
	h := &httpHandler{o: opts, origins: http.NewCrossOriginProtection()}
	h.health = health{ask: opts.Health, log: opts.Logger}
	if opts.Resource != "" {
		h.metadata = auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
			Resource: opts.Resource, AuthorizationServers: opts.AuthorizationServers, ScopesSupported: opts.Scopes,
			BearerMethodsSupported: []string{"header"},
		})
	}
	for _, origin := range opts.AllowedOrigins {
		if err := h.origins.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("guard: HTTPOptions.AllowedOrigins: %w", err)
		}
	}
	for token, principal := range opts.Tokens {
		h.tokens = append(h.tokens, staticToken{sha256.Sum256([]byte(token)), principal})
	}
	inner := func(plain bool) http.Handler {
		var served http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
			Stateless:           true,
			JSONResponse:        plain,
			Logger:              opts.Logger,
			MaxRequestBodyBytes: int64(opts.MaxBody),
			// Hosts are checked here, by a list that may name others.
			DisableLocalhostProtection: true,
		})
		if !opts.AllowUnauthenticated {
			served = withVerified(served)
		}
		return served
	}
	h.plain, h.stream = inner(true), inner(false)
	return h, nil
}

// drainingKey is where RunHTTP puts the context that ends when it drains.
type drainingKey struct{}

// whenDraining calls f, once the server of a request drains. After stop f neither runs
// nor will.
func whenDraining(ctx context.Context, f func()) (stop func()) {
	draining, ok := ctx.Value(drainingKey{}).(context.Context)
	if !ok {
		return func() {}
	}
	done := make(chan struct{})
	undo := context.AfterFunc(draining, func() {
		defer close(done)
		f()
	})
	return func() {
		if !undo() {
			<-done
		}
	}
}

type httpHandler struct {
	o             HTTPOptions
	origins       *http.CrossOriginProtection
	tokens        []staticToken
	plain, stream http.Handler
	metadata      http.Handler // nil if there is none
	health        health
}

// wellKnown is where the metadata of a protected resource is (RFC 9728, section 3).
const wellKnown = "/.well-known/oauth-protected-resource"

// describes reports whether a request asks for the metadata of the resource. It is for
// everybody, and for pages of any origin.
func (h *httpHandler) describes(r *http.Request) bool {
	if h.metadata == nil {
		return false
	}
	u, err := url.Parse(h.o.Resource) // as it was checked
	return r.URL.Path == wellKnown || err == nil && r.URL.Path == wellKnown+strings.TrimSuffix(u.Path, "/")
}

func (h *httpHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold back progress
	if !h.hostAllowed(r.Host) {
		h.refuse(w, http.StatusForbidden, invalid("host not allowed"))
		return
	}
	if r.URL.Path == livePath || r.URL.Path == readyPath {
		h.health.serve(w, r)
		return
	}
	if h.describes(r) {
		h.metadata.ServeHTTP(w, r)
		return
	}
	if len(r.Header.Values("Origin")) > 1 || h.origins.Check(r) != nil {
		h.refuse(w, http.StatusForbidden, invalid("origin not allowed"))
		return
	}
	if r.Method != http.MethodPost { // basic/transports/streamable-http: no GET stream, no session to delete
		w.Header().Set("Allow", http.MethodPost)
		h.refuse(w, http.StatusMethodNotAllowed, invalid("only POST is served"))
		return
	}
	ctx := context.WithValue(r.Context(), unauthenticatedKey{}, h.o.AllowUnauthenticated)
	if !h.o.AllowUnauthenticated {
		info, denied := h.authenticate(r)
		if denied != nil {
			if denied.challenge != "" {
				w.Header().Set("WWW-Authenticate", denied.challenge)
			}
			h.refuse(w, denied.status, denied.bad)
			return
		}
		ctx = context.WithValue(ctx, verifiedKey{}, info)
	}
	h.dispatch(w, r.WithContext(ctx))
}

// dispatch hands one well-formed message to the SDK.
func (h *httpHandler) dispatch(w http.ResponseWriter, r *http.Request) {
	if status, bad := checkMedia(r.Header); bad != nil {
		h.refuse(w, status, bad)
		return
	}
	body, err := readBody(w, r, int64(h.o.MaxBody))
	if err != nil {
		bad, status := invalid("the body could not be read"), http.StatusBadRequest
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			status = http.StatusRequestEntityTooLarge
			bad.reason, bad.message = mcpreplay.ReasonLimit, fmt.Sprintf("%s: message has more than %d bytes", mcpreplay.ReasonLimit, h.o.MaxBody)
		}
		bad.why = err
		h.refuse(w, status, bad)
		return
	}
	in, bad := checkMessage(body, &mcpreplay.Limits{Bytes: h.o.MaxBody, Depth: h.o.MaxDepth})
	if bad != nil {
		h.refuse(w, http.StatusBadRequest, bad)
		return
	}
	for _, name := range []string{"MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"} {
		if len(r.Header.Values(name)) > 1 { // whoever routed by another of them saw another request
			bad := invalid("the header " + name + " is there more than once")
			bad.code = mcp.CodeHeaderMismatch
			h.refuse(w, http.StatusBadRequest, bad)
			return
		}
	}

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	served := h.plain
	if h.o.Stream || in.talks {
		served = h.stream
	}
	if in.method == methodListen {
		// The SDK ends a subscription with its request. It must not hold up a
		// server that drains.
		defer whenDraining(ctx, cancel)()
	}
	r = r.Clone(ctx)
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key", "Last-Event-ID", "Mcp-Session-Id"} {
		r.Header.Del(name) // the last two are to be ignored (basic/transports/streamable-http)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	served.ServeHTTP(&replyWriter{ResponseWriter: w}, r)
}

// bodyTimeout bounds how long a client may take to send a message, and drainTimeout
// how long once the server drains.
const (
	bodyTimeout  = 30 * time.Second
	drainTimeout = time.Second
)

func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	stop := whenDraining(r.Context(), func() { _ = control.SetReadDeadline(time.Now().Add(drainTimeout)) })
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	stop()
	if err == nil { // a call may take longer than its message
		_ = control.SetReadDeadline(time.Time{})
	}
	return body, err
}

func (h *httpHandler) hostAllowed(host string) bool {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	for _, allowed := range h.o.AllowedHosts {
		if strings.EqualFold(allowed, host) || strings.EqualFold(allowed, name) {
			return true
		}
	}
	return isLoopback(name)
}

func isLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

func (h *httpHandler) refuse(w http.ResponseWriter, status int, bad *badMessage) {
	h.o.Logger.Warn("request refused", "status", status, "error", bad)
	// net/http reads the rest of a body before it answers, and again before it
	// closes: a client that never sends it would neither be answered nor let go.
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(bad.encode()) // or the client is gone
}

// replyWriter keeps an event stream one. The SDK (v1.8.0, streamable.go) writes
// the errors that have an HTTP status of their own as a bare JSON body even when
// it has begun a stream, after progress for one, where no client can read them.
type replyWriter struct {
	http.ResponseWriter
	begun, bare bool
}

func (w *replyWriter) WriteHeader(status int) {
	w.bound()
	w.bare = w.begun
	if !w.begun {
		w.begun = true
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *replyWriter) Write(p []byte) (int, error) {
	w.bound()
	w.begun = true
	if !w.bare {
		return w.ResponseWriter.Write(p)
	}
	if _, err := fmt.Fprintf(w.ResponseWriter, "event: message\ndata: %s\n\n", p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// replyTimeout bounds how long a client may take to read what was written.
const replyTimeout = 10 * time.Second

// bound gives the client time for the next part of its reply. One that does not
// read must not hold a call, and with it a drain, for ever.
func (w *replyWriter) bound() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(replyTimeout))
}

// Unwrap lets http.ResponseController flush.
func (w *replyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// RunHTTP listens on addr and serves h, a handler of HTTPHandler or one around it,
// until ctx is cancelled or SIGTERM, SIGINT or SIGHUP arrives. Then it accepts no
// more, lets running calls finish and be answered, and returns nil; subscriptions
// end. If DrainTimeout passes first, it returns an error. Further signals do
// nothing meanwhile.
//
// o are the options h was made with. An addr without a host means the loopback
// interface; another one must be named, and with AllowUnauthenticated is refused.
// There is no TLS: beyond loopback a proxy has to bring it.
func RunHTTP(ctx context.Context, addr string, h http.Handler, o *HTTPOptions) error {
	opts, err := o.resolve()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("guard: address: %w", err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if opts.AllowUnauthenticated && !isLoopback(host) {
		return fmt.Errorf("guard: HTTPOptions.AllowUnauthenticated: only on loopback, not on %s", host)
	}
	stop, release := stopSignals(ctx)
	defer release()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("guard: listen: %w", err)
	}
	if opts.Listening != nil {
		opts.Listening(listener.Addr())
	}
	draining, drain := context.WithCancel(context.WithoutCancel(ctx))
	defer drain()
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelWarn),
		// Requests must outlive ctx, or a drain would cut off their replies.
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.WithoutCancel(ctx), drainingKey{}, draining)
		},
	}
	server.RegisterOnShutdown(drain)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("guard: serve: %w", err)
	case reason := <-stop:
		opts.Logger.Info("draining", "reason", reason)
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), opts.DrainTimeout)
	defer cancel()
	if err := server.Shutdown(limit); err != nil {
		_ = server.Close()
		return fmt.Errorf("guard: calls still running after %v: %w", opts.DrainTimeout, err)
	}
	return nil
}
