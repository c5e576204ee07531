package liveness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// redial is the pause between two connections to the speaker.
const redial = time.Second

// A Follower keeps the latest list of this node's speaker. Any goroutine may call its methods.
type Follower struct {
	socket string
	lapse  time.Duration
	dirty  chan struct{}

	mu   sync.Mutex
	dead []string
	end  *time.Timer // clears dead
}

// NewFollower returns a Follower with an empty list.
func NewFollower() *Follower {
	return &Follower{socket: Socket, lapse: Lapse, dirty: make(chan struct{}, 1)}
}

// Dirty receives after each change of Dead.
func (f *Follower) Dirty() <-chan struct{} { return f.dirty }

// Dead returns the nodes that their peers declare dead, sorted. The caller must not change it.
func (f *Follower) Dead() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

// Run follows the speaker, if there is one, until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	for {
		_ = each(ctx, f.socket, func(l line) bool { f.set(l.Dead); return true }) // an error means: no speaker
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(redial):
		}
	}
}

// set stores a list until the lapse.
func (f *Follower) set(dead []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end != nil {
		f.end.Stop()
		f.end = nil
	}
	if len(dead) > 0 {
		var end *time.Timer
		end = time.AfterFunc(f.lapse, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.end == end { // no newer list has come
				f.changeLocked(nil)
			}
		})
		f.end = end
	}
	f.changeLocked(dead)
}

func (f *Follower) changeLocked(dead []string) {
	if slices.Equal(f.dead, dead) {
		return
	}
	f.dead = dead
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// Ask returns the present list of the speaker in this network namespace; nil if there is no speaker, or the speaker has no
// list.
func Ask(ctx context.Context) (dead []string) {
	ctx, cancel := context.WithTimeout(ctx, repeat)
	defer cancel()
	_ = each(ctx, Socket, func(l line) bool { dead = l.Dead; return false }) // an error means: no list
	return dead
}

// each calls f with each line of the speaker, until f returns false.
func each(ctx context.Context, socket string, f func(line) bool) error {
	c, err := listener.DialRoot(ctx, socket)
	if err != nil {
		return fmt.Errorf("ask the speaker: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	return readLines(c, f)
}
