package sqlite_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ncruces/go-sqlite3/vfs"
)

// disk is a disk below SQLite. It can fail, and it knows what a power cut would
// leave of it: what was synced, and any part of what was not.
type disk struct {
	vfs.VFS
	name string

	mu    sync.Mutex
	fail  func(op, file string) error // nil: everything works
	files map[string]*image           // nil: nothing is remembered
}

type image struct {
	synced  []byte
	written []write
}

type write struct {
	at   int64
	data []byte
	size int64 // a truncation, if not negative
}

var disks atomic.Int64

// newDisk registers a disk for the time of the test.
func newDisk(t testing.TB, remember bool) *disk {
	d := &disk{VFS: vfs.Find(""), name: fmt.Sprintf("disk%d", disks.Add(1))}
	if remember {
		d.files = map[string]*image{}
	}
	vfs.Register(d.name, d)
	t.Cleanup(func() { vfs.Unregister(d.name) })
	return d
}

// opens counts how often the database is opened as fn runs.
func (d *disk) opens(fn func()) (n int) {
	d.failing(func(op, file string) error {
		if op == "open" && file == "db" {
			n++
		}
		return nil
	})
	fn()
	d.failing(nil)
	return n
}

// failing sets what fails. op is "open", "read", "write", "sync" or "truncate",
// file is "db" or "wal".
func (d *disk) failing(fail func(op, file string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fail
}

func (d *disk) check(op, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail == nil {
		return nil
	}
	file := "db"
	if strings.HasSuffix(name, "-wal") {
		file = "wal"
	}
	return d.fail(op, file)
}

func (d *disk) Open(string, vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	panic("OpenFilename is called instead")
}

func (d *disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	if err := d.check("open", name.String()); err != nil {
		return nil, flags, err
	}
	f, flags, err := d.VFS.(vfs.VFSFilename).OpenFilename(name, flags)
	if err != nil {
		return nil, flags, err
	}
	d.mu.Lock()
	if d.files != nil && name.String() != "" && d.files[name.String()] == nil {
		d.files[name.String()] = &image{}
	}
	d.mu.Unlock()
	return &diskFile{File: f, d: d, name: name.String()}, flags, nil
}

func (d *disk) Delete(name string, sync bool) error {
	d.mu.Lock()
	delete(d.files, name)
	d.mu.Unlock()
	return d.VFS.Delete(name, sync)
}

type diskFile struct {
	vfs.File
	d    *disk
	name string
}

func (f *diskFile) Unwrap() vfs.File { return f.File }

func (f *diskFile) SharedMemory() vfs.SharedMemory {
	if s, ok := f.File.(vfs.FileSharedMemory); ok {
		return s.SharedMemory()
	}
	return nil
}

func (f *diskFile) ReadAt(b []byte, at int64) (int, error) {
	if err := f.d.check("read", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, at)
}

func (f *diskFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.d.check("write", f.name); err != nil {
		return 0, err
	}
	f.d.remember(f.name, write{at: at, data: append([]byte{}, b...), size: -1})
	return f.File.WriteAt(b, at)
}

func (f *diskFile) Truncate(size int64) error {
	if err := f.d.check("truncate", f.name); err != nil {
		return err
	}
	f.d.remember(f.name, write{size: size})
	return f.File.Truncate(size)
}

func (f *diskFile) Sync(flags vfs.SyncFlag) error {
	if err := f.d.check("sync", f.name); err != nil {
		return err
	}
	f.d.mu.Lock()
	n := 0
	if im := f.d.files[f.name]; im != nil {
		n = len(im.written)
	}
	f.d.mu.Unlock()
	if err := f.File.Sync(flags); err != nil {
		return err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if im := f.d.files[f.name]; im != nil {
		for _, w := range im.written[:n] { // what came during the sync may not be in it
			im.synced = w.onto(im.synced)
		}
		im.written = im.written[n:]
	}
	return nil
}

func (d *disk) remember(name string, w write) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if im := d.files[name]; im != nil {
		im.written = append(im.written, w)
	}
}

func (w write) onto(b []byte) []byte {
	size := w.size
	if size < 0 {
		size = max(int64(len(b)), w.at+int64(len(w.data)))
	}
	if grow := size - int64(len(b)); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	copy(b[min(w.at, size):], w.data)
	return b[:size]
}

const sector = 512

// cut writes into dir what the disk would hold if the power failed now, with
// each sector that was not synced kept at the given probability.
func (d *disk) cut(dir string, rng *rand.Rand, keep float64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, im := range d.files {
		b := append([]byte{}, im.synced...)
		for _, w := range im.written {
			if w.size >= 0 {
				if rng.Float64() < keep {
					b = w.onto(b)
				}
				continue
			}
			for at := 0; at < len(w.data); at += sector {
				if rng.Float64() < keep {
					part := w.data[at:min(at+sector, len(w.data))]
					b = write{at: w.at + int64(at), data: part, size: -1}.onto(b)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}
