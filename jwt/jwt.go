// Package jwt tells on whose behalf a request over HTTP runs: it checks bearer tokens
// that are JSON Web Tokens (RFC 7519) signed by one issuer, whose keys are a key set
// (RFC 7517) in a file or behind a URL.
//
//	v, err := jwt.New(&jwt.Options{Issuer: "https://id.example.com", Audience: "https://mcp.example.com/mcp", Keys: "https://id.example.com/jwks.json"})
//	handler, err := guard.HTTPHandler(server, &guard.HTTPOptions{Verifier: v.Verify})
package jwt

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4"
	"github.com/modelcontextprotocol/go-sdk/auth"

	"mcpreplay"
)

// maxToken bounds a token, in bytes. HTTP servers bound all headers together at
// little more.
const maxToken = 16 << 10

// DefaultAlgorithms are those that are accepted unless others are named. All are
// asymmetric: the key set of an issuer is public, so a symmetric one would be no secret.
var DefaultAlgorithms = []string{"RS256", "PS256", "ES256", "EdDSA"}

// asymmetric are all algorithms that may be named.
var asymmetric = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// Options configure a Verifier.
type Options struct {
	// Issuer is the iss of every token, exactly. Required.
	Issuer string

	// Audience must be among the aud of every token: a token for somebody else is
	// not for this server. Required; it is the URL of the server, as clients name it
	// as the resource (RFC 8707).
	Audience string

	// Keys is the issuer's key set: a file, or an https URL (http on loopback only).
	// Required.
	Keys string

	// Algorithms that a token may be signed with. Defaults to DefaultAlgorithms.
	Algorithms []string

	// Skew is how far the clocks of issuer and server may differ. Defaults to 30
	// seconds.
	Skew time.Duration

	// Principal makes the principal of a token's claims. Whatever two issuers may
	// claim, two people must not become one. Defaults to issuer and subject, with a
	// space between them, which no issuer has.
	Principal func(claims map[string]any) (string, error)

	// Client fetches the key set. Defaults to one with a timeout.
	Client *http.Client

	// Logger is told of key sets that cannot be had. Nil discards it.
	Logger *slog.Logger
}

// Verifier checks the tokens of one issuer. It is safe for concurrent use.
type Verifier struct {
	o    Options
	algs []jose.SignatureAlgorithm
	keys *keySet
	now  func() time.Time
}

// New makes a verifier. A key set in a file is read at once, and one behind a URL when
// the first token comes.
func New(o *Options) (*Verifier, error) {
	var r Options
	if o != nil {
		r = *o
	}
	var errs []error
	if r.Issuer == "" || strings.ContainsFunc(r.Issuer, unicode.IsSpace) {
		errs = append(errs, errors.New("jwt: Options.Issuer: must name the issuer, without spaces"))
	}
	if r.Audience == "" {
		errs = append(errs, errors.New("jwt: Options.Audience: must say whom the tokens are for"))
	}
	if len(r.Algorithms) == 0 {
		r.Algorithms = DefaultAlgorithms
	}
	v := &Verifier{now: time.Now}
	for _, alg := range r.Algorithms {
		if !slices.Contains(asymmetric, alg) {
			errs = append(errs, fmt.Errorf("jwt: Options.Algorithms: %q is none of %s", alg, strings.Join(asymmetric, ", ")))
		}
		v.algs = append(v.algs, jose.SignatureAlgorithm(alg))
	}
	if r.Skew == 0 {
		r.Skew = 30 * time.Second
	}
	if r.Skew < 0 || r.Skew > 10*time.Minute {
		errs = append(errs, fmt.Errorf("jwt: Options.Skew: must be above zero and at most 10 minutes (got %v)", r.Skew))
	}
	if r.Principal == nil {
		r.Principal = issuerAndSubject
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if v.keys, err = newKeySet(r.Keys, r.Client, r.Logger); err != nil {
		errs = append(errs, fmt.Errorf("jwt: Options.Keys: %w", err))
	}
	v.o = r
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return v, nil
}

func issuerAndSubject(claims map[string]any) (string, error) {
	issuer, _ := claims["iss"].(string)
	subject, _ := claims["sub"].(string)
	return issuer + " " + subject, nil
}

// invalid is a token that is refused, whatever the reason; who sent it is not told it.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", auth.ErrInvalidToken, fmt.Errorf(format, args...))
}

