// Command hosts is an MCP server over HTTP that runs on as many hosts as one likes, on
// one PostgreSQL: none of them leads, and a call may be sent again to another one. Its
// effect writes to the application's own tables through code that sqlc generated, in
// the transaction of the ledger.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"mcpreplay"
	"mcpreplay/examples/hosts/hotel"
	"mcpreplay/guard"
	"mcpreplay/postgres"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

//go:generate sqlc generate

//go:embed schema.sql
var schema string

type Booking struct {
	Room   string `json:"room"`
	Guest  string `json:"guest"`
	Night  string `json:"night" jsonschema:"the first night, as 2026-12-31"`
	Nights int    `json:"nights"`
}

type Booked struct {
	Nights int `json:"nights"`
}

// book takes all nights or none: a night that is taken rolls everything back, and then
// the same call may be sent again.
func book(ctx context.Context, tx *postgres.Tx, op *guard.Op, in Booking) (Booked, error) {
	night, err := time.Parse(time.DateOnly, in.Night)
	if err != nil || in.Nights < 1 || in.Nights > 30 {
		return Booked{}, fmt.Errorf("give the first night as 2026-12-31, and 1 to 30 nights")
	}
	q := hotel.New(tx)
	for n := range in.Nights {
		err := q.Book(ctx, hotel.BookParams{Room: in.Room, Night: night.AddDate(0, 0, n), Guest: in.Guest, OperationID: op.ID})
		if err != nil {
			return Booked{}, fmt.Errorf("%s is taken on night %d", in.Room, n+1)
		}
	}
	op.Effect(in.Room)
	return Booked{Nights: in.Nights}, nil
}

// there lets status look whether the booking of a record is really there.
func there(ctx context.Context, tx *postgres.Tx, rec mcpreplay.Record) (bool, error) {
	n, err := hotel.New(tx).Nights(ctx, rec.ID)
	return n > 0, err
}

func main() {
	url := flag.String("database", "postgres://localhost/hotel", "the database")
	addr := flag.String("http", ":8080", "where to serve")
	keyFile := flag.String("keys", "hotel.keys", "the same file on every host")
	migrate := flag.Bool("migrate", false, "make the tables, and end")
	flag.Parse()
	ctx := context.Background()

	pool, err := postgres.NewPool(ctx, *url)
	check(err)
	if *migrate {
		check(postgres.Migrate(ctx, pool, &postgres.Options{Backend: "hotel"}))
		_, err := pool.Exec(ctx, schema)
		check(err)
		return
	}
	store, err := postgres.Open(ctx, pool, &postgres.Options{Backend: "hotel"})
	check(err)
	keys, err := guard.KeyFile(*keyFile)
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys})
	check(err)
	server := mcp.NewServer(&mcp.Implementation{Name: "hotel", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "book", Description: "Books a room for some nights."},
		guard.Check(store, there, guard.Atomic(store, book)))
	g.Install(server)

	o := &guard.HTTPOptions{
		Tokens:    map[string]string{os.Getenv("HOTEL_TOKEN"): "front-desk"}, // see package jwt for people
		Health:    g.Health,
		Listening: func(a net.Addr) { fmt.Println(a) },
	}
	handler, err := guard.HTTPHandler(server, o)
	check(err)
	check(guard.RunHTTP(ctx, *addr, handler, o))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
