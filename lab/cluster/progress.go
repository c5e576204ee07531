package cluster

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A Progress prints the steps of Up or Down, line by line.
type Progress struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

// NewProgress writes to out and counts the time from now.
func NewProgress(out io.Writer) *Progress {
	return &Progress{out: out, start: time.Now()}
}

// Done prints that a step is done, and the time since the start.
func (p *Progress) Done(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "✓ %-46s %5.1fs\n", fmt.Sprintf(format, args...), time.Since(p.start).Seconds())
}

// Say prints a line without the time.
func (p *Progress) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// count returns a number with its noun in the right form.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
