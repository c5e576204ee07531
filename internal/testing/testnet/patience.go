package testnet

import (
	"errors"
	"os"
	"time"
)

// A patience is the rest of the time that a client waits. It consists of steps, and a step begins when the client sees
// that the one before has ended. So if a process or a virtual machine stands still for longer than the whole time, it
// loses only one step, and still reads an answer that came in that time. A deadline by the clock would have passed, and
// the answer would count as silence.
type patience struct {
	step  time.Duration
	left  int
	until time.Time // the end of the step
}

const patienceSteps = 10

func newPatience(d time.Duration) patience {
	step := d / patienceSteps
	return patience{step: step, left: patienceSteps, until: time.Now().Add(step)}
}

// over reports whether the patience has ended. If only a step has ended, the next step begins.
func (p *patience) over() bool {
	now := time.Now()
	if now.Before(p.until) {
		return false
	}
	p.left--
	p.until = now.Add(p.step)
	return p.left <= 0
}

// read calls one, which reads from the connection, until it reads something, fails, or the patience ends.
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
