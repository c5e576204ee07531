package liveness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// Socket is the speaker's abstract Unix socket. Its name belongs to the network namespace.
const Socket = "@fairway/speaker"

const (
	// Lapse is the time without news after which a Follower clears its list. The restart of a speaker takes less time.
	Lapse = 5 * time.Second
	// repeat is the period in which a Publisher sends an unchanged list. It sends no list that is older than fresh.
	repeat = time.Second
	fresh  = time.Second
	// maxReaders limits the connections.
	maxReaders = 16
)

// A Publisher sends a list to all connected programs. Any goroutine may call Set.
type Publisher struct {
	log     *slog.Logger
	socket  string
	mu      sync.Mutex
	dead    []string // sorted
	at      time.Time
	changed chan struct{} // closed at the next change
}

// NewPublisher returns a Publisher that sends nothing before the first Set.
func NewPublisher(log *slog.Logger) *Publisher { return &Publisher{log: log, socket: Socket} }

// Set stores the list of dead nodes. The caller must repeat Set at least every second, because a Publisher does not send
// an older list.
func (p *Publisher) Set(dead []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Now()
	if p.changed != nil && slices.Equal(p.dead, dead) {
		return
	}
	if p.changed != nil {
		close(p.changed)
	}
	p.dead, p.changed = slices.Clone(dead), make(chan struct{})
}

// now returns the list, whether the list is fresh, and a channel that is closed at the next change.
func (p *Publisher) now() (l line, known bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	l.Dead = append([]string{}, p.dead...)
	return l, time.Since(p.at) <= fresh, p.changed
}

// Run listens until ctx ends, which is no error. It waits for the socket if a previous speaker, or another program, has it.
func (p *Publisher) Run(ctx context.Context) error {
	l, err := listener.Await(ctx, p.log, p.socket)
	if err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	if l == nil {
		return nil
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	limit := make(chan struct{}, maxReaders)
	err = listener.Serve(ctx, l, func(c net.Conn) {
		select {
		case limit <- struct{}{}:
			readers.Go(func() {
				defer func() { <-limit }()
				p.serve(ctx, c)
			})
		default:
			c.Close()
		}
	})
	if err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	return nil
}

// serve sends the list to one reader until the reader closes the connection.
func (p *Publisher) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	if listener.Peer(c).Uid != 0 {
		return
	}
	again := time.NewTicker(repeat)
	defer again.Stop()
	for {
		l, known, changed := p.now()
		if known {
			if l.write(c) != nil {
				return
			}
		} else if gone(c) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again.C:
		}
	}
}

// gone reports whether the reader has closed the connection. A reader never sends.
func gone(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	return err == nil || !errors.As(err, &timeout) || !timeout.Timeout()
}
