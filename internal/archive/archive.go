// Package archive makes the release archive: a zip file of one commit that is the
// same bytes whoever makes it, with a manifest of what is in it.
//
// What goes in is read from the objects of git, not from the work tree. That the
// work tree is clean is asked for so that what was tested is what is archived.
package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// What Build refuses.
var (
	// ErrRefused: the commit holds what must not be in an archive.
	ErrRefused = errors.New("refused")
	// ErrNotClean: the work tree is not the commit, or changed meanwhile.
	ErrNotClean = errors.New("the work tree is not clean")
	// ErrExists: there is something at the path of the archive.
	ErrExists = errors.New("it exists, and is not overwritten")
	// ErrInside: the archive would lie in the repository, and make it unclean.
	ErrInside = errors.New("it lies in the repository")
)

// Summary says what was archived. Its members are a contract: docs/cli.md.
type Summary struct {
	SourceCommit   string `json:"sourceCommit"`
	FileCount      int    `json:"fileCount"` // without the manifest
	ManifestSHA256 string `json:"manifestSha256"`
	ArchiveSHA256  string `json:"archiveSha256"`
	Path           string `json:"path"`
}

// Build archives the commit that is checked out in the work tree dir is in, as a
// new file out. It needs the program git. Where it returns an error there is no
// file at out that was not there before.
func Build(ctx context.Context, dir, out string) (*Summary, error) {
	repo, err := openRepository(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := checkPlace(out, repo.top, repo.common); err != nil {
		return nil, err
	}
	commit, err := repo.cleanCommit(ctx)
	if err != nil {
		return nil, err
	}
	files, err := repo.files(ctx, commit)
	if err != nil {
		return nil, err
	}
	if err := check(files); err != nil {
		return nil, err
	}
	draft, err := newDraft(out)
	if err != nil {
		return nil, err
	}
	defer draft.discard()
	sum := sha256.New()
	manifest, err := repo.write(ctx, io.MultiWriter(draft, sum), commit, files)
	if err != nil {
		return nil, err
	}
	again, err := repo.cleanCommit(ctx)
	if err != nil {
		return nil, err
	}
	if again != commit {
		return nil, fmt.Errorf("%w: it moved from commit %s to %s meanwhile", ErrNotClean, commit, again)
	}
	if err := draft.publish(); err != nil {
		return nil, err
	}
	of := sha256.Sum256(manifest)
	return &Summary{
		SourceCommit: commit, FileCount: len(files), Path: out,
		ManifestSHA256: hex.EncodeToString(of[:]), ArchiveSHA256: hex.EncodeToString(sum.Sum(nil)),
	}, nil
}

// write writes the archive, and returns the bytes of its manifest.
func (r *repository) write(ctx context.Context, w io.Writer, commit string, files []tracked) ([]byte, error) {
	blobs, err := r.openBlobs(ctx)
	if err != nil {
		return nil, err
	}
	defer blobs.close()
	return writeZip(w, commit, files, blobs.read)
}
