// Command order is an MCP server whose one tool does two things: it takes an item from
// the stock, which is a row beside the ledger, and has it shipped by somebody else. If
// the shipper refuses, the item goes back. If nobody knows whether he ships, it stays
// out, and so does the question.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type Order struct {
	Item    string `json:"item"`
	Address string `json:"address"`
}

type Confirmation struct {
	State    string `json:"state"`
	Shipment string `json:"shipment,omitempty"`
	Text     string `json:"text"`
}

// progress is what the steps know of each other. It is kept in the ledger.
type progress struct {
	Shipment string `json:"shipment"`
}

// take and putBack run in a transaction of the ledger's file.
func take(ctx context.Context, tx *sqlite.Tx, _ *guard.Op, in Order, _ *progress) error {
	r, err := tx.ExecContext(ctx, `UPDATE stock SET n = n - 1 WHERE item = ? AND n > 0`, in.Item)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return fmt.Errorf("there is no %s left", in.Item)
	}
	return nil
}

func putBack(ctx context.Context, tx *sqlite.Tx, _ *guard.Op, in Order, _ *progress) error {
	_, err := tx.ExecContext(ctx, `UPDATE stock SET n = n + 1 WHERE item = ?`, in.Item)
	return err
}

type shipper string // URL

// ship is somewhere else. A refusal is definite; anything but a reply is not.
func (s shipper) ship(ctx context.Context, op *guard.Op, in Order, p *progress) error {
	body, err := json.Marshal(map[string]string{"reference": op.ID, "item": in.Item, "address": in.Address})
	if err != nil {
		return guard.NotApplied(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, string(s)+"/shipments", bytes.NewReader(body))
	if err != nil {
		return guard.NotApplied(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusUnprocessableEntity {
		return guard.NotApplied(errors.New("the shipper does not go there"))
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the shipper answers %s", res.Status)
	}
	var reply struct {
		Shipment string `json:"shipment"`
	}
	if err := json.NewDecoder(res.Body).Decode(&reply); err != nil {
		return err
	}
	p.Shipment = reply.Shipment
	op.Effect(reply.Shipment)
	return nil
}

// confirm makes the result of an order that ended one way or the other.
func confirm(_ context.Context, op *guard.Op, in Order, p progress) (Confirmation, error) {
	c := Confirmation{State: string(op.State()), Shipment: p.Shipment, Text: in.Item + " is on its way."}
	if op.State() == mcpreplay.StatePartial {
		c.Text = in.Item + " is not shipped."
		for _, s := range op.Steps() {
			if s.Compensation == mcpreplay.OutcomeSucceeded {
				c.Text += " It is back in the stock."
			}
		}
	}
	return c, nil
}

func main() {
	ledger := flag.String("ledger", "order.db", "where stock and operations are recorded")
	url := flag.String("shipper", "http://127.0.0.1:8082", "who ships")
	flag.Parse()

	store, err := sqlite.Open(*ledger, &sqlite.Options{Backend: "order"})
	check(err)
	check(store.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, `
			CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT;
			INSERT OR IGNORE INTO stock VALUES ('lamp', 2)`)
		return err
	}))
	keys, err := guard.KeyFile(*ledger + ".keys")
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys})
	check(err)
	server := mcp.NewServer(&mcp.Implementation{Name: "order", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "order", Description: "Orders an item, to be shipped to an address."},
		guard.Steps(confirm,
			guard.DoTx(store, "stock", take, putBack),
			guard.Do("shipment", shipper(*url).ship, nil), // what is shipped is shipped
		))
	g.Install(server)
	check(guard.RunStdio(context.Background(), server))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
