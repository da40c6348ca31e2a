// Command verifyarchive holds an unpacked release archive against its manifest. It
// needs Go and nothing that would have to be downloaded:
//
//	go run ./cmd/verifyarchive
//
// Who can change an archive can change this program in it. What it says counts as
// much as the hash that the archive, or with -manifest-sha256 the manifest, was
// compared with, and that must come from elsewhere.
package main

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// Exit codes.
const (
	exitFine    = 0
	exitFailed  = 1
	exitMisused = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("verifyarchive", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("root", ".", "verify the archive unpacked in `DIR`")
	anchor := flags.String("manifest-sha256", "", "published SHA-256 of the manifest, in `HEX`; another one is refused")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitFine
	} else if err != nil {
		return exitMisused
	}
	misused := func(format string, args ...any) int {
		fmt.Fprintf(stderr, "verifyarchive: error: "+format+"\n", args...)
		return exitMisused
	}
	if flags.NArg() > 0 {
		return misused("%q: name the directory with -root", flags.Arg(0))
	}
	anchored := false
	flags.Visit(func(f *flag.Flag) { anchored = anchored || f.Name == "manifest-sha256" })
	if sum, err := hex.DecodeString(*anchor); anchored && (err != nil || len(sum) != 32) {
		return misused("-manifest-sha256 is not 64 hexadecimal digits")
	}
	root, err := os.OpenRoot(*dir)
	if err != nil {
		return misused("-root: %v", err)
	}
	defer root.Close()
	v, err := verify(root, strings.ToLower(*anchor))
	if err == nil {
		_, err = fmt.Fprintf(stdout, "%d files verified, manifest sha256 %s\n", v.files, v.manifestSHA256)
	}
	if err != nil {
		fmt.Fprintf(stderr, "archive verification failed: %v\n", err)
		return exitFailed
	}
	return exitFine
}
