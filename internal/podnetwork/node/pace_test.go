package node

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// restless are nodes that change all the time.
type restless struct{ noNodes }

func (restless) Dirty() <-chan struct{} { return noNodes{}.Synced() }

// TestRestlessNode: a Node object that changes all the time does not keep a core busy, whether the passes succeed or
// fail. A network of a link that comes back during the pause is seen at once.
func TestRestlessNode(t *testing.T) {
	for name, failure := range map[string]error{"passes succeed": nil, "passes fail": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			const work = 50 * time.Millisecond // of a pass
			ns := testnet.NewNamespace(t, "node")
			var mu sync.Mutex
			var passes []time.Time
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- ns.Do(func() error {
					n := New(Config{Log: slog.New(slog.DiscardHandler)})
					return n.follow(ctx, restless{}, time.Second, func([]plan.Peer) error {
						mu.Lock()
						passes = append(passes, time.Now())
						mu.Unlock()
						<-time.After(work)
						return failure
					})
				})
			}()
			defer func() {
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
			count := func() int {
				mu.Lock()
				defer mu.Unlock()
				return len(passes)
			}
			<-time.After(2 * time.Second)
			if n := count(); n < 2 || n > 8 {
				t.Errorf("%d passes of %v in 2 s, want 2 to 8", n, work)
			}
			for n := count(); count() == n; { // a pass begins
				time.Sleep(time.Millisecond)
			}
			<-time.After(2 * work) // it has ended, and the pause lasts
			n := count()
			if err := ns.Do(func() error {
				return exec.Command("sh", "-ec", "ip link add eth9 type veth peer name eth8; ip addr add 192.0.2.1/24 dev eth9; ip link set eth8 up; ip link set eth9 up").Run()
			}); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for count() == n {
				if time.Since(start) > 5*time.Second {
					t.Fatal("no pass after the change of a link")
				}
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(start); took > 200*time.Millisecond {
				t.Errorf("the pass for a link began after %v", took)
			}
		})
	}
}
