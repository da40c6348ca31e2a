// Command payments is an MCP server with one tool that charges a customer through
// an API on the network. The API takes a key with each request, and can be asked later
// what it did under it: whatever reply is lost, the outcome is found out.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"time"

	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type Charge struct {
	Customer string `json:"customer"`
	Cents    int64  `json:"cents" jsonschema:"the amount in cents"`
}

type Receipt struct {
	ChargeID string `json:"chargeId"`
}

// payments is the API.
type payments struct {
	url    string
	client *http.Client
}

// charge is called once for each operation. What it returns decides what is known.
func (p payments) charge(ctx context.Context, op *guard.Op, in Charge) (Receipt, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return Receipt{}, guard.NotApplied(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/charges", bytes.NewReader(body))
	if err != nil {
		return Receipt{}, guard.NotApplied(err)
	}
	// net/http sends such a request again by itself, and this API knows it again.
	req.Header.Set("Idempotency-Key", op.IdempotencyKey())
	res, err := p.client.Do(req)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial": // never sent
		return Receipt{}, guard.TryAgain(err)
	case err != nil: // sent, perhaps: nobody knows
		return Receipt{}, err
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusTooManyRequests:
		return Receipt{}, guard.TryAgain(errors.New("the payment system is busy"))
	case res.StatusCode >= 400 && res.StatusCode < 500: // refused, and it says so for certain
		return Receipt{}, guard.NotApplied(fmt.Errorf("the charge was refused: %s", res.Status))
	case res.StatusCode >= 300: // a proxy, or a crash: it may have been made all the same
		return Receipt{}, fmt.Errorf("the payment system answers %s", res.Status)
	}
	return decode(res.Body)
}

// find asks what became of a charge of which no reply came. It only reads.
func (p payments) find(ctx context.Context, op *guard.Op, _ Charge) (guard.Finding[Receipt], error) {
	var none guard.Finding[Receipt]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/charges?idempotency_key="+url.QueryEscape(op.IdempotencyKey()), nil)
	if err != nil {
		return none, err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return none, err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
		receipt, err := decode(res.Body)
		if err != nil {
			return none, err
		}
		return guard.Found(receipt, "the payment system has "+receipt.ChargeID), nil
	case http.StatusNotFound: // its own database says so, not a cache
		return guard.Absent[Receipt]("the payment system has no such charge"), nil
	}
	return none, fmt.Errorf("the payment system answers %s", res.Status)
}

func decode(body io.Reader) (r Receipt, err error) {
	err = json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&r)
	if err == nil && r.ChargeID == "" {
		err = errors.New("the payment system names no charge")
	}
	return r, err
}

func main() {
	ledger := flag.String("ledger", "payments.db", "where operations are recorded")
	api := flag.String("api", "http://127.0.0.1:8081", "the payment system")
	lease := flag.Duration("lease", 15*time.Second, "how long a server may be silent before another asks what it did")
	flag.Parse()

	store, err := sqlite.Open(*ledger, &sqlite.Options{Backend: "payments"})
	check(err)
	keys, err := guard.KeyFile(*ledger + ".keys")
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys, Lease: *lease})
	check(err)

	p := payments{url: *api, client: &http.Client{}}
	server := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "charge", Description: "Charges a customer."},
		guard.Reconcile(p.find, guard.Timeout(20*time.Second, guard.External(p.charge))))
	g.Install(server)

	ctx, cancel := context.WithCancel(context.Background())
	go g.RecoverEvery(ctx, time.Minute) // what an earlier process left behind
	check(guard.RunStdio(ctx, server))
	cancel()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
