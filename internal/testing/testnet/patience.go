package testnet

import (
	"errors"
	"os"
	"time"
)

// A patience is what is left of a client's patience. It is counted in steps, and each begins when the one before was seen to
// end. So a process, or a virtual machine, that stands still for longer than all of it loses one step, and takes the answer
// that came meanwhile; a deadline by the clock would have passed, and the client would call silent who was not.
type patience struct {
	step  time.Duration
	left  int
	until time.Time // the end of this step
}

const patienceSteps = 10

func newPatience(d time.Duration) patience {
	step := d / patienceSteps
	return patience{step: step, left: patienceSteps, until: time.Now().Add(step)}
}

// over reports whether it has ended. If a step has ended, and it was not the last, the next begins.
func (p *patience) over() bool {
	now := time.Now()
	if now.Before(p.until) {
		return false
	}
	p.left--
	p.until = now.Add(p.step)
	return p.left <= 0
}

// read calls one, which reads from the connection, again until it reads something, fails, or patience ends.
func (c *Conn) read(d time.Duration, one func() error) error {
	for p := newPatience(d); ; {
		if err := c.conn.SetReadDeadline(p.until); err != nil {
			return err
		}
		if err := one(); !errors.Is(err, os.ErrDeadlineExceeded) || p.over() {
			return err
		}
	}
}
