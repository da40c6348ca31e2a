package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"mcpreplay/internal/archive/manifest"
)

type verdict struct {
	files          int
	manifestSHA256 string
}

// verify holds the tree in root against its manifest, and the manifest against the
// hash anchor if that is not empty. No link is followed: whatever is neither a
// regular file nor a directory is an error before anything is read through it.
func verify(root *os.Root, anchor string) (verdict, error) {
	data, mode, err := readManifest(root)
	if err != nil {
		return verdict{}, err
	}
	sum := sha256.Sum256(data)
	v := verdict{manifestSHA256: hex.EncodeToString(sum[:])}
	if anchor != "" && anchor != v.manifestSHA256 {
		return v, fmt.Errorf("%s: it is not the manifest that was published: its SHA-256 is %s", manifest.Name, v.manifestSHA256)
	}
	m, err := manifest.Parse(data)
	if err != nil {
		return v, fmt.Errorf("%s: %w", manifest.Name, err)
	}
	if err := checkTree(root, m); err != nil {
		return v, err
	}
	for _, e := range m.Entries {
		if err := checkFile(root, e); err != nil {
			return v, err
		}
	}
	if mode != 0o644 {
		return v, fmt.Errorf("%s: manifest mode mismatch: it is %s, and must be 0644", manifest.Name, octal(mode))
	}
	v.files = len(m.Entries)
	return v, nil
}

func readManifest(root *os.Root) ([]byte, fs.FileMode, error) {
	f, info, err := openRegular(root, manifest.Name)
	if errors.Is(err, errNotRegular) || errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("%s: missing or linked manifest", manifest.Name)
	}
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, manifest.MaxSize+1))
	if err != nil {
		return nil, 0, fmt.Errorf("%s: read: %w", manifest.Name, err)
	}
	if len(data) > manifest.MaxSize {
		return nil, 0, fmt.Errorf("%s: manifest too large: it has more than %d bytes", manifest.Name, manifest.MaxSize)
	}
	return data, info.Mode(), nil
}

var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file. What is there is looked at before it is opened,
// because opening a pipe waits, and again after, because it could be swapped.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, fmt.Errorf("%q: %w", name, err)
	}
	if !before.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%q: %w", name, errNotRegular)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("%q: %w", name, err)
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(before, info) {
		err = errNotRegular
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%q: %w", name, err)
	}
	return f, info, nil
}

// checkTree checks that the directories and files are those of the manifest, and
// nothing else.
func checkTree(root *os.Root, m *manifest.Manifest) error {
	files := map[string]bool{manifest.Name: false} // whether it was found
	directories := map[string]bool{".": false}
	for _, e := range m.Entries {
		files[e.Path] = false
		for dir := path.Dir(e.Path); dir != "."; dir = path.Dir(dir) {
			directories[dir] = false
		}
	}
	var extraFiles, extraDirectories []string
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("%q: walk: %w", name, err)
		case strings.EqualFold(d.Name(), ".git"):
			return fmt.Errorf("%q: .git is present: an archive has none", name)
		case d.Type()&fs.ModeSymlink != 0:
			return fmt.Errorf("%q: it is a link: an archive has none", name)
		case d.IsDir():
			if _, known := directories[name]; !known {
				extraDirectories = append(extraDirectories, name)
				return fs.SkipDir // all that is in it is extra too
			}
			directories[name] = true
		case !d.Type().IsRegular():
			return fmt.Errorf("%q: it is a special file: an archive has none", name)
		default:
			if _, known := files[name]; !known {
				extraFiles = append(extraFiles, name)
				return nil
			}
			files[name] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := mismatch("directory", missing(directories), extraDirectories); err != nil {
		return err
	}
	return mismatch("file", missing(files), extraFiles)
}

func missing(found map[string]bool) []string {
	maps.DeleteFunc(found, func(_ string, is bool) bool { return is })
	return slices.Sorted(maps.Keys(found))
}

func mismatch(of string, missing, extra []string) error {
	if len(missing)+len(extra) == 0 {
		return nil
	}
	return fmt.Errorf("%s inventory mismatch: missing: %s; extra: %s", of, some(missing), some(extra))
}

// some is the first of many names, quoted.
func some(names []string) string {
	const shown = 5
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > shown:
		return fmt.Sprintf("%+q and %d more", names[:shown], len(names)-shown)
	}
	return fmt.Sprintf("%+q", names)
}

// checkFile checks one file. It reads no more than the manifest says that there is,
// in pieces: neither a wrong size nor a growing file costs memory.
func checkFile(root *os.Root, e manifest.Entry) error {
	f, info, err := openRegular(root, e.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if want, _ := manifest.FileMode(e.Mode); info.Mode() != want {
		return fmt.Errorf("%q: mode mismatch: it is %s, and must be %s", e.Path, octal(info.Mode()), octal(want))
	}
	if info.Size() != e.Size {
		return fmt.Errorf("%q: size mismatch: it has %d bytes, and must have %d", e.Path, info.Size(), e.Size)
	}
	sum, blob := sha256.New(), sha1.New()
	fmt.Fprintf(blob, "blob %d\x00", e.Size)
	n, err := io.Copy(io.MultiWriter(sum, blob), io.LimitReader(f, e.Size+1))
	if err != nil {
		return fmt.Errorf("%q: read: %w", e.Path, err)
	}
	if n != e.Size {
		return fmt.Errorf("%q: size mismatch: it changed while it was read", e.Path)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != e.SHA256 {
		return fmt.Errorf("%q: SHA-256 mismatch: it is %s, and must be %s", e.Path, got, e.SHA256)
	}
	if got := hex.EncodeToString(blob.Sum(nil)); got != e.GitBlobSHA1 {
		return fmt.Errorf("%q: git blob mismatch: it is %s, and must be %s", e.Path, got, e.GitBlobSHA1)
	}
	return nil
}

// octal is a mode as chmod takes it.
func octal(m fs.FileMode) string {
	bits := uint32(m.Perm())
	for i, special := range []fs.FileMode{fs.ModeSticky, fs.ModeSetgid, fs.ModeSetuid} {
		if m&special != 0 {
			bits |= 0o1000 << i
		}
	}
	return fmt.Sprintf("%04o", bits)
}
