package guard

import (
	"encoding/json"
	"fmt"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Keys in _meta. The prefix is ours; the specification reserves others
// (basic/index, _meta).
const (
	metaNote = "mcpreplay/note" // on the text block a replay appends
)

// notRecorded marks an answer that left no record.
func (a *attempt) notRecorded() mcpreplay.Mark {
	return mcpreplay.Mark{OperationID: a.op.ID, State: mcpreplay.StateUnknown, Ledger: a.ledger.Ref()}
}

// recorded marks the result of a record.
func recorded(rec mcpreplay.Record, replayed bool) mcpreplay.Mark {
	return mcpreplay.Mark{
		OperationID: rec.ID,
		State:       rec.State.Observed(),
		Replayed:    replayed,
		RecordedAt:  rec.UpdatedAt.UTC().Format(time.RFC3339Nano),
		Ledger:      rec.Ledger.Ref(),
	}
}

// mark adds m to the _meta of res, which must be the caller's own.
func (a *attempt) mark(res *mcp.CallToolResult, m mcpreplay.Mark) *mcp.CallToolResult {
	if res.Meta == nil {
		res.Meta = mcp.Meta{}
	}
	res.Meta[mcpreplay.MetaOperation] = m
	return res
}

// reply answers with the stored result of rec. The first answer is made from the
// stored bytes just as every replay is, so that they cannot differ.
func (a *attempt) reply(rec mcpreplay.Record, replayed bool) (*mcp.CallToolResult, error) {
	var res *mcp.CallToolResult
	switch {
	case rec.Result == nil:
		return a.unknown(fmt.Errorf("a %s record without a result", rec.State)), nil
	case rec.Result.Dropped():
		res = droppedResult(rec)
	default:
		var err error
		if res, err = decodeResult(rec.Result.Body); err != nil {
			return a.unknown(fmt.Errorf("decode the stored result: %w", err)), nil
		}
	}
	if replayed && !a.g.opts.NoReplayNote {
		res.Content = append(res.Content, replayNote(rec))
	}
	return a.mark(res, recorded(rec, replayed)), nil
}

// replayNote tells a model, which rarely sees _meta, that this is old news.
func replayNote(rec mcpreplay.Record) mcp.Content {
	text := fmt.Sprintf("This is the recorded result of operation %s from %s. Nothing ran again.",
		rec.ID, rec.UpdatedAt.UTC().Format(time.RFC3339))
	if rec.Result.IsError {
		text += " The failure it tells of is that of the earlier call, not a new one."
	}
	return &mcp.TextContent{Text: text, Meta: mcp.Meta{metaNote: true}}
}

// droppedResult stands for a result whose bytes retention has dropped.
func droppedResult(rec mcpreplay.Record) *mcp.CallToolResult {
	text := fmt.Sprintf("Operation %s is %s. Its result is not kept: it had %d bytes with SHA-256 %x.",
		rec.ID, rec.State, rec.Result.Size, rec.Result.Digest)
	return &mcp.CallToolResult{IsError: rec.Result.IsError, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// decodeResult makes a result of stored bytes whose structured content and _meta,
// its own and those of its blocks, are exactly the stored ones. The SDK's own
// decoding would round integers beyond 2^53 in all of them.
func decodeResult(body []byte) (*mcp.CallToolResult, error) {
	var res mcp.CallToolResult
	if err := json.Unmarshal(body, &res); err != nil {
		return nil, err
	}
	var exact struct {
		Meta       map[string]json.RawMessage `json:"_meta"`
		Structured json.RawMessage            `json:"structuredContent"`
		Content    []struct {
			Meta     map[string]json.RawMessage `json:"_meta"`
			Resource struct {
				Meta map[string]json.RawMessage `json:"_meta"`
			} `json:"resource"`
		} `json:"content"`
	}
	if err := json.Unmarshal(body, &exact); err != nil {
		return nil, err
	}
	if exact.Structured != nil {
		res.StructuredContent = exact.Structured
	}
	restore(res.Meta, exact.Meta)
	for i, block := range res.Content {
		restore(metaOf(block), exact.Content[i].Meta)
		if e, ok := block.(*mcp.EmbeddedResource); ok && e.Resource != nil {
			restore(e.Resource.Meta, exact.Content[i].Resource.Meta)
		}
	}
	if res.Content == nil {
		res.Content = []mcp.Content{}
	}
	return &res, nil
}

// restore puts the exact values back where decoding has rounded them.
func restore(meta mcp.Meta, exact map[string]json.RawMessage) {
	for k, v := range exact {
		if _, ok := meta[k]; ok {
			meta[k] = v
		}
	}
}

// metaOf is the _meta of a content block, nil if it has none or is of a kind that
// a later SDK may bring.
func metaOf(c mcp.Content) mcp.Meta {
	switch c := c.(type) {
	case *mcp.TextContent:
		return c.Meta
	case *mcp.ImageContent:
		return c.Meta
	case *mcp.AudioContent:
		return c.Meta
	case *mcp.ResourceLink:
		return c.Meta
	case *mcp.EmbeddedResource:
		return c.Meta
	}
	return nil
}
