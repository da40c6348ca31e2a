package lab

import "os"

// logCells damage the end of the log after a crash, as a loss of power can: the last
// transaction, which was never acknowledged, is wholly gone, and nothing else is.
func logCells() []cell {
	return []cell{
		faultCell("log-torn", "the last frame of the log is cut in the middle", doneOnce, func(p *play) {
			tornLog(p, "cuts the last frame of the log in the middle", func(path string, size int64) error {
				return os.Truncate(path, size-2048)
			})
		}),
		faultCell("log-flipped", "a bit of the last frame of the log is wrong", doneOnce, func(p *play) {
			tornLog(p, "flips a bit of the last frame of the log", func(path string, size int64) error {
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					return err
				}
				defer f.Close()
				var b [1]byte
				if _, err := f.ReadAt(b[:], size-2048); err != nil {
					return err
				}
				b[0] ^= 1
				_, err = f.WriteAt(b[:], size-2048)
				return err
			})
		}),
		faultCell("log-whole", "the log is left as it is", reconciled, func(p *play) {
			tornLog(p, "leaves the log as it is", func(string, int64) error { return nil })
		}),
	}
}

// tornLog has one operation acknowledged by a server that is killed, and the reply
// of another lost; nothing has moved from the log to the file.
func tornLog(p *play, text string, damage func(path string, size int64) error) {
	s := p.start("killed")
	first := rounds(s, atomic)
	s.kill()
	s = p.start("crash", "--fault", "exit-after-commit")
	second := s.send(p.next(20)).state
	s.send(continued(21, p.next(0), second))
	s.wait()
	p.act(text, func() error {
		info, err := os.Stat(p.store() + "-wal")
		if err != nil {
			return err
		}
		return damage(p.store()+"-wal", info.Size())
	})
	afterwards(p, first, second)
}
