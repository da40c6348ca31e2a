package guard

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// listPage is how many operations one call lists.
const listPage = 50

// listed is one operation as list_my_operations tells of it.
type listed struct {
	OperationID   string          `json:"operationId"`
	Tool          string          `json:"tool"`
	State         mcpreplay.State `json:"state"`
	CreatedAt     string          `json:"createdAt"`
	UpdatedAt     string          `json:"updatedAt"`
	ResultIsError bool            `json:"resultIsError"`
}

type listing struct {
	Operations []listed             `json:"operations"`
	NextCursor string               `json:"nextCursor,omitempty"`
	Ledger     *mcpreplay.LedgerRef `json:"ledger"`
}

// addList adds list_my_operations, for a client that lost the id.
func (g *Guard) addList(server *mcp.Server) {
	no := false
	g.addReader(server, &mcp.Tool{
		Name:        listTool,
		Description: "Lists your own operations, newest first: for finding the operation_id of a call whose reply was lost. A call that is not listed was not recorded, which does not prove that nothing was done.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
"state":{"type":"string","enum":["in_progress","released","awaiting_input","applied","partial","not_applied"]},
"tool":{"type":"string","maxLength":128},
"since":{"type":"string","maxLength":64,"description":"RFC 3339: only operations first recorded at or after."},
"cursor":{"type":"string","maxLength":32,"description":"nextCursor of the page before."}},"additionalProperties":false}`),
		OutputSchema: json.RawMessage(`{"type":"object","properties":{
"operations":{"type":"array","items":{"type":"object","properties":{"operationId":{"type":"string"},"tool":{"type":"string"},"state":{"type":"string"},"createdAt":{"type":"string"},"updatedAt":{"type":"string"},"resultIsError":{"type":"boolean"}},"required":["operationId","tool","state","createdAt","updatedAt","resultIsError"]}},
"nextCursor":{"type":"string"},
"ledger":{"type":"object","properties":{"instance":{"type":"string"},"incarnation":{"type":"integer"},"position":{"type":"integer"}},"required":["instance","incarnation","position"]}},
"required":["operations","ledger"]}`),
		Annotations: &mcp.ToolAnnotations{Title: "My operations", ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: &no, OpenWorldHint: &no},
	}, g.list)
}

func (g *Guard) list(ctx context.Context, principal string, args map[string]string) (any, error) {
	f := mcpreplay.Filter{Principal: principal, State: mcpreplay.State(args["state"]), Tool: args["tool"], Limit: listPage + 1}
	if text := args["since"]; text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, &refusal{reason: mcpreplay.ReasonArguments, detail: "since is not an RFC 3339 time", why: err}
		}
		f.Since = since
	}
	if text := args["cursor"]; text != "" {
		before, err := strconv.ParseInt(text, 10, 64)
		if err != nil || before < 1 {
			return nil, &refusal{reason: mcpreplay.ReasonArguments, detail: "cursor is not one that was given out", why: errors.Join(err)}
		}
		f.Before = before
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.Wait)
	defer cancel()
	info, err := g.store.Info(ctx)
	if err != nil {
		return nil, &refusal{reason: mcpreplay.ReasonUnavailable, why: err}
	}
	records, err := g.store.List(ctx, f)
	if err != nil {
		return nil, &refusal{reason: mcpreplay.ReasonUnavailable, why: err}
	}
	ref := info.Ref()
	out := listing{Operations: []listed{}, Ledger: &ref}
	for i, rec := range records {
		if i == listPage {
			out.NextCursor = strconv.FormatInt(records[i-1].Seq, 10)
			break
		}
		out.Operations = append(out.Operations, listed{
			OperationID:   rec.ID,
			Tool:          rec.Tool,
			State:         rec.State,
			CreatedAt:     rec.CreatedAt.UTC().Format(time.RFC3339Nano),
			UpdatedAt:     rec.UpdatedAt.UTC().Format(time.RFC3339Nano),
			ResultIsError: rec.Result != nil && rec.Result.IsError,
		})
	}
	return out, nil
}
