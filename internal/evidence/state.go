package evidence

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"

	"mcpreplay"
)

// sealed is what the judge reads of opened request state. Its layout is that of
// docs/design.md, opened here once more and not by the guard: the judge does not
// use the code it judges.
type sealed struct {
	Backend   string `json:"backend"`
	Instance  string `json:"instance"`
	Tool      string `json:"tool"`
	Version   string `json:"toolVersion"`
	Principal string `json:"principal"`
	Operation string `json:"operation"`
	Issued    int64  `json:"iat"`
	Expires   int64  `json:"exp"`
	Authority int64  `json:"authority"`
	Retention int64  `json:"retention"`

	Questions map[string]json.RawMessage `json:"questions"` // name to schema

	plain string
}

var errSealed = errors.New("the request state does not open under the published key")

// openState opens request state under the published keys.
func openState(keys *mcpreplay.Keyring, token string) (sealed, error) {
	text, ok := strings.CutPrefix(token, "v1.")
	if !ok {
		return sealed{}, errSealed
	}
	box, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(box) < 16 {
		return sealed{}, errSealed
	}
	key, ok := keys.Derive(hex.EncodeToString(box[:4]), "mcpreplay/request-state/v1", 32)
	if !ok {
		return sealed{}, errSealed
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealed{}, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return sealed{}, err
	}
	plain, err := gcm.Open(nil, box[4:16], box[16:], append([]byte("v1."), box[:4]...))
	if err != nil {
		return sealed{}, errSealed
	}
	var s sealed
	if err := json.Unmarshal(plain, &s); err != nil {
		return sealed{}, errSealed
	}
	s.plain = string(plain)
	return s, nil
}
