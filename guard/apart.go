package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
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

// errOverdue is the end of a wait, not of what was waited for.
var errOverdue = errors.New("its time is over and it has not ended")

// bounded is apart for a function that has limit to end in, by its context, and is not
// waited for much longer: then it goes on alone, and the error is errOverdue.
func bounded[T any](ctx context.Context, limit time.Duration, fn func(context.Context) (T, error)) (T, error) {
	type ending struct {
		v   T
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	ended := make(chan ending, 1)
	go func() {
		defer cancel()
		v, err := apart(func() (T, error) { return fn(ctx) })
		ended <- ending{v, err}
	}()
	timer := time.NewTimer(limit + effectGrace)
	defer timer.Stop()
	select {
	case e := <-ended:
		return e.v, e.err
	case <-timer.C:
		var none T
		return none, errOverdue
	}
}
