package lab

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
)

// fileCells take the ledger's file away from a server that runs. What it holds of
// the file is still open; writing there would succeed, and be gone with the process.
//
// Permissions are given back before the next start: to root they mean nothing, and
// the story would depend on who plays it.
func fileCells() []cell {
	return []cell{
		faultCell("file-moved", "the file is moved away and back", refusedNothing, fileMoved),
		faultCell("file-removed", "the file is removed", "refused_and_nothing_is_left", fileRemoved),
		faultCell("file-replaced", "the file of another ledger takes its place", "refused_and_the_other_is_untouched", fileReplaced),
		faultCell("file-overwritten", "a file that is no database takes its place", "refused_and_the_other_is_untouched", fileOverwritten),
		faultCell("file-directory", "a directory takes its place", refusedNothing, fileDirectory),
		faultCell("file-truncated", "the file is cut to nothing", "refused_and_never_a_success", func(p *play) { fileTruncated(p, 0) }),
		faultCell("file-halved", "the file is cut in half", "refused_and_never_a_success", func(p *play) { fileTruncated(p, 2) }),
		faultCell("file-truncated-warm", "the file is cut to nothing while its log holds the newest pages", "refused_and_never_a_success", fileTruncatedWarm),
		faultCell("file-read-only", "the file is made read-only: a server that has it open keeps its right", completed, fileReadOnly),
		faultCell("log-removed", "the log is removed", refusedNothing, logRemoved),
	}
}

// next is a second operation of a cell: another intent.
func (p *play) next(id int) call { return call{id: id, operation: p.op + "-next"} }

// continued is the continuation of a call that was asked.
func continued(id int, c call, state string) call {
	c.id, c.state, c.body = id, state, alpha
	return c
}

// both has the usual operation done, and another one asked for.
func both(p *play, s *server) (first, second string) {
	first = rounds(s, atomic)
	return first, s.send(p.next(20)).state
}

// whileGone is what a client tries while the file is not there.
func whileGone(p *play, s *server, first, second string) {
	s.send(status(12))
	s.send(answered(13, atomic, first))
	s.send(continued(21, p.next(0), second))
	s.send(call{id: 22, tool: "get_operation_status", operation: p.op + "-next"})
}

// afterwards is what it tries at a server that was started anew.
func afterwards(p *play, first, second string) {
	s := p.start("restart")
	s.send(status(30))
	s.send(answered(31, atomic, first))
	s.send(call{id: 32, tool: "get_operation_status", operation: p.op + "-next"})
	s.send(continued(33, p.next(0), second))
	s.stop()
}

// rename renames files of the cell, in pairs of an old and a new name.
func (p *play) rename(text string, names ...string) {
	p.act(text, func() error {
		for i := 0; i+1 < len(names); i += 2 {
			if err := os.Rename(filepath.Join(p.dir, names[i]), filepath.Join(p.dir, names[i+1])); err != nil {
				return err
			}
		}
		return nil
	})
}

const movedName = "moved.sqlite3"

func fileMoved(p *play) {
	s := p.start("server")
	first, second := both(p, s)
	p.rename("moves the file away", storeName, movedName)
	whileGone(p, s, first, second)
	s.stop()
	p.rename("moves the file back", movedName, storeName)
	afterwards(p, first, second)
}

func fileRemoved(p *play) {
	s := p.start("server")
	state := s.send(asked(10, atomic)).state
	p.act("removes the file", func() error { return os.Remove(p.store()) })
	s.send(answered(11, atomic, state))
	s.send(status(12))
	s.stop()
}

func fileReplaced(p *play) {
	const otherName = "other.sqlite3"
	other := p.start("other", "--ledger", "sqlite:"+otherName)
	theirs := call{id: 2, operation: p.op + "-other"}
	theirs.state = other.send(theirs).state
	theirs.id, theirs.body = 3, alpha
	other.send(theirs)
	other.stop()
	s := p.start("server")
	first, second := both(p, s)
	p.rename("puts another file in the place of this", storeName, movedName, otherName, storeName)
	whileGone(p, s, first, second)
	s.stop()
	p.rename("moves the log after its file", storeName+"-wal", movedName+"-wal")
	afterwards(p, first, second)
}

func fileOverwritten(p *play) {
	text := bytes.Repeat([]byte("no database "), 1000)
	s := p.start("server")
	first, second := both(p, s)
	p.rename("moves the file away", storeName, movedName)
	p.act("writes something else in its place", func() error { return os.WriteFile(p.store(), text, 0o600) })
	whileGone(p, s, first, second)
	s.stop()
	p.rename("moves the log after its file", storeName+"-wal", movedName+"-wal")
	p.launch("refused").wait()
	p.act("finds what it wrote", func() error {
		now, err := os.ReadFile(p.store())
		if err == nil && !bytes.Equal(now, text) {
			err = errors.New("it is not as it was")
		}
		return err
	})
}

func fileDirectory(p *play) {
	s := p.start("server")
	first, second := both(p, s)
	p.rename("moves the file away", storeName, movedName)
	p.act("makes a directory in its place", func() error { return os.Mkdir(p.store(), 0o700) })
	whileGone(p, s, first, second)
	s.stop()
	p.launch("refused").wait()
	p.act("removes the directory", func() error { return os.Remove(p.store()) })
	p.rename("moves the file back", movedName, storeName)
	afterwards(p, first, second)
}

// fileTruncated leaves one part of so many of the file, or nothing of it. All of it
// is in the file and not in the log, for the first server has ended.
func fileTruncated(p *play, parts int64) {
	s := p.start("first")
	first, second := both(p, s)
	s.stop()
	s = p.start("server")
	p.act("cuts the file", func() error {
		info, err := os.Stat(p.store())
		if err != nil {
			return err
		}
		size := int64(0)
		if parts > 0 {
			size = info.Size() / parts
		}
		return os.Truncate(p.store(), size)
	})
	whileGone(p, s, first, second)
	s.stop()
	if parts > 0 { // a file of nothing is as good as none: a ledger is made in it
		p.launch("refused").wait()
	}
}

// fileReadOnly takes the right to write from a file that is open.
func fileReadOnly(p *play) {
	s := p.start("server")
	first, second := both(p, s)
	p.act("makes the file read-only", func() error { return os.Chmod(p.store(), 0o400) })
	whileGone(p, s, first, second)
	p.act("makes the file writable", func() error { return os.Chmod(p.store(), 0o600) })
	s.stop()
	afterwards(p, first, second)
}

// logRemoved removes a log that holds nothing: what was acknowledged is in the file.
func logRemoved(p *play) {
	s := p.start("first")
	first, second := both(p, s)
	s.stop()
	s = p.start("server")
	s.send(status(15)) // it has the log open
	p.act("removes the log", func() error { return os.Remove(p.store() + "-wal") })
	whileGone(p, s, first, second)
	s.stop()
	afterwards(p, first, second)
}

// fileTruncatedWarm cuts the file when what the next write needs is in the log: the
// write could succeed, and the rest of the file would be gone.
func fileTruncatedWarm(p *play) {
	s := p.start("first")
	first := rounds(s, atomic)
	s.stop()
	s = p.start("server")
	warm := call{id: 15, operation: p.op + "-warm"}
	s.send(continued(16, warm, s.send(warm).state))
	second := s.send(p.next(20)).state
	p.act("cuts the file", func() error { return os.Truncate(p.store(), 0) })
	whileGone(p, s, first, second)
	s.kill()
}
