package archive

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"mcpreplay/internal/archive/manifest"
)

// blobs reads blobs through one process of git.
type blobs struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	out    *bufio.Reader
}

func (r *repository) openBlobs(ctx context.Context) (*blobs, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := r.command(ctx, "cat-file", "--batch")
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("git cat-file: %w", err)
	}
	return &blobs{cmd: cmd, cancel: cancel, in: in, out: bufio.NewReader(out)}, nil
}

// close ends the process, which may be in the middle of an answer. Whatever it says
// then is of no interest: each blob was held against its hash.
func (b *blobs) close() {
	b.cancel()
	_ = b.cmd.Wait()
}

// read returns the bytes of the blob named id. That they hash to id is checked here:
// git does not hold every object it reads against its name.
func (b *blobs) read(id string) ([]byte, error) {
	if _, err := io.WriteString(b.in, id+"\n"); err != nil {
		return nil, fmt.Errorf("read blob %s: %w", id, err)
	}
	header, err := b.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", id, err)
	}
	text, isBlob := strings.CutPrefix(header, id+" blob ")
	size, err := strconv.ParseInt(strings.TrimSuffix(text, "\n"), 10, 64)
	if !isBlob || err != nil {
		return nil, fmt.Errorf("read blob %s: git says %q", id, strings.TrimSpace(header))
	}
	if size > manifest.MaxFileSize {
		return nil, fmt.Errorf("%w: a file has %d bytes, more than %d", ErrRefused, size, manifest.MaxFileSize)
	}
	data := make([]byte, size+1) // git ends it with a newline
	if _, err := io.ReadFull(b.out, data); err != nil {
		return nil, fmt.Errorf("read blob %s: %w", id, err)
	}
	data = data[:size]
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	h.Write(data)
	if got := hex.EncodeToString(h.Sum(nil)); got != id {
		return nil, fmt.Errorf("read blob %s: its bytes hash to %s: the repository is damaged", id, got)
	}
	return data, nil
}
