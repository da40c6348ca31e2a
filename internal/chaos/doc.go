// Package chaos has no code but tests: several servers on one PostgreSQL, some behind
// a pgbouncer, that are killed while clients call them, with a system outside that
// loses replies. What the clients saw must be the history of a ledger that loses and
// repeats nothing. make chaos runs it for as long as one likes.
package chaos
