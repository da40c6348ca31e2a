package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay/sqlite"

	"github.com/go-jose/go-jose/v4"
)

const identityHost = "mcp.example.test"

// identityServer is a process of mcpreplay serve whose tokens an issuer signs.
type identityServer struct {
	t      *testing.T
	url    string
	issuer string
	ledger string
	log    bytes.Buffer // read it when the process has ended
	end    func()
}

func startIdentityServer(t *testing.T, issuer, jwks string) *identityServer {
	t.Helper()
	s := &identityServer{t: t, issuer: issuer, ledger: filepath.Join(t.TempDir(), "l.db")}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, "mcpreplay", "serve", "--ledger", "sqlite:"+s.ledger, "--http", ":0", "--issuer", issuer,
		"--audience", "urn:issues", "--resource", "https://"+identityHost+"/mcp", "--jwks", jwks)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	for s.url == "" {
		line, err := lines.ReadString('\n')
		s.log.WriteString(line)
		if err != nil {
			t.Fatalf("the server does not listen: %s", s.log.String())
		}
		if _, at, found := strings.Cut(line, "serving on "); found {
			s.url = strings.TrimSpace(at)
		}
	}
	read := make(chan struct{})
	go func() {
		io.Copy(&s.log, lines)
		close(read)
	}()
	ended := false
	s.end = func() {
		if ended {
			return
		}
		ended = true
		cmd.Process.Signal(os.Interrupt)
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ended with %v: %s", err, s.log.String())
		}
		cancel()
	}
	t.Cleanup(s.end)
	return s
}

func (s *identityServer) call(name, rest string, authorization ...string) (*http.Response, string) {
	s.t.Helper()
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}`
	req, err := http.NewRequest(http.MethodPost, s.url+"/mcp", strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s,"name":%q,"arguments":{%s}}`, meta, name, rest)))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Host = identityHost // as a proxy passes it on
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Authorization": authorization,
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {name}}
	return s.do(req)
}

func (s *identityServer) do(req *http.Request) (*http.Response, string) {
	s.t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res, string(text)
}

