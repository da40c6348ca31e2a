package jwt_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Many an issuer lets people name claims of their own. One that differs in its letters'
// case from one that counts is another claim.
func TestClaimsCountByTheirExactNames(t *testing.T) {
	i := newIssuer(t)
	s := serve(t, newVerifier(t, i.server.URL+"/jwks"))
	all := claimsOf("alice")
	text := func(from, to string) string {
		plain, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(plain), from) {
			t.Fatalf("there is no %s in %s", from, plain)
		}
		return strings.Replace(string(plain), from, to, 1)
	}
	exp, aud := fmt.Sprintf(`"exp":%d`, all["exp"]), `"aud":"`+audience+`"`
	later := fmt.Sprint(time.Now().Unix() + 6000)
	tests := map[string]string{
		"expired, and EXP":          text(exp, `"exp":1,"EXP":`+later),
		"expired, and Exp":          text(exp, `"exp":1,"Exp":`+later),
		"EXP alone":                 text(exp, `"EXP":`+later),
		"another audience, and AUD": text(aud, `"aud":"https://other.example.test","AUD":"`+audience+`"`),
		"Aud alone":                 text(aud, `"Aud":"`+audience+`"`),
		"not yet valid, and NBF":    text(`"nbf":`, `"nbf":`+later+`,"NBF":`),
		"issued later, and IAT":     text(`"iat":`, `"iat":`+later+`,"IAT":`),
		"another issuer, and ISS":   text(`"iss":`, `"iss":"https://evil.example.test","ISS":`),
		"ISS alone":                 text(`"iss":`, `"ISS":`),
		"SUB alone":                 text(`"sub":`, `"SUB":`),
		"sub with a long s":         text(`"sub":`, `"\u017fub":`), // to encoding/json that is sub
	}
	for name, claims := range tests {
		status, challenge, body := s.call("do", `{"operation_id":"op-1"}`, "Bearer "+sign(t, "RS256", rsaKey, "rsa", claims))
		if status != http.StatusUnauthorized || !strings.HasPrefix(challenge, `Bearer error="invalid_token"`) {
			t.Errorf("%s: %d %s %s", name, status, challenge, body)
		}
	}
	info, err := s.store.Info(t.Context())
	if err != nil || info.Position != 0 || s.effects.Load() != 0 {
		t.Errorf("after all that there were %d effects, and the ledger is at %d: %v", s.effects.Load(), info.Position, err)
	}
	status, _, body := s.call("do", `{"operation_id":"op-1"}`, "Bearer "+sign(t, "RS256", rsaKey, "rsa", text(exp, exp+`,"EXP":1,"SUB":"bob","AUD":"x"`)))
	if status != http.StatusOK || !strings.Contains(body, `{"principal":"https://id.example.test alice"}`) {
		t.Errorf("claims that do not count: %d %s", status, body)
	}
}

// A null, or one in another case, must not hide that there are critical extensions.
func TestCriticalExtensionsAreRefusedHoweverWritten(t *testing.T) {
	i := newIssuer(t)
	v := newVerifier(t, i.server.URL+"/jwks")
	parts := strings.Split(sign(t, "RS256", rsaKey, "rsa", claimsOf("alice")), ".")
	for _, header := range []string{
		`{"alg":"RS256","kid":"rsa","crit":null}`, `{"alg":"RS256","kid":"rsa","crit":[]}`,
		`{"alg":"RS256","kid":"rsa","crit":["b64"],"b64":false}`, `{"alg":"RS256","kid":"rsa","crit":["b64"],"b64":false,"CRIT":null}`,
	} {
		token := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + parts[1] + "." + parts[2]
		if _, err := v.Verify(t.Context(), token, nil); err == nil || !strings.Contains(err.Error(), "critical") {
			t.Errorf("%s: %v", header, err)
		}
	}
}

// Issuer and subject are joined so that no other pair makes the same principal.
func TestPrincipalsDoNotCollide(t *testing.T) {
	i := newIssuer(t)
	v := newVerifier(t, i.server.URL+"/jwks")
	made := map[string]string{}
	for _, sub := range []string{"alice", " alice", "alice ", "https://id.example.test alice", "a lice", "a%20lice", "Alice"} {
		info, err := v.Verify(t.Context(), sign(t, "ES256", ecKey, "ec", claimsOf(sub)), nil)
		if err != nil {
			t.Errorf("%q: %v", sub, err)
			continue
		}
		if before, taken := made[info.UserID]; taken {
			t.Errorf("%q and %q are both %q", before, sub, info.UserID)
		}
		made[info.UserID] = sub
	}
	for name, claims := range map[string]string{ // each would be read as U+FFFD
		"bytes that are no text": "{\"sub\":\"a\xff\"",
		"half a character":       `{"sub":"a\ud800"`,
	} {
		claims += fmt.Sprintf(`,"iss":"https://id.example.test","aud":%q,"exp":%d}`, audience, time.Now().Unix()+600)
		if info, err := v.Verify(t.Context(), sign(t, "ES256", ecKey, "ec", claims), nil); err == nil {
			t.Errorf("%s: became %q", name, info.UserID)
		}
	}
}

func TestATokenThatNamesNoKeyMustLeaveNoChoice(t *testing.T) {
	i := newIssuer(t)
	token := sign(t, "RS256", rsaKey, "", claimsOf("alice"))
	if _, err := newVerifier(t, i.server.URL+"/jwks").Verify(t.Context(), token, nil); err != nil {
		t.Errorf("with one key of its kind: %v", err)
	}
	i.mu.Lock()
	i.keys = append(i.keys, jose.JSONWebKey{Key: strangerKey, KeyID: "second"})
	i.mu.Unlock()
	if _, err := newVerifier(t, i.server.URL+"/jwks").Verify(t.Context(), token, nil); err == nil {
		t.Error("with two keys of its kind it was accepted")
	}
}
