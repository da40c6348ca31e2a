// Package guard makes a tool of an MCP server happen at most once.
//
// An effect that commits while its reply is lost leaves a client that cannot tell
// whether to retry. A guarded tool makes that moment harmless: every call belongs
// to an operation with an id; its record, its effect and its result are committed
// together; a repeat of the same request returns the stored result; anything
// changed is refused before any effect; and get_operation_status tells, without
// ever running anything, what became of it.
//
// # One changed line
//
//	store, err := sqlite.Open("issues.db", &sqlite.Options{Backend: "issues"})
//	keys, err := guard.KeyFile("issues.keys")
//	g, err := guard.New(store, &guard.Options{Keys: keys})
//	guard.AddTool(g, server, tool, guard.Atomic(store, createIssue)) // was mcp.AddTool(server, tool, createIssue)
//	g.Install(server)
//	err = guard.RunStdio(ctx, server)
//
// # Where the id comes from
//
// The tool argument operation_id, or _meta["mcpreplay/operation-id"]; if both,
// they must agree. A client of the 2026-07-28 protocol that sends neither is given
// one in a first round that carries nothing but sealed state, and brings it back
// by itself. Any other call without an id is refused.
//
// # The order of checks
//
// Each comes before any effect: the arguments can be read; the id is known and
// well formed; request state verifies and belongs to this call; answers are
// complete and valid; the record, if there is one, stands for the same request and
// is within its deadlines; the arguments fit the schema. See attempt.go.
//
// # What is not promised
//
// That an effect outside the transaction happens once; that a client which names a
// new operation for a retry is protected; anything about tools that are not
// guarded.
package guard
