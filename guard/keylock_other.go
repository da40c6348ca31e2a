//go:build !unix

package guard

// lockKeyFile does nothing where files cannot be locked in this way: there, change a
// key file from one place at a time.
func lockKeyFile(string) (unlock func(), err error) { return func() {}, nil }
