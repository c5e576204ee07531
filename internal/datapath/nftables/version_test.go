package nftables_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// load opens one connection after the other until the caller calls stop. stop fails the test if a connection was not
// answered. load returns after the first answer.
func (n *node) load(to string) (stop func()) {
	n.t.Helper()
	begun, done := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	var failed []string
	asked := 0
	wait.Go(func() {
		first := sync.OnceFunc(func() { close(begun) })
		defer first()
		for {
			select {
			case <-done:
				return
			default:
			}
			if got := n.clients[0].Ask("tcp", netip.MustParseAddrPort(to), patience); got.Outcome != testnet.Answered {
				failed = append(failed, fmt.Sprintf("request %d: %v", asked, got))
				if len(failed) == 5 {
					return
				}
			}
			asked++
			first()
		}
	})
	<-begun
	stop = sync.OnceFunc(func() {
		close(done)
		wait.Wait()
		for _, f := range failed {
			n.t.Error(f)
		}
		n.t.Logf("%d requests", asked)
	})
	n.t.Cleanup(stop)
	return stop
}

// nft runs nft in the node. Without arguments its input is text.
func (n *node) nft(text string, args ...string) string {
	n.t.Helper()
	if len(args) == 0 {
		args = []string{"-f", "-"}
	}
	var out []byte
	err := n.host.Do(func() (err error) {
		cmd := exec.Command("nft", args...)
		cmd.Stdin = strings.NewReader(text)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		n.t.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

// TestAnotherVersion: a version with other rules takes over the elements unchanged.
func TestAnotherVersion(t *testing.T) {
	t.Parallel()
	n := newNode(t, nftables.Config{}, 1)
	affine := n.frontend("10.96.0.7:77", api.TCP, service.Random)
	affine.Affinity = 10 * time.Minute
	all := []*service.Frontend{n.frontend("10.96.0.1:80", api.TCP, service.RoundRobin), affine, n.frontend("0.0.0.0:30080", api.TCP, service.Maglev)}
	n.sync(all...)
	home := n.ask(n.clients[0], "tcp", "10.96.0.7:77")
	stop := n.load("10.96.0.1:80")
	for i := range 6 {
		n.cfg.Mark = 1 << (10 + i)
		n.restart()
		if s := n.sync(all...); s.Added+s.Deleted > 0 {
			t.Errorf("another version wrote elements: %+v", s)
		}
		if now := n.ask(n.clients[0], "tcp", "10.96.0.7:77"); now != home {
			t.Errorf("a client with affinity is at %v, was at %v", now, home)
		}
		n.ask(n.clients[0], "tcp", "172.18.0.11:30080")
	}
	stop()
}

// TestLeave: while Cleanup removes the table, another mechanism serves already, and no connection is refused. The other
// mechanism is a rule behind ours.
func TestLeave(t *testing.T) {
	t.Parallel()
	n := newNode(t, nftables.Config{}, 1)
	n.nft(`table ip other {
	chain prerouting {
		type nat hook prerouting priority dstnat + 10; policy accept;
		ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.1.1:8080
	}
}`)
	f := n.frontend("10.96.0.1:80", api.TCP, service.Random)
	f.ClusterIP = true
	all := []*service.Frontend{f}
	for i := range 300 { // elements that the kernel removes one after the other
		more := n.frontend(fmt.Sprintf("10.97.%d.%d:80", i/250, i%250), api.TCP, service.Random)
		more.ClusterIP = true
		all = append(all, more)
	}
	stop := n.load("10.96.0.1:80")
	for range 12 {
		n.sync(all...)
		if err := n.host.Do(func() error { return n.dp.Cleanup(context.Background()) }); err != nil {
			t.Fatal(err)
		}
	}
	stop()
}
