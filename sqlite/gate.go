package sqlite

import (
	"strings"
	"sync/atomic"

	"github.com/ncruces/go-sqlite3"
)

// gate keeps the statements of effects from ending the ledger's transaction or
// writing the ledger's tables.
type gate struct {
	shut   atomic.Bool // while the application's code has the handle
	schema atomic.Bool // it may have changed the schema
}

// mayCommit refuses every commit while an effect runs. It is the last line: a
// statement that runs after the transaction was lost would commit by itself.
func (g *gate) mayCommit() bool { return !g.shut.Load() }

// authorize is asked for everything that a statement does when it is prepared.
// inner names the trigger or view that does it.
func (g *gate) authorize(action sqlite3.AuthorizerActionCode, third, fourth, schema, inner string) sqlite3.AuthorizerReturnCode {
	switch action {
	case sqlite3.AUTH_INSERT, sqlite3.AUTH_UPDATE, sqlite3.AUTH_DELETE:
		// No trigger is the ledger's: not even the ledger's own statements may fire
		// one that writes its tables.
		if ours(third) && (inner != "" || g.shut.Load()) {
			return sqlite3.AUTH_DENY
		}
		return sqlite3.AUTH_OK
	}
	if !g.shut.Load() {
		return sqlite3.AUTH_OK
	}
	switch action {
	case sqlite3.AUTH_TRANSACTION, sqlite3.AUTH_SAVEPOINT, sqlite3.AUTH_PRAGMA, sqlite3.AUTH_ATTACH, sqlite3.AUTH_DETACH,
		// What is temporary lives as long as the connection.
		sqlite3.AUTH_CREATE_TEMP_TABLE, sqlite3.AUTH_CREATE_TEMP_INDEX, sqlite3.AUTH_CREATE_TEMP_TRIGGER, sqlite3.AUTH_CREATE_TEMP_VIEW:
		return sqlite3.AUTH_DENY
	case sqlite3.AUTH_READ, sqlite3.AUTH_SELECT, sqlite3.AUTH_FUNCTION, sqlite3.AUTH_RECURSIVE:
		return sqlite3.AUTH_OK
	}
	// All that is left changes the schema, of what the third or fourth argument
	// names.
	g.schema.Store(true)
	if ours(third) || ours(fourth) || strings.EqualFold(schema, "temp") {
		return sqlite3.AUTH_DENY
	}
	return sqlite3.AUTH_OK
}

const prefix = "mcpreplay_"

func ours(name string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}
