package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// implementation is a command of the scripts: another implementation of the
// portable vectors, which only ever answers the word it is given.
func implementation() {
	var q struct{ Vector json.Number }
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "asked with %d arguments\n", len(os.Args)-1)
	fmt.Printf(`{"vector":%s,"classification":%q}`+"\n", q.Vector, os.Args[1])
}
