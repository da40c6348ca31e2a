package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/spf13/cobra"
)

// retireAfter is how long an old key has to have been old before it may be retired
// without --force: longer than a result is replayed, unless a server is told otherwise.
const retireAfter = 8 * 24 * time.Hour

// keyView is one key as keys list tells of it. Its members are a contract: docs/cli.md.
type keyView struct {
	ID    string             `json:"id"`
	Use   mcpreplay.KeyUse   `json:"use"`
	State mcpreplay.KeyState `json:"state"`
	Since *string            `json:"since"`
}

func newKeys(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Rotate the secrets of a server",
		Long: `Rotates the secrets in a key file, in three steps that a fleet of servers survives:

  1. keys new      a key that only opens; give the file to every server, restart each
  2. keys promote  the key seals from now on; again give the file to every server
  3. keys retire   once nothing that the old key made is needed any more

No command prints a secret.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeysNew(e), newKeysPromote(e), newKeysRetire(e), newKeysList(e))
	return cmd
}

// keyFileFlags are what all of them have.
type keyFileFlags struct {
	path   string
	asJSON bool
}

func (f *keyFileFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "key-file", "", "`FILE` of secrets. Required")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
}

// change rewrites the file, and prints its keys.
func (f *keyFileFlags) change(e *env, create bool, change func(mcpreplay.KeyFile) (mcpreplay.KeyFile, error)) error {
	if f.path == "" {
		return misused("name it with --key-file FILE", "no key file given")
	}
	if _, err := os.Stat(f.path); errors.Is(err, fs.ErrNotExist) && !create {
		return failed(fmt.Errorf("there is no file %s", f.path), "a server makes one when it starts first, and so does mcpreplay keys new")
	}
	keys, err := guard.RewriteKeyFile(f.path, change)
	if err != nil {
		return failed(err, "nothing was changed; see mcpreplay keys list")
	}
	return f.print(e, keys)
}

func (f *keyFileFlags) print(e *env, keys mcpreplay.KeyFile) error {
	views := make([]keyView, 0, len(keys))
	for _, k := range keys {
		views = append(views, keyView{ID: k.ID, Use: k.Use, State: k.State, Since: deadline(k.Since)})
	}
	return e.reply(f.asJSON, views, func(w io.Writer) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, v := range views {
			since := "-"
			if v.Since != nil {
				since = *v.Since
			}
			fmt.Fprintf(t, "%s\t%s\t%s\tsince %s\n", v.ID, v.Use, v.State, since)
		}
		return t.Flush()
	})
}

func newKeysNew(e *env) *cobra.Command {
	var f keyFileFlags
	var use string
	cmd := &cobra.Command{
		Use:   "new --key-file FILE [--use state|fingerprint]",
		Short: "Add a key that opens, and seals nothing yet",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			uses := []mcpreplay.KeyUse{mcpreplay.UseState, mcpreplay.UseFingerprint}
			switch use {
			case "":
			case string(mcpreplay.UseState), string(mcpreplay.UseFingerprint):
				uses = []mcpreplay.KeyUse{mcpreplay.KeyUse(use)}
			default:
				return misused("leave it out for a key of each", "--use is state or fingerprint (got %q)", use)
			}
			return f.change(e, true, func(keys mcpreplay.KeyFile) (mcpreplay.KeyFile, error) {
				if keys == nil { // the first of a file that is made now seal at once
					return mcpreplay.KeyFile{
						mcpreplay.NewKeyEntry(mcpreplay.UseState, mcpreplay.KeyCurrent, time.Now()),
						mcpreplay.NewKeyEntry(mcpreplay.UseFingerprint, mcpreplay.KeyCurrent, time.Now()),
					}, nil
				}
				var err error
				for _, use := range uses {
					if keys, err = keys.With(mcpreplay.NewKeyEntry(use, mcpreplay.KeyNext, time.Now())); err != nil {
						return nil, err
					}
				}
				return keys, nil
			})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&use, "use", "", "what it is for: `state` or fingerprint (default: a key of each)")
	return cmd
}

func newKeysPromote(e *env) *cobra.Command {
	var f keyFileFlags
	cmd := &cobra.Command{
		Use:   "promote ID --key-file FILE",
		Short: "Seal with a key that every server has by now",
		Args:  oneKey,
		RunE: func(_ *cobra.Command, args []string) error {
			return f.change(e, false, func(keys mcpreplay.KeyFile) (mcpreplay.KeyFile, error) { return keys.Promote(args[0], time.Now()) })
		},
	}
	f.register(cmd)
	return cmd
}

func newKeysRetire(e *env) *cobra.Command {
	var f keyFileFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "retire ID --key-file FILE",
		Short: "Take a key out that is not needed any more",
		Long: `Takes a key out, for good. What was sealed with it can never be opened again: a
repeat of an operation that was recorded under it is refused (key_retired), and its
status still works.`,
		Args: oneKey,
		RunE: func(_ *cobra.Command, args []string) error {
			return f.change(e, false, func(keys mcpreplay.KeyFile) (mcpreplay.KeyFile, error) {
				for _, k := range keys {
					needed := k.State == mcpreplay.KeyOld && (k.Since.IsZero() || time.Since(k.Since) < retireAfter)
					if k.ID == args[0] && needed && !force {
						return nil, fmt.Errorf("the %s key %s may still be needed: it is old since %s, and results are replayed for 7 days unless a server was told otherwise; --force retires it all the same", k.Use, k.ID, orUnknown(k.Since))
					}
				}
				return keys.Retire(args[0])
			})
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "retire it though it may still be needed")
	return cmd
}

func orUnknown(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return timeText(t)
}

func newKeysList(e *env) *cobra.Command {
	var f keyFileFlags
	cmd := &cobra.Command{
		Use:   "list --key-file FILE",
		Short: "List the keys of a file, without their secrets",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if f.path == "" {
				return misused("name it with --key-file FILE", "no key file given")
			}
			keys, err := guard.ReadKeyFile(f.path)
			if err != nil {
				return failed(err, "check the path and its permissions")
			}
			return f.print(e, keys)
		},
	}
	f.register(cmd)
	return cmd
}

func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return misused("mcpreplay keys list names them", "give one key id (got %d)", len(args))
	}
	return nil
}
