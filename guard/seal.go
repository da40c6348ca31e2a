package guard

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"mcpreplay"
)

// Request state is "v1." and the base64url of
//
//	key id (4 bytes) ‖ nonce (12 bytes) ‖ AES-256-GCM(claims)
//
// with the prefix and the key id as associated data. The key is derived from a
// secret of the ring under sealLabel. The client can neither read nor change it.
const (
	sealPrefix   = "v1."
	sealLabel    = "mcpreplay/request-state/v1"
	sealVersion  = 1
	maxStateSize = 64 << 10

	// maxSkew is how far in the future request state may have been issued: by a
	// process with a slightly faster clock, before anything was committed.
	maxSkew = time.Minute
)

// claims is what request state says. Whoever may present it is bound in it;
// being used once is not: that is decided by the ledger.
type claims struct {
	Version     int                        `json:"v"`
	IssuedAt    int64                      `json:"iat"` // microseconds, ledger time
	ExpiresAt   int64                      `json:"exp"`
	Server      string                     `json:"srv"`
	Backend     string                     `json:"backend"`
	Instance    string                     `json:"instance"`
	Incarnation int64                      `json:"incarnation"`
	Method      string                     `json:"method"`
	Tool        string                     `json:"tool"`
	ToolVersion string                     `json:"toolVersion"`
	Arguments   string                     `json:"args"` // SHA-256 of the canonical arguments, hex
	Sent        string                     `json:"sent"` // the same before defaults were filled in
	Principal   string                     `json:"principal"`
	Operation   string                     `json:"operation"`
	Round       int                        `json:"round"`
	Questions   map[string]json.RawMessage `json:"questions"` // asked in this round: name to schema
	Answers     json.RawMessage            `json:"answers"`   // of earlier rounds, normal form; null when none
	Authority   int64                      `json:"authority"` // microseconds
	Retention   int64                      `json:"retention"`
	Nonce       string                     `json:"nonce"` // makes every issue another state
}

var errState = errors.New("request state")

// errStale is the one fault of request state that lets a record be found: it was
// good for this request once, and time or a deploy has passed since.
var errStale = fmt.Errorf("%w is stale", errState)

// stateError is why request state was refused. It is for the log: the wire says
// the same of all of them.
func stateError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errState}, args...)...)
}

// seal encrypts c under the newest key and returns the token and the plaintext
// that a continuation is bound by.
func seal(keys *mcpreplay.Keyring, c claims) (token string, err error) {
	plain, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	id := keys.IDs()[0]
	aead, kid, err := aeadFor(keys, id)
	if err != nil {
		return "", err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return "", err
	}
	sealed := append(append([]byte(nil), kid...), nonce...)
	sealed = aead.Seal(sealed, nonce, plain, associated(kid))
	return sealPrefix + base64.RawURLEncoding.EncodeToString(sealed), nil
}

// open decrypts a token and returns its claims and their plaintext. It accepts
// exactly the one text that seal made: no other spelling of the base64, no other
// spelling of the claims.
func open(keys *mcpreplay.Keyring, token string) (c claims, plain string, err error) {
	if len(token) > maxStateSize {
		return c, "", stateError("%d bytes long", len(token))
	}
	if len(token) < len(sealPrefix) || token[:len(sealPrefix)] != sealPrefix {
		return c, "", stateError("no known version")
	}
	text := token[len(sealPrefix):]
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// The decoder skips line breaks, so the text is made again and compared.
	if err != nil || base64.RawURLEncoding.EncodeToString(sealed) != text {
		return c, "", stateError("not canonical base64url")
	}
	if len(sealed) < 4 {
		return c, "", stateError("too short")
	}
	aead, kid, err := aeadFor(keys, hex.EncodeToString(sealed[:4]))
	if err != nil {
		return c, "", err
	}
	if len(sealed) < len(kid)+aead.NonceSize() {
		return c, "", stateError("too short")
	}
	nonce, box := sealed[4:4+aead.NonceSize()], sealed[4+aead.NonceSize():]
	text2, err := aead.Open(nil, nonce, box, associated(kid))
	if err != nil {
		return c, "", stateError("does not authenticate")
	}
	dec := json.NewDecoder(bytes.NewReader(text2))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, "", stateError("claims: %v", err)
	}
	again, err := json.Marshal(c)
	if err != nil || !bytes.Equal(again, text2) {
		return c, "", stateError("claims are not in the form they are issued in")
	}
	if c.Version != sealVersion {
		return c, "", stateError("claims version %d", c.Version)
	}
	return c, string(text2), nil
}

func aeadFor(keys *mcpreplay.Keyring, id string) (cipher.AEAD, []byte, error) {
	key, ok := keys.Derive(id, sealLabel, 32)
	if !ok {
		return nil, nil, stateError("sealed by an unknown key")
	}
	kid, err := hex.DecodeString(id)
	if err != nil || len(kid) != 4 {
		return nil, nil, fmt.Errorf("key id %q is not 4 bytes of hexadecimal", id)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCM(block)
	return aead, kid, err
}

func associated(kid []byte) []byte { return append([]byte(sealPrefix), kid...) }

// admit checks that c was issued for this attempt by this server over this
// ledger, and is still good.
func (g *Guard) admit(c claims, a *attempt, ledger mcpreplay.Info) error {
	now := ledger.Time.UnixMicro()
	switch {
	case c.Server != g.opts.Name || c.Backend != ledger.Backend:
		return stateError("for another server or backend")
	case c.Instance != ledger.Instance || c.Incarnation != ledger.Incarnation:
		return stateError("for another ledger")
	case c.Method != methodCall || c.Tool != a.tool.name:
		return stateError("for another tool")
	case c.Principal != a.op.Principal:
		return stateError("for another principal")
	case c.Arguments != argumentsDigest(a.canonical) && c.Sent != argumentsDigest(a.asSent):
		return stateError("for other arguments")
	case c.IssuedAt > now+maxSkew.Microseconds():
		return stateError("issued in the future")
	case c.ExpiresAt <= now:
		return fmt.Errorf("%w: expired", errStale)
	case c.ToolVersion != a.tool.version:
		return fmt.Errorf("%w: for another version of the tool", errStale)
	case c.Round > 0 && c.Arguments != argumentsDigest(a.canonical):
		// The user was asked about what the schema then filled in.
		return fmt.Errorf("%w: the defaults have changed since the question", errStale)
	}
	return nil
}

func argumentsDigest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

func newNonce() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(b[:]), nil
}

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }
