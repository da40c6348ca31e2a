package guard

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const acknowledgeTool = "acknowledge_operation"

// addAcknowledge adds acknowledge_operation: the caller has its result, whose
// bytes may go before the time to replay it has passed.
func (g *Guard) addAcknowledge(server *mcp.Server) {
	no, yes := false, true
	g.addReader(server, &mcp.Tool{
		Name:         acknowledgeTool,
		Description:  "Says that you have the result of an operation and keep it yourself, so that the server may drop its copy early. What was done stays recorded and is still reported. An operation whose outcome is unknown is left as it is.",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{` + idSchema + `},"required":["operation_id"],"additionalProperties":false}`),
		OutputSchema: json.RawMessage(observationSchema),
		Annotations:  &mcp.ToolAnnotations{Title: "Acknowledge result", IdempotentHint: true, DestructiveHint: &yes, OpenWorldHint: &no},
	}, func(ctx context.Context, principal string, args map[string]string) (any, error) {
		return g.acknowledge(ctx, mcpreplay.Key{Principal: principal, ID: args[argOperationID]})
	})
}

// acknowledge notes once that the caller has its result, and answers what status
// would. What is told as unknown is not noted: neither an operation of somebody
// else, nor one whose effect is missing, which its result may be the evidence of.
func (g *Guard) acknowledge(ctx context.Context, key mcpreplay.Key) (mcpreplay.Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Wait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		rec, err := g.store.Get(ctx, key)
		if err != nil && !errors.Is(err, mcpreplay.ErrNotFound) {
			return mcpreplay.Observation{}, &refusal{reason: mcpreplay.ReasonUnavailable, operation: key.ID, why: err}
		}
		seen, failed := g.observe(ctx, key)
		if err != nil || failed != nil || seen.State == mcpreplay.StateUnknown || !rec.State.Final() || rec.Acknowledged {
			return seen, failed
		}
		_, err = g.store.Advance(ctx, mcpreplay.Change{
			Key: key, Revision: rec.Revision,
			Event: mcpreplay.Event{Kind: mcpreplay.EventAcknowledge, Actor: key.Principal},
		})
		switch {
		case err == nil, errors.Is(err, mcpreplay.ErrUnknown): // to say it again is harmless
			return g.observe(ctx, key)
		case !errors.Is(err, mcpreplay.ErrStale):
			return mcpreplay.Observation{}, &refusal{reason: mcpreplay.ReasonUnavailable, operation: key.ID, why: err}
		}
		time.Sleep(pause) // bounded by ctx: the next look fails once it is over
	}
}
