package guard

import (
	"fmt"
	"runtime/debug"
)

// crash is what is left of a function that did not return.
type crash struct {
	what  string
	stack []byte
}

func (c *crash) Error() string { return c.what }

// apart runs fn on a goroutine of its own and waits for it. A panic of fn, and even
// runtime.Goexit, come back as a *crash: on the SDK's goroutine the one would end
// the process and the other leave the call without a reply.
func apart[T any](fn func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	err = &crash{what: "it ended its goroutine"} // unless fn returns
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = &crash{what: fmt.Sprintf("panic: %v", p), stack: debug.Stack()}
			}
		}()
		v, err = fn()
	}()
	<-done
	return v, err
}
