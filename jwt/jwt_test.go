package jwt_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay/guard"
	"mcpreplay/jwt"
	"mcpreplay/sqlite"
)

const audience = "https://mcp.example.test/mcp"

// issuer signs tokens, and serves its key set.
type issuer struct {
	t      *testing.T
	server *httptest.Server
	asked  atomic.Int64

	mu    sync.Mutex
	keys  []jose.JSONWebKey // private
	serve func(w http.ResponseWriter)
}

var (
	rsaKey, _      = rsa.GenerateKey(rand.Reader, 2048)
	weakKey, _     = rsa.GenerateKey(rand.Reader, 1024)
	ecKey, _       = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edKey, _    = ed25519.GenerateKey(rand.Reader)
	strangerKey, _ = rsa.GenerateKey(rand.Reader, 2048)
)

func newIssuer(t *testing.T) *issuer {
	i := &issuer{t: t, keys: []jose.JSONWebKey{{Key: rsaKey, KeyID: "rsa"}, {Key: ecKey, KeyID: "ec", Algorithm: "ES256", Use: "sig"}, {Key: edKey, KeyID: "ed"}}}
	i.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)
		i.mu.Lock()
		serve := i.serve
		i.mu.Unlock()
		if serve != nil {
			serve(w)
			return
		}
		w.Write(i.set())
	}))
	t.Cleanup(i.server.Close)
	return i
}

func (i *issuer) set() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	var public []any
	for _, k := range i.keys {
		public = append(public, k.Public())
	}
	public = append(public, map[string]string{"kty": "oct", "k": "c2VjcmV0", "kid": "oct"}, map[string]string{"kty": "future", "kid": "x"})
	text, err := json.Marshal(map[string]any{"keys": public})
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

func (i *issuer) will(serve func(http.ResponseWriter)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.serve = serve
}

func claimsOf(sub string) map[string]any {
	now := time.Now().Unix()
	return map[string]any{"iss": "https://id.example.test", "sub": sub, "aud": audience, "exp": now + 600, "nbf": now - 10, "iat": now - 10}
}