func (s *identityServer) token(alg string, key any, kid string, change map[string]any) string {
	s.t.Helper()
	now := time.Now().Unix()
	claims := map[string]any{"iss": s.issuer, "sub": "alice", "aud": "urn:issues", "exp": now + 600, "iat": now}
	for name, value := range change {
		claims[name] = value
		if value == nil {
			delete(claims, name)
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(alg), Key: key}, (&jose.SignerOptions{}).WithHeader("kid", kid))
	if err != nil {
		s.t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		s.t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// The program as it is run: who has a token of the issuer does his own work and sees
// nobody else's, and who has none is told nothing and leaves nothing behind.
func TestServeTakesIdentitiesOfAnIssuer(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	down.Store(true)
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	}))
	t.Cleanup(issuer.Close)

	// Its keys cannot be had as the server starts: that is nobody's fault who calls.
	s := startIdentityServer(t, issuer.URL, issuer.URL+"/jwks")
	if res, body := s.call("get_operation_status", `"operation_id":"op-1"}`, "Bearer "+s.token("ES256", key, "k", nil)); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without keys: %d %s", res.StatusCode, body)
	}
	s.end()

	down.Store(false)
	s = startIdentityServer(t, issuer.URL, issuer.URL+"/jwks")
	tests := []struct{ token, reason string }{
		{"eyJhbGciOiJub25lIn0." + strings.Split(s.token("ES256", key, "k", nil), ".")[1] + ".", "algorithm"},
		{s.token("HS256", public, "k", nil), "algorithm"},
		{s.token("ES256", key, "other", nil), "not one of the issuer's"},
		{s.token("ES256", key, "k", map[string]any{"iss": "https://evil.example.test"}), "another issuer"},
		{s.token("ES256", key, "k", map[string]any{"aud": "https://" + identityHost + "/mcp"}), "another audience"},
		{s.token("ES256", key, "k", map[string]any{"exp": time.Now().Unix() - 60}), "has expired"},
		{s.token("ES256", key, "k", map[string]any{"exp": 1, "EXP": time.Now().Unix() + 60}), "has expired"},
		{s.token("ES256", key, "k", map[string]any{"exp": nil}), "never expires"},
		{s.token("ES256", key, "k", map[string]any{"sub": nil}), "names no subject"},
		{s.token("ES256", key, "k", nil) + ".x", "three parts"},
	}
	challenge := `Bearer error="invalid_token", resource_metadata="https://` + identityHost + `/.well-known/oauth-protected-resource/mcp"`
	for _, tt := range tests {
		res, body := s.call("create_guarded_issue", `"operation_id":"op-1","title":"t"}`, "Bearer "+tt.token)
		if res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") != challenge || strings.Contains(body, tt.reason) {
			t.Errorf("%s: %d %s %s", tt.reason, res.StatusCode, res.Header.Get("WWW-Authenticate"), body)
		}
	}
	identityMetadata(t, s)
	s.end()
	for _, tt := range tests {
		if !strings.Contains(s.log.String(), tt.reason) {
			t.Errorf("the log does not say: %s", tt.reason)
		}
		for _, part := range strings.Split(tt.token, ".") {
			if len(part) > 8 && strings.Contains(s.log.String(), part) {
				t.Errorf("%s: the log has a part of the token in it", tt.reason)
			}
		}
	}
	if position := identityPosition(t, s.ledger); position != 0 {
		t.Errorf("those who were refused wrote: the ledger is at %d", position)
	}

	s = startIdentityServer(t, issuer.URL, issuer.URL+"/jwks")
	alice, bob := "Bearer "+s.token("ES256", key, "k", nil), "Bearer "+s.token("ES256", key, "k", map[string]any{"sub": "bob"})
	_, asked := s.call("create_guarded_issue", `"operation_id":"op-1","title":"t"}`, alice)
	state := requestState.FindStringSubmatch(asked)
	if state == nil {
		t.Fatalf("alice is told %s", asked)
	}
	answer := `"operation_id":"op-1","title":"t"},"requestState":"` + state[1] + `","inputResponses":{"body":{"action":"accept","content":{"body":"b"}}}`
	if res, body := s.call("create_guarded_issue", answer, bob); !strings.Contains(body, "Invalid or expired requestState") {
		t.Errorf("bob, with alice's state, is told %d %s", res.StatusCode, body)
	}
	if res, body := s.call("create_guarded_issue", answer, alice); res.StatusCode != http.StatusOK || !strings.Contains(body, "created 1") {
		t.Errorf("alice is told %d %s", res.StatusCode, body)
	}
	for who, want := range map[string]string{alice: `"state":"applied"`, bob: `"state":"unknown"`} {
		if _, body := s.call("get_operation_status", `"operation_id":"op-1"}`, who); !strings.Contains(body, want) {
			t.Errorf("want %s: %s", want, body)
		}
	}
	for who, want := range map[string]bool{alice: true, bob: false} {
		if res, body := s.call("list_my_operations", "}", who); res.StatusCode != http.StatusOK || strings.Contains(body, "op-1") != want {
			t.Errorf("want op-1 in it: %v; %d %s", want, res.StatusCode, body)
		}
	}
}

// identityMetadata looks at what clients without a token are told (RFC 9728).
func identityMetadata(t *testing.T, s *identityServer) {
	t.Helper()
	for host, want := range map[string]int{identityHost: http.StatusOK, "evil.example.test": http.StatusForbidden} {
		req, err := http.NewRequest(http.MethodGet, s.url+"/.well-known/oauth-protected-resource/mcp", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, body := s.do(req)
		if res.StatusCode != want || want == http.StatusOK && (!strings.Contains(body, `"resource":"https://`+identityHost+`/mcp"`) || !strings.Contains(body, s.issuer)) {
			t.Errorf("metadata for %s: %d %s", host, res.StatusCode, body)
		}
	}
}

func identityPosition(t *testing.T, path string) int64 {
	t.Helper()
	store, err := sqlite.Open(path, &sqlite.Options{Backend: "issues"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	info, err := store.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int64(info.Position)
}
