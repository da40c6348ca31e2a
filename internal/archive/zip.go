package archive

import (
	"archive/zip"
	"compress/flate"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"mcpreplay/internal/archive/manifest"
)

// timestamp is the time of every file in an archive: the earliest that the format
// can hold, and visibly nobody's.
var timestamp = time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)

// writeZip writes files, in their order, and then their manifest, under one
// directory. It returns the bytes of the manifest. Nothing but its arguments goes
// into what it writes, and the compressor of this build of Go.
func writeZip(w io.Writer, commit string, files []tracked, read func(blob string) ([]byte, error)) ([]byte, error) {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, flate.BestCompression)
	})
	dir := "mcpreplay-" + commit[:8] + "/"
	add := func(path, mode string, data []byte) error {
		perm, _ := manifest.FileMode(mode)
		header := &zip.FileHeader{Name: dir + path, Method: zip.Deflate, Modified: timestamp}
		header.SetMode(perm)
		f, err := z.CreateHeader(header)
		if err == nil {
			_, err = f.Write(data)
		}
		if err != nil {
			return fmt.Errorf("archive %q: %w", path, err)
		}
		return nil
	}
	m := &manifest.Manifest{Format: manifest.Format, SourceCommit: commit, FileCount: len(files), Entries: []manifest.Entry{}}
	for _, f := range files {
		data, err := read(f.blob)
		if err != nil {
			return nil, fmt.Errorf("archive %q: %w", f.path, err)
		}
		if err := add(f.path, f.mode, data); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		m.Entries = append(m.Entries, manifest.Entry{
			Path: f.path, Mode: f.mode, Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:]), GitBlobSHA1: f.blob,
		})
	}
	text, err := m.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	if len(text) > manifest.MaxSize {
		return nil, fmt.Errorf("%w: the manifest would have %d bytes, more than %d", ErrRefused, len(text), manifest.MaxSize)
	}
	if _, err := manifest.Parse(text); err != nil { // what a receiver would refuse is not made
		return nil, fmt.Errorf("the manifest cannot be read back: %w", err)
	}
	if err := add(manifest.Name, "100644", text); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return text, nil
}