func sign(t *testing.T, alg string, key any, kid string, claims any, headers ...string) string {
	t.Helper()
	o := (&jose.SignerOptions{}).WithType("at+jwt")
	if kid != "" {
		o = o.WithHeader("kid", kid)
	}
	for n := 0; n+1 < len(headers); n += 2 {
		o = o.WithHeader(jose.HeaderKey(headers[n]), headers[n+1])
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(alg), Key: key}, o)
	if err != nil {
		t.Fatal(err)
	}
	payload, isText := claims.(string)
	if !isText {
		text, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		payload = string(text)
	}
	signed, err := signer.Sign([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func without(claims map[string]any, name string) map[string]any {
	delete(claims, name)
	return claims
}

func with(claims map[string]any, name string, value any) map[string]any {
	claims[name] = value
	return claims
}

// service is a guarded server over HTTP whose identities come from an issuer.
type service struct {
	t       *testing.T
	server  *httptest.Server
	effects atomic.Int64
	log     bytes.Buffer
	store   *sqlite.Store
}

func serve(t *testing.T, v *jwt.Verifier) *service {
	t.Helper()
	s := &service{t: t}
	var err error
	if s.store, err = sqlite.Open(filepath.Join(t.TempDir(), "ledger.db"), &sqlite.Options{Backend: "b"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.store.Close() })
	keys, err := guard.KeyFile(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New(s.store, &guard.Options{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "do"}, guard.Atomic(s.store, func(_ context.Context, _ *sqlite.Tx, op *guard.Op, _ struct{}) (map[string]string, error) {
		s.effects.Add(1)
		return map[string]string{"principal": op.Principal}, nil
	}))
	g.Install(server)
	handler, err := guard.HTTPHandler(server, &guard.HTTPOptions{
		Verifier: v.Verify, Resource: audience, AuthorizationServers: []string{"https://id.example.test"}, Scopes: []string{"do"},
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.server = httptest.NewServer(handler)
	t.Cleanup(s.server.Close)
	return s
}

func (s *service) call(tool, args string, authorization ...string) (status int, challenge, body string) {
	s.t.Helper()
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s,"name":%q,"arguments":%s}}`, meta, tool, args)
	req, err := http.NewRequest(http.MethodPost, s.server.URL+"/mcp", strings.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {tool}, "Authorization": authorization}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("WWW-Authenticate"), string(all)
}

func newVerifier(t *testing.T, keys string) *jwt.Verifier {
	t.Helper()
	v, err := jwt.New(&jwt.Options{Issuer: "https://id.example.test", Audience: audience, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestTokensOfTheIssuerAreAccepted(t *testing.T) {
	i := newIssuer(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, i.set(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, keys := range []string{i.server.URL + "/jwks", file} {
		s := serve(t, newVerifier(t, keys))
		for n, token := range []string{
			sign(t, "RS256", rsaKey, "rsa", claimsOf("alice")),
			sign(t, "PS256", rsaKey, "rsa", claimsOf("alice")),
			sign(t, "ES256", ecKey, "ec", claimsOf("alice")),
			sign(t, "EdDSA", edKey, "ed", claimsOf("alice")),
			sign(t, "EdDSA", edKey, "", claimsOf("alice")), // the only key of its kind
			sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "aud", []string{"https://other.example.test", audience})),
			sign(t, "RS256", rsaKey, "rsa", without(without(claimsOf("alice"), "nbf"), "iat")),
			sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "exp", time.Now().Unix()-10)), // within the skew
		} {
			status, _, body := s.call("do", fmt.Sprintf(`{"operation_id":"op-%d"}`, n), "Bearer "+token)
			if status != http.StatusOK || !strings.Contains(body, `{"principal":"https://id.example.test alice"}`) {
				t.Errorf("token %d: %d %s", n, status, body)
			}
		}
	}
}

func TestOtherTokensAreRefused(t *testing.T) {
	i := newIssuer(t)
	s := serve(t, newVerifier(t, i.server.URL+"/jwks"))
	good := sign(t, "RS256", rsaKey, "rsa", claimsOf("alice"))
	public, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	raw := func(header string, claims any) string {
		payload, _ := json.Marshal(claims)
		return b64([]byte(header)) + "." + b64(payload) + "."
	}
	now := time.Now().Unix()
	text, _ := json.Marshal(claimsOf("alice"))
	stranger, err := json.Marshal(jose.JSONWebKey{Key: strangerKey.Public(), KeyID: "stranger"})
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	tests := map[string]string{
		"alg none":                   raw(`{"alg":"none"}`, claimsOf("alice")),
		"alg None":                   raw(`{"alg":"None"}`, claimsOf("alice")),
		"no alg":                     raw(`{}`, claimsOf("alice")),
		"none with a signature":      b64([]byte(`{"alg":"none","kid":"rsa"}`)) + "." + parts[1] + "." + parts[2],
		"hmac of the pem":            sign(t, "HS256", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), "rsa", claimsOf("alice")),
		"hmac of the der":            sign(t, "HS256", public, "rsa", claimsOf("alice")),
		"hmac of the modulus":        sign(t, "HS256", rsaKey.N.Bytes(), "rsa", claimsOf("alice")),
		"hmac of the symmetric key":  sign(t, "HS256", append([]byte("secret"), make([]byte, 26)...), "oct", claimsOf("alice")),
		"an algorithm not accepted":  sign(t, "RS512", rsaKey, "rsa", claimsOf("alice")),
		"another issuer":             sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "iss", "https://id.example.test/")),
		"no issuer":                  sign(t, "RS256", rsaKey, "rsa", without(claimsOf("alice"), "iss")),
		"another audience":           sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "aud", "https://mcp.example.test")),
		"no audience":                sign(t, "RS256", rsaKey, "rsa", without(claimsOf("alice"), "aud")),
		"an audience of no kind":     sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "aud", map[string]string{"x": audience})),
		"no subject":                 sign(t, "RS256", rsaKey, "rsa", without(claimsOf("alice"), "sub")),
		"a subject of no kind":       sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "sub", 7)),
		"a subject that is no name":  sign(t, "RS256", rsaKey, "rsa", claimsOf("al\x00ice")),
		"a subject that is too long": sign(t, "RS256", rsaKey, "rsa", claimsOf(strings.Repeat("a", 1024))),
		"expired":                    sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "exp", now-60)),
		"never expires":              sign(t, "RS256", rsaKey, "rsa", without(claimsOf("alice"), "exp")),
		"expires as text":            sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "exp", "9999999999")),
		"expired for ever":           sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "exp", -1e300)),
		"not yet valid":              sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "nbf", now+120)),
		"issued in the future":       sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "iat", now+120)),
		"an unknown key":             sign(t, "RS256", strangerKey, "stranger", claimsOf("alice")),
		"another's key":              sign(t, "RS256", strangerKey, "rsa", claimsOf("alice")),
		"a key that it brings":       sign(t, "RS256", strangerKey, "stranger", claimsOf("alice"), "jku", "https://evil.example.test/jwks"),
		"a key in its header":        b64(fmt.Appendf(nil, `{"alg":"RS256","jwk":%s}`, stranger)) + "." + parts[1] + "." + parts[2],
		"a key of another kind":      sign(t, "ES256", ecKey, "rsa", claimsOf("alice")),
		"critical extensions":        b64([]byte(`{"alg":"RS256","kid":"rsa","crit":["exp"]}`)) + "." + parts[1] + "." + parts[2],
		"another type":               b64([]byte(`{"alg":"RS256","kid":"rsa","typ":"logout+jwt"}`)) + "." + parts[1] + "." + parts[2],
		"changed claims":             parts[0] + "." + b64(bytes.Replace(text, []byte("alice"), []byte("bobby"), 1)) + "." + parts[2],
		"no signature":               parts[0] + "." + parts[1] + ".",
		"two parts":                  parts[0] + "." + parts[1],
		"five parts":                 good + ".a.b",
		"a claim twice":              sign(t, "RS256", rsaKey, "rsa", strings.Replace(string(text), `"sub":"alice"`, `"sub":"alice","sub":"bob"`, 1)),
		"claims that are no object":  sign(t, "RS256", rsaKey, "rsa", `["alice"]`),
		"no claims":                  sign(t, "RS256", rsaKey, "rsa", `null`),
		"too large":                  sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "x", strings.Repeat("x", 20<<10))),
		"rubbish":                    "rubbish-rubbish-rubbish",
	}
	for name, token := range tests {
		status, challenge, body := s.call("do", `{"operation_id":"op-1"}`, "Bearer "+token)
		if status != http.StatusUnauthorized || !strings.HasPrefix(challenge, `Bearer error="invalid_token"`) ||
			!strings.Contains(challenge, `resource_metadata="https://mcp.example.test/.well-known/oauth-protected-resource/mcp"`) || !strings.Contains(body, `"invalid token"`) && !strings.Contains(body, "invalid token") {
			t.Errorf("%s: %d %s %s", name, status, challenge, body)
		}
	}
	if status, _, body := s.call("do", `{"operation_id":"op-1"}`, "Bearer "+good, "Bearer "+good); status != http.StatusBadRequest {
		t.Errorf("two Authorization headers: %d %s", status, body)
	}
	if status, challenge, body := s.call("do", `{"operation_id":"op-1"}`); status != http.StatusUnauthorized || strings.Contains(challenge, "error=") {
		t.Errorf("no token: %d %s %s", status, challenge, body)
	}
	info, err := s.store.Info(t.Context())
	if err != nil || info.Position != 0 || s.effects.Load() != 0 {
		t.Errorf("after all that there were %d effects, and the ledger is at %d: %v", s.effects.Load(), info.Position, err)
	}
	for _, token := range append(strings.Split(good, "."), "rubbish-rubbish") {
		if strings.Contains(s.log.String(), token) {
			t.Errorf("the log has a part of a token in it")
		}
	}
}

func TestTwoSubjectsDoNotSeeEachOther(t *testing.T) {
	i := newIssuer(t)
	s := serve(t, newVerifier(t, i.server.URL+"/jwks"))
	alice, bob := "Bearer "+sign(t, "ES256", ecKey, "ec", claimsOf("alice")), "Bearer "+sign(t, "ES256", ecKey, "ec", claimsOf("bob"))
	s.call("do", `{"operation_id":"op-1"}`, alice)
	if _, _, body := s.call("get_operation_status", `{"operation_id":"op-1"}`, bob); !strings.Contains(body, `"state":"unknown"`) {
		t.Errorf("bob is told %s", body)
	}
	if _, _, body := s.call("do", `{"operation_id":"op-1"}`, bob); !strings.Contains(body, "operation_conflict") {
		t.Errorf("bob is told %s", body)
	}
	if _, _, body := s.call("get_operation_status", `{"operation_id":"op-1"}`, alice); !strings.Contains(body, `"state":"applied"`) {
		t.Errorf("alice is told %s", body)
	}
}

// Keys come and go, and their source fails in every way there is.
func TestKeySetsThatChangeAndFail(t *testing.T) {
	i := newIssuer(t)
	release := make(chan struct{})
	defer close(release)
	i.will(func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) })
	v := newVerifier(t, i.server.URL+"/jwks")
	now := time.Now()
	v.SetClock(func() time.Time { return now })
	token := sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "exp", now.Unix()+1e7))
	verify := func(token string) error {
		_, err := v.Verify(t.Context(), token, nil)
		return err
	}
	if err := verify(token); err == nil || strings.Contains(err.Error(), "invalid token") {
		t.Errorf("without any keys: %v; want that they cannot be had", err)
	}
	asked := i.asked.Load()
	for range 100 { // nobody hammers the issuer
		verify(token)
	}
	if n := i.asked.Load() - asked; n != 0 {
		t.Errorf("the issuer was asked %d times within a moment", n)
	}
	for name, serve := range map[string]func(http.ResponseWriter){
		"rubbish": func(w http.ResponseWriter) { io.WriteString(w, "<html>") },
		"nothing": func(w http.ResponseWriter) { io.WriteString(w, `{"keys":[]}`) },
		"too much": func(w http.ResponseWriter) {
			io.WriteString(w, `{"keys":[],"x":"`)
			w.Write(bytes.Repeat([]byte("x"), 5<<20))
			io.WriteString(w, `"}`)
		},
	} {
		i.will(serve)
		now = now.Add(time.Minute)
		if err := verify(token); err == nil {
			t.Errorf("with %s for keys a token was accepted", name)
		}
	}
	i.will(nil)
	now = now.Add(time.Minute)
	if err := verify(token); err != nil {
		t.Errorf("with keys: %v", err)
	}

	// A new key is had when the first token names it, and not before.
	fresh := sign(t, "RS256", strangerKey, "new", with(claimsOf("alice"), "exp", now.Unix()+1e7))
	now = now.Add(time.Minute)
	if err := verify(fresh); err == nil {
		t.Error("an unknown key was accepted")
	}
	i.mu.Lock()
	i.keys = []jose.JSONWebKey{{Key: strangerKey, KeyID: "new"}}
	i.mu.Unlock()
	asked = i.asked.Load()
	var wg sync.WaitGroup
	now = now.Add(time.Minute)
	for range 20 {
		wg.Go(func() {
			if err := verify(fresh); err != nil {
				t.Errorf("a new key: %v", err)
			}
		})
	}
	wg.Wait()
	if n := i.asked.Load() - asked; n != 1 {
		t.Errorf("for one new key the issuer was asked %d times", n)
	}
	if err := verify(token); err == nil {
		t.Error("a key that is gone was accepted")
	}

	// The source fails: what was had is used, for a day.
	i.will(func(http.ResponseWriter) { panic(http.ErrAbortHandler) })
	now = now.Add(12 * time.Hour)
	if err := verify(fresh); err != nil {
		t.Errorf("half a day later: %v", err)
	}
	now = now.Add(13 * time.Hour)
	if err := verify(fresh); err == nil {
		t.Error("keys of the day before were accepted")
	}
	i.will(func(http.ResponseWriter) { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	now = now.Add(time.Hour)
	if _, err := v.Verify(ctx, fresh, nil); err == nil {
		t.Error("a source that hangs gave keys")
	}
}

func TestWeakAndPrivateKeysAreNoSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks.json")
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: weakKey.Public(), KeyID: "weak"}, {Key: rsaKey.Public(), KeyID: "enc", Use: "enc"}, {Key: edKey, KeyID: "private"}}})
	if err != nil {
		t.Fatal(err)
	}
	// One that is there to encrypt says so in either of two ways (RFC 7517, section 4.3).
	wraps, err := json.Marshal(jose.JSONWebKey{Key: strangerKey.Public(), KeyID: "wraps"})
	if err != nil {
		t.Fatal(err)
	}
	wraps = append(bytes.TrimSuffix(wraps, []byte("}")), `,"key_ops":["wrapKey","encrypt"]}`...)
	set = append(append(bytes.TrimSuffix(set, []byte("]}")), ','), append(wraps, "]}"...)...)
	if err := os.WriteFile(file, set, 0o600); err != nil {
		t.Fatal(err)
	}
	v := newVerifier(t, file)
	for kid, key := range map[string]any{"weak": weakKey, "enc": rsaKey, "wraps": strangerKey} {
		if _, err := v.Verify(t.Context(), sign(t, "RS256", key, kid, claimsOf("alice")), nil); err == nil {
			t.Errorf("the key %q was accepted", kid)
		}
	}
	if _, err := v.Verify(t.Context(), sign(t, "EdDSA", edKey, "private", claimsOf("alice")), nil); err != nil {
		t.Errorf("the public half of a private key: %v", err)
	}
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	i := newIssuer(t)
	for name, change := range map[string]func(*jwt.Options){
		"no issuer":     func(o *jwt.Options) { o.Issuer = "" },
		"issuer spaces": func(o *jwt.Options) { o.Issuer = "a b" },
		"no audience":   func(o *jwt.Options) { o.Audience = "" },
		"no keys":       func(o *jwt.Options) { o.Keys = "" },
		"plain http":    func(o *jwt.Options) { o.Keys = "http://id.example.test/jwks" },
		"no such file":  func(o *jwt.Options) { o.Keys = filepath.Join(t.TempDir(), "none") },
		"hmac":          func(o *jwt.Options) { o.Algorithms = []string{"HS256"} },
		"none":          func(o *jwt.Options) { o.Algorithms = []string{"none"} },
		"skew":          func(o *jwt.Options) { o.Skew = time.Hour },
	} {
		o := &jwt.Options{Issuer: "i", Audience: "a", Keys: i.server.URL}
		change(o)
		if _, err := jwt.New(o); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	v, err := jwt.New(&jwt.Options{Issuer: "https://id.example.test", Audience: audience, Keys: i.server.URL,
		Principal: func(c map[string]any) (string, error) { return fmt.Sprint(c["email"]), nil }})
	if err != nil {
		t.Fatal(err)
	}
	info, err := v.Verify(t.Context(), sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "email", "alice@example.test")), nil)
	if err != nil || info.UserID != "alice@example.test" {
		t.Errorf("by a mapping of one's own: %+v, %v", info, err)
	}
}

// The metadata of the resource is for everybody (RFC 9728).
func TestTheResourceDescribesItself(t *testing.T) {
	i := newIssuer(t)
	s := serve(t, newVerifier(t, i.server.URL+"/jwks"))
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
		res, err := http.Get(s.server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		err = json.NewDecoder(res.Body).Decode(&m)
		res.Body.Close()
		if err != nil || m["resource"] != audience || fmt.Sprint(m["authorization_servers"]) != "[https://id.example.test]" || fmt.Sprint(m["bearer_methods_supported"]) != "[header]" {
			t.Errorf("%s: %v, %v", path, m, err)
		}
	}
	res, err := http.Get(s.server.URL + "/mcp")
	if err != nil || res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("elsewhere: %v, %v", res, err)
	}
}
