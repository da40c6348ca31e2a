package jwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// How often a key set is had anew. Tokens do not wait for that before staleKeys, and
// then once. A set that cannot be had is used for as long as keepKeys: a key that was
// taken back in between is still accepted then.
const (
	refreshKeys = 5 * time.Minute
	staleKeys   = 10 * time.Minute
	refreshSoon = 10 * time.Second // because a key is not known, or the last time failed
	keepKeys    = 24 * time.Hour
	fetchTime   = 10 * time.Second
	maxKeySet   = 1 << 20
	minRSA      = 2048
)

// keySet is an issuer's keys as they were had last.
type keySet struct {
	source string
	isURL  bool
	client *http.Client
	log    *slog.Logger

	mu     sync.Mutex
	keys   []jose.JSONWebKey
	had    time.Time     // when they were had last
	tried  time.Time     // when that was last tried
	trying chan struct{} // closed when it has been
	idle   bool          // nobody had asked for so long that tokens wait for this one
}

func newKeySet(source string, client *http.Client, log *slog.Logger) (*keySet, error) {
	s := &keySet{source: source, client: client, log: log}
	if s.client == nil {
		s.client = &http.Client{Timeout: fetchTime, CheckRedirect: secureRedirect}
	}
	u, err := url.Parse(source)
	switch {
	case source == "":
		return nil, errors.New("must be a file or a URL")
	case err == nil && (u.Scheme == "https" || u.Scheme == "http" && loopback(u.Hostname())):
		s.isURL = true
		return s, nil
	case err == nil && u.Scheme == "http":
		return nil, errors.New("keys that come over plain http are anybody's: use https")
	}
	keys, err := s.read(context.Background())
	if err != nil {
		return nil, err
	}
	s.keys, s.had, s.tried = keys, time.Now(), time.Now()
	return s, nil
}

func secureRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 3 || req.URL.Scheme != "https" && !loopback(req.URL.Hostname()) {
		return errors.New("redirected to where keys are not taken from")
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// find returns the keys that may have signed a token: the one that it names, or, if it
// names none, the only one of its algorithm. The error is that there are no keys.
func (s *keySet) find(ctx context.Context, now time.Time, kid, alg string) ([]jose.JSONWebKey, error) {
	s.mu.Lock()
	found := match(s.keys, kid, alg)
	age, since := now.Sub(s.had), now.Sub(s.tried)
	usable := len(s.keys) > 0 && age < keepKeys
	due := (age >= refreshKeys || len(found) == 0) && since >= refreshSoon
	var wait chan struct{}
	if due && s.trying == nil {
		// A key may have been taken back while no token came. A source that fails is
		// tried often, so that tokens do not wait for it again and again.
		s.idle = age >= staleKeys && since >= refreshKeys
		s.tried, s.trying = now, make(chan struct{})
		go s.refresh(now, s.trying)
	}
	if !usable || len(found) == 0 || s.idle {
		wait = s.trying
	}
	s.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("jwt: the issuer's keys: %w", ctx.Err())
		}
		s.mu.Lock()
		found = match(s.keys, kid, alg)
		usable = len(s.keys) > 0 && now.Sub(s.had) < keepKeys
		s.mu.Unlock()
	}
	if !usable {
		return nil, errors.New("jwt: the issuer's keys cannot be had")
	}
	return found, nil
}

// refresh has the keys anew. Those that were had stay if that fails.
func (s *keySet) refresh(now time.Time, done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTime)
	defer cancel()
	keys, err := s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.log.Error("the issuer's keys cannot be had", "from", s.place(), "error", err)
	} else {
		s.keys, s.had = keys, now
	}
	s.trying, s.idle = nil, false
	close(done)
}

// place is the source without what may be a secret in it.
func (s *keySet) place() string {
	if u, err := url.Parse(s.source); s.isURL && err == nil {
		u.RawQuery = ""
		return u.Redacted()
	}
	return s.source
}

func (s *keySet) read(ctx context.Context) ([]jose.JSONWebKey, error) {
	text, err := s.text(ctx)
	if err != nil {
		return nil, err
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if len(text) > maxKeySet || json.Unmarshal(text, &set) != nil {
		return nil, errors.New("it is no key set")
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		var meant struct {
			Operations []string `json:"key_ops"`
		}
		if json.Unmarshal(raw, &key) != nil || !usable(&key) || json.Unmarshal(raw, &meant) != nil ||
			meant.Operations != nil && !slices.Contains(meant.Operations, "verify") && !slices.Contains(meant.Operations, "sign") {
			continue // of a kind that is not known, or not for this
		}
		keys = append(keys, key.Public())
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no usable key in it")
	}
	return keys, nil
}

func (s *keySet) text(ctx context.Context) ([]byte, error) {
	if !s.isURL {
		f, err := os.Open(s.source)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, maxKeySet+1))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.source, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	res, err := s.client.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return nil, failed.Err // without the URL, whose query may be a secret
	}
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, maxKeySet+1))
}

// usable reports whether a key may sign tokens: a public key, or the public half of one
// that should not be there, long enough, and not meant for something else.
func usable(key *jose.JSONWebKey) bool {
	if key.Use != "" && key.Use != "sig" {
		return false
	}
	switch k := key.Key.(type) {
	case *rsa.PublicKey:
		return k.N.BitLen() >= minRSA
	case *rsa.PrivateKey:
		return k.N.BitLen() >= minRSA
	case *ecdsa.PublicKey, *ecdsa.PrivateKey, ed25519.PublicKey, ed25519.PrivateKey:
		return true
	}
	return false
}

// match finds the keys of an id that fit an algorithm.
func match(keys []jose.JSONWebKey, kid, alg string) (found []jose.JSONWebKey) {
	for _, key := range keys {
		if (kid == "" || key.KeyID == kid) && (key.Algorithm == "" || key.Algorithm == alg) && fits(key.Key, alg) {
			found = append(found, key)
		}
	}
	if kid == "" && len(found) > 1 {
		return nil // which of them is not for a token to leave open
	}
	return found
}

// fits reports whether a key is of the kind that an algorithm uses.
func fits(key any, alg string) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")
	case *ecdsa.PublicKey:
		curve := map[string]string{"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[alg]
		return k.Curve.Params().Name == curve
	case ed25519.PublicKey:
		return alg == "EdDSA"
	}
	return false
}
