package guard

import (
	"context"
	"errors"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// modernVersion is the first protocol version with multi round-trip requests.
const modernVersion = "2026-07-28"

// era is how a client can be asked for input.
type era int

const (
	eraModern era = iota // answers input_required by calling again
	eraLegacy            // is asked by the SDK in the middle of the call, once
	eraSilent            // cannot be asked
)

// eraOf finds out how the client of a call can be asked. The SDK goes by the
// version the session asked for, not by the request's own or the negotiated one:
// a client that initialized in one era and calls in the other would get questions
// it cannot answer, so it is not asked at all. Over stateless HTTP the SDK cannot
// reach a legacy client.
func eraOf(req *mcp.CallToolRequest) era {
	version, _ := req.Params.Meta[mcp.MetaKeyProtocolVersion].(string)
	modernCall := version >= modernVersion
	modernSession := true
	if p := req.Session.InitializeParams(); p != nil {
		modernSession = p.ProtocolVersion >= modernVersion
	}
	switch {
	case modernCall && modernSession:
		return eraModern
	case !modernCall && !modernSession && !overHTTP(req.Extra):
		return eraLegacy
	}
	return eraSilent
}

// mayHandshake reports whether a call without an id can be given one: by a round
// that carries nothing but sealed state. Legacy clients are not sent one (the SDK
// answers them "the server is busy").
func (a *attempt) mayHandshake() bool { return eraOf(a.req) == eraModern }

// declaresElicitation reports whether the client said that it can be asked by a
// form. The SDK does not look (go-sdk v1.8.0); the specification forbids asking
// a client that did not (basic/patterns/mrtr).
func declaresElicitation(req *mcp.CallToolRequest) bool {
	caps := req.ClientCapabilities()
	if caps == nil || caps.Elicitation == nil {
		return false
	}
	return caps.Elicitation.Form != nil || caps.Elicitation.URL == nil
}

func overHTTP(extra *mcp.RequestExtra) bool { return extra != nil && extra.Header != nil }

// principal is the identity a call runs for: that of its verified bearer token,
// or over stdio the configured one. It never comes from arguments or from what a
// client says of itself.
func (g *Guard) principal(ctx context.Context, extra *mcp.RequestExtra) (string, error) {
	if extra != nil && extra.TokenInfo != nil {
		return extra.TokenInfo.UserID, mcpreplay.ValidatePrincipal(extra.TokenInfo.UserID)
	}
	if overHTTP(extra) && !unauthenticatedAllowed(ctx) {
		return "", errors.New("a call over HTTP without a verified token")
	}
	return g.opts.Principal, nil
}
