package jwt_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"mcpreplay/jwt"
)

// A key is taken back while no token comes: the first one that comes then must not be
// accepted because of keys that were had long ago.
func TestARemovedKeyIsRefusedAfterAQuietTime(t *testing.T) {
	for _, quiet := range []time.Duration{10 * time.Minute, 12 * time.Hour, 23 * time.Hour} {
		i := newIssuer(t)
		v := newVerifier(t, i.server.URL+"/jwks")
		now := time.Now()
		v.SetClock(func() time.Time { return now })
		token := sign(t, "RS256", rsaKey, "rsa", with(claimsOf("mallory"), "exp", now.Unix()+1e6))
		if _, err := v.Verify(t.Context(), token, nil); err != nil {
			t.Fatal(err)
		}
		i.mu.Lock()
		i.keys = []jose.JSONWebKey{{Key: strangerKey, KeyID: "new"}}
		i.mu.Unlock()
		now = now.Add(quiet)
		if _, err := v.Verify(t.Context(), token, nil); err == nil || !strings.Contains(err.Error(), "invalid token") {
			t.Errorf("after %v: %v", quiet, err)
		}
	}
}

// Tokens whose key is known do not wait for a source that hangs, and nobody can make
// the server ask it all the time.
func TestASourceThatHangsHoldsUpNoKnownKey(t *testing.T) {
	i := newIssuer(t)
	v := newVerifier(t, i.server.URL+"/jwks")
	now := time.Now()
	v.SetClock(func() time.Time { return now })
	token := sign(t, "RS256", rsaKey, "rsa", with(claimsOf("alice"), "exp", now.Unix()+1e6))
	if _, err := v.Verify(t.Context(), token, nil); err != nil {
		t.Fatal(err)
	}
	hanging, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	i.will(func(http.ResponseWriter) {
		hanging <- struct{}{}
		<-release
	})
	now = now.Add(6 * time.Minute) // time to have the keys anew
	cancelled, cancel := context.WithCancel(t.Context())
	cancel() // whoever waits ends in an error
	if _, err := v.Verify(cancelled, token, nil); err != nil {
		t.Errorf("as the source is asked: %v", err)
	}
	select {
	case <-hanging:
	case <-time.After(time.Minute):
		t.Fatal("the source was not asked")
	}
	for n := range 50 {
		unknown := sign(t, "EdDSA", edKey, fmt.Sprintf("no-%d", n), with(claimsOf("mallory"), "exp", now.Unix()+1e6))
		if _, err := v.Verify(cancelled, unknown, nil); err == nil {
			t.Fatal("an unknown key was accepted")
		}
	}
	if _, err := v.Verify(cancelled, token, nil); err != nil {
		t.Errorf("as the source hangs: %v", err)
	}
	if asked := i.asked.Load(); asked != 2 {
		t.Errorf("the source was asked %d times, want 2", asked)
	}
}

// Unknown keys are no means to hammer the issuer.
func TestAStreamOfUnknownKeysAsksSeldom(t *testing.T) {
	i := newIssuer(t)
	v := newVerifier(t, i.server.URL+"/jwks")
	now := time.Now()
	v.SetClock(func() time.Time { return now })
	for n := range 100 { // a minute of them
		unknown := sign(t, "EdDSA", edKey, fmt.Sprintf("no-%d", n), with(claimsOf("mallory"), "exp", now.Unix()+1e6))
		if _, err := v.Verify(t.Context(), unknown, nil); err == nil {
			t.Fatal("an unknown key was accepted")
		}
		now = now.Add(600 * time.Millisecond)
	}
	if asked := i.asked.Load(); asked > 7 {
		t.Errorf("within a minute the issuer was asked %d times", asked)
	}
}

// The query of a key set's URL may hold a secret, which no log is told.
func TestTheQueryOfASourceIsNotLogged(t *testing.T) {
	i := newIssuer(t)
	i.server.Close()
	var log strings.Builder
	v, err := jwt.New(&jwt.Options{Issuer: "https://id.example.test", Audience: "https://mcp.example.test", Keys: i.server.URL + "/jwks?code=s3cret",
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Verify(t.Context(), sign(t, "RS256", rsaKey, "rsa", claimsOf("alice")), nil)
	if err == nil || strings.Contains(err.Error()+log.String(), "s3cret") || !strings.Contains(log.String(), "/jwks") {
		t.Errorf("%v, and in the log %s", err, log.String())
	}
}
