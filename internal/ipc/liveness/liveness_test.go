package liveness

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/ipc/listener"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// start runs something until the test ends, or stop is called.
func start(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return run(ctx) })
	stop = func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// until calls again and again what a speaker's loop does, until a Follower knows want.
func until(t *testing.T, f *Follower, loop func(), want ...string) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); fmt.Sprint(f.Dead()) != fmt.Sprint(want); {
		if loop(); time.Now().After(end) {
			t.Fatalf("%v are dead, want %v", f.Dead(), want)
		}
		select {
		case <-f.Dirty():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pair is a Publisher and a Follower at a socket of the test's.
func pair(t *testing.T) (*Publisher, *Follower) {
	p, f := NewPublisher(slog.New(slog.DiscardHandler)), NewFollower()
	p.socket = fmt.Sprintf("@fairway/test/%s/%d", t.Name(), os.Getpid())
	f.socket, f.lapse = p.socket, 2*time.Second
	return p, f
}

// TestFollow: a Follower knows what a speaker says as long as that goes on saying so: a speaker
// that ends, hangs, or knows nothing any more is forgotten; the next one is heard.
func TestFollow(t *testing.T) {
	testnet.NeedRoot(t, "is heard as only root is")
	p, f := pair(t)
	start(t, f.Run)
	stop := start(t, p.Run)
	says := func(dead ...string) func() { return func() { p.Set(dead) } }
	until(t, f, says("node-3", "node-2"), "node-2", "node-3")
	until(t, f, says("node-2"), "node-2")
	until(t, f, says())
	until(t, f, says("node-2"), "node-2")
	until(t, f, func() {}) // its loop hangs, or hears no majority
	until(t, f, says("node-2"), "node-2")
	stop()
	until(t, f, says("node-2")) // nobody listens
	start(t, p.Run)
	until(t, f, says("node-2"), "node-2")
}

// TestOnlyRoot: whoever else takes the socket's name, and whoever else connects, is not heard and
// not told.
func TestOnlyRoot(t *testing.T) {
	p, f := pair(t)
	var l net.Listener
	var err error
	testnet.AsNobody(t, func() { l, err = listener.Listen(p.socket) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var g errgroup.Group
	g.Go(func() error {
		c, err := l.Accept()
		if err == nil {
			fmt.Fprintln(c, `{"dead":["node-1"]}`)
			c.Close()
		}
		return nil
	})
	if err := each(t.Context(), f.socket, func(l line) bool { t.Errorf("another user says that %v are dead", l.Dead); return false }); err == nil {
		t.Error("another user's socket is taken for a speaker's")
	}
	_ = g.Wait()
	var log testnet.Log
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	start(t, p.Run)
	if err := log.Await("of user 65534 has the socket "+p.socket, 60*time.Second); err != nil {
		t.Error(err)
	}
	l.Close()
	until(t, f, func() { p.Set([]string{"node-2"}); f.set(ask(f.socket)) }, "node-2")
	var dead []string
	testnet.AsNobody(t, func() { dead = ask(f.socket) })
	if dead != nil {
		t.Errorf("another user is told that %v are dead", dead)
	}
}

func ask(socket string) (dead []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = each(ctx, socket, func(l line) bool { dead = l.Dead; return false })
	return dead
}