// Verify is an auth.TokenVerifier. Its error matches auth.ErrInvalidToken if the token
// is refused; any other says that the issuer's keys cannot be had. No error has a part
// of the token in it.
func (v *Verifier) Verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	header, err := readHeader(token)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(v.o.Algorithms, header.Alg) {
		return nil, invalid("its algorithm is not accepted")
	}
	signed, err := jose.ParseSignedCompact(token, v.algs)
	if err != nil {
		return nil, invalid("it is no signed token")
	}
	keys, err := v.keys.find(ctx, v.now(), header.Kid, header.Alg)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if payload, err := signed.Verify(key.Key); err == nil {
			return v.accept(payload)
		}
	}
	if len(keys) == 0 {
		return nil, invalid("its key is not one of the issuer's")
	}
	return nil, invalid("its signature is not that of the issuer's key")
}

// members are those of a JSON object by their exact names. A struct would not do: to
// encoding/json a claim EXP is exp as well, and many an issuer lets people name claims.
type members map[string]json.RawMessage

func readMembers(text []byte) (members, error) {
	if err := mcpreplay.CheckJSON(text, nil); err != nil { // a claim twice is two tokens
		return nil, err
	}
	var m members
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	if m == nil {
		return nil, errors.New("it is null")
	}
	return m, nil
}

// read fills what into has pointers to, by name. What is not there stays as it is.
func (m members) read(into map[string]any) error {
	for name, value := range into {
		if raw, ok := m[name]; ok {
			if err := json.Unmarshal(raw, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// header is what of a token's header counts. What it says about where its own key is
// (jku, jwk, x5u, x5c) is not heard.
type header struct{ Alg, Kid, Typ, Cty string }

func readHeader(token string) (h header, err error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 {
		return h, invalid("it is not a token of three parts, and of at most %d bytes", maxToken)
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(parts[0])
	var m members
	if err == nil {
		m, err = readMembers(text)
	}
	if err == nil {
		err = m.read(map[string]any{"alg": &h.Alg, "kid": &h.Kid, "typ": &h.Typ, "cty": &h.Cty})
	}
	_, critical := m["crit"]
	typ := strings.TrimPrefix(strings.ToLower(h.Typ), "application/")
	switch {
	case err != nil:
		return h, invalid("its header cannot be read")
	case critical:
		return h, invalid("its header has critical extensions")
	case typ != "" && typ != "jwt" && typ != "at+jwt", h.Cty != "":
		return h, invalid("it is of another type")
	}
	return h, nil
}

// claims are those that count.
type claims struct {
	Issuer, Subject, Scope       string
	Audience                     json.RawMessage
	Expires, NotBefore, IssuedAt *float64
}

// accept holds the claims of a token that the issuer has signed.
func (v *Verifier) accept(payload []byte) (*auth.TokenInfo, error) {
	m, err := readMembers(payload)
	if err != nil {
		return nil, invalid("its claims are not one JSON object in one reading")
	}
	var c claims
	var all map[string]any
	err = m.read(map[string]any{
		"iss": &c.Issuer, "sub": &c.Subject, "scope": &c.Scope, "aud": &c.Audience,
		"exp": &c.Expires, "nbf": &c.NotBefore, "iat": &c.IssuedAt,
	})
	if err != nil || json.Unmarshal(payload, &all) != nil {
		return nil, invalid("its claims cannot be read")
	}
	now, skew := v.now(), v.o.Skew
	switch {
	case c.Issuer != v.o.Issuer:
		return nil, invalid("it is of another issuer")
	case !forAudience(c.Audience, v.o.Audience):
		return nil, invalid("it is for another audience")
	case c.Subject == "":
		return nil, invalid("it names no subject")
	case c.Expires == nil:
		return nil, invalid("it never expires")
	case !now.Before(at(*c.Expires).Add(skew)):
		return nil, invalid("it has expired")
	case c.NotBefore != nil && now.Before(at(*c.NotBefore).Add(-skew)):
		return nil, invalid("it is not valid yet")
	case c.IssuedAt != nil && now.Before(at(*c.IssuedAt).Add(-skew)):
		return nil, invalid("it was issued in the future")
	}
	principal, err := v.o.Principal(all)
	if err == nil {
		err = mcpreplay.ValidatePrincipal(principal)
	}
	if err != nil {
		return nil, invalid("its claims make no principal: %w", err)
	}
	return &auth.TokenInfo{UserID: principal, Scopes: strings.Fields(c.Scope), Expiration: at(*c.Expires).Add(skew)}, nil
}

// at is a NumericDate, within what a time can be.
func at(seconds float64) time.Time {
	const bound = 1 << 40
	return time.UnixMilli(int64(min(max(seconds, -bound), bound) * 1000))
}

// forAudience reports whether aud, one text or several, has want among it.
func forAudience(aud json.RawMessage, want string) bool {
	var one string
	if json.Unmarshal(aud, &one) == nil {
		return one == want
	}
	var several []string
	return json.Unmarshal(aud, &several) == nil && slices.Contains(several, want)
}
