package evidence

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"

	"mcpreplay"
)

// What every server of the lab is started with, unless its transcript says
// otherwise. The secrets and tokens are published here and protect nothing.
const (
	T0        = 1790035200 // 2026-09-22T00:00:00Z, where the clock stands still
	Backend   = "sqlite:lab"
	Principal = "alice"
	Authority = 300 // seconds
	Retention = 360
	StateTTL  = 600

	ProtocolModern = "2026-07-28"
	ProtocolLegacy = "2025-11-25"
)

// Secrets of request state and of fingerprints.
var (
	StateSecret       = sha256.Sum256([]byte("published: request state of the mcpreplay lab"))
	FingerprintSecret = sha256.Sum256([]byte("published: fingerprints of the mcpreplay lab"))
)

// Token is the bearer token of a principal.
func Token(principal string) string { return "published-lab-token-of-" + principal }

// principalOf is whom a request over HTTP is from, by its Authorization header:
// one, of a scheme whose name has no case (RFC 9110, section 11.1).
func principalOf(h http.Header) (name, shown string) {
	given := h.Values("Authorization")
	if len(given) == 0 {
		return "", "nobody"
	}
	if len(given) > 1 {
		return "", "several tokens"
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	name, ok := strings.CutPrefix(token, Token(""))
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return "", "a token of scheme " + scheme
	case !ok || name != "alice" && name != "bob":
		return "", "a stranger"
	case scheme != "Bearer":
		return name, name + " (" + scheme + ")"
	}
	return name, name
}

func ring(secret [32]byte) *mcpreplay.Keyring {
	k, err := mcpreplay.NewKeyring(secret[:])
	if err != nil {
		panic(err) // 32 bytes
	}
	return k
}

// offset is a time in microseconds as a reader of the cases knows it.
func offset(us int64) string {
	if part := us % 1e6; part != 0 { // no time of the lab is between two seconds
		return fmt.Sprintf("T0%+dµs", us-T0*1e6)
	}
	seconds := us/1e6 - T0
	if seconds == 0 {
		return "T0"
	}
	return fmt.Sprintf("T0%+ds", seconds)
}
