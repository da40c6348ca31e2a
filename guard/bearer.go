package guard

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

// minToken is short for a secret but rules out a word. Static tokens are compared
// as hashes, so what matters is that nobody guesses one.
const minToken = 16

type staticToken struct {
	sum       [sha256.Size]byte
	principal string
}

// denied is why a request was not authenticated.
type denied struct {
	status    int
	challenge string
	bad       *badMessage
}

func (h *httpHandler) deny(status int, fault, what string, why error) *denied {
	d := &denied{status: status, bad: invalid(what)}
	d.bad.why = why
	if status == http.StatusServiceUnavailable {
		return d
	}
	d.challenge = "Bearer"
	for _, p := range [][2]string{{"error", fault}, {"resource_metadata", h.o.ResourceMetadata}} {
		if p[1] == "" {
			continue
		}
		if d.challenge != "Bearer" {
			d.challenge += ","
		}
		d.challenge += fmt.Sprintf(" %s=%q", p[0], p[1])
	}
	return d
}

// authenticate says on whose behalf a request runs (RFC 6750).
func (h *httpHandler) authenticate(r *http.Request) (*auth.TokenInfo, *denied) {
	values := r.Header.Values("Authorization")
	if len(values) > 1 {
		return nil, h.deny(http.StatusBadRequest, "invalid_request", "more than one Authorization header", nil)
	}
	scheme, token, _ := strings.Cut(strings.Join(values, ""), " ")
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, h.deny(http.StatusUnauthorized, "", "a bearer token is required", nil)
	}
	if h.o.Verifier == nil {
		if principal := h.principalOf(token); principal != "" {
			return &auth.TokenInfo{UserID: principal}, nil
		}
		return nil, h.deny(http.StatusUnauthorized, "invalid_token", "invalid token", nil)
	}
	info, err := h.o.Verifier(r.Context(), token, r)
	switch {
	case errors.Is(err, auth.ErrInvalidToken):
	case errors.Is(err, auth.ErrOAuth):
		return nil, h.deny(http.StatusBadRequest, "invalid_request", "invalid authorization", err)
	case err != nil:
		return nil, h.deny(http.StatusServiceUnavailable, "", "authentication is unavailable", err)
	case info == nil || info.UserID == "":
		err = errors.New("the verifier named no principal")
	case info.Expiration.IsZero():
		err = errors.New("the token has no expiration")
	case !time.Now().Before(info.Expiration):
		err = errors.New("the token has expired")
	default:
		return info, nil
	}
	return nil, h.deny(http.StatusUnauthorized, "invalid_token", "invalid token", err)
}

// principalOf compares with every token, and in constant time, so that the time it
// takes tells nothing about any of them.
func (h *httpHandler) principalOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	found := ""
	for _, t := range h.tokens {
		if subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1 {
			found = t.principal
		}
	}
	return found
}

type (
	verifiedKey        struct{}
	unauthenticatedKey struct{}
)

// withVerified puts a token that was verified where the SDK's handlers look for
// it. Only the SDK's own middleware can do that, and its answers to bad tokens
// lack the challenge and repeat the verifier's error.
func withVerified(next http.Handler) http.Handler {
	verified := func(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
		info, _ := ctx.Value(verifiedKey{}).(*auth.TokenInfo)
		return info, nil
	}
	return auth.RequireBearerToken(verified, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}

// unauthenticatedAllowed reports whether a call arrived over HTTP where nobody is
// asked who he is, as opposed to one whose token got lost on the way.
func unauthenticatedAllowed(ctx context.Context) bool {
	allowed, _ := ctx.Value(unauthenticatedKey{}).(bool)
	return allowed
}
