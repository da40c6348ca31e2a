// Package mcpreplay is the vocabulary of operations that happen at most once, and
// the port of the ledger that keeps them. It imports the standard library alone.
//
// An agent calls a tool, the effect commits, the reply is lost. What makes that
// moment harmless is an identity that exists before the effect, a record bound to
// the effect, and a client that does not guess.
//
//   - operation: one logical piece of work, however many attempts.
//   - operation id: its name, chosen by the caller or minted by the server.
//   - principal: the authenticated identity it runs for; never from arguments.
//   - backend: the configured name of a ledger, persisted in it.
//   - instance, incarnation, position: which ledger this is, how often it was
//     restored, and how far it has come.
//   - fingerprint: keyed digest of all that makes two attempts the same request.
//   - ledger: the durable table of operations.
//   - effect: the application's side effect.
//   - attempt: one request on the wire.
//   - continuation: a later round of a multi round-trip request.
//   - request state: the sealed token a continuation carries.
//   - stored result: the exact result recorded with the effect.
//   - replay: answering with the stored result.
//   - observation: what a read-back may say about an operation.
//   - verdict: a reply a client may rely on.
//   - authority: may this still write?
//   - retention: may this still be replayed?
//   - tombstone: a record kept so that an expired identity never is new work.
//   - fence: a tombstone placed on purpose; the operation can never apply.
//   - settle: to move an operation from unknown to a known outcome by evidence.
//
// [Store] is what a ledger promises, [Transition] which states may follow which,
// [Keyring.Digest] what a request is, [ParseObservation] what of a status answer
// is believed, [ClassifyResponse] what a reply is worth, and [Verify] whether a
// ledger is consistent.
package mcpreplay
