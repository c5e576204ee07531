package enforcer

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// flips is how often the policies change.
const flips = 200

// Policies of one pod change all the time, each in another way of saying the same: the client is let in, and nobody else.
// At no moment is the client refused, its connection lives, and no packet of a stranger comes.
func TestFlips(t *testing.T) {
	r := newRig(t)
	web, client, stranger := r.pod("web", webAddr, map[string]string{"app": "web"}), r.pod("client", clientAddr, map[string]string{"app": "client"}), r.pod("stranger", otherAddr, nil)
	at := netip.AddrPortFrom(webAddr, 8080)
	web.Serve("tcp", at)
	peers := []networkpolicy.Peer{
		{Pods: &api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"client"}}}}},
		{Pods: &api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"client", "nobody"}}}}},
		{Block: &networkpolicy.Block{CIDR: netip.PrefixFrom(clientAddr, 32)}},
		{Block: &networkpolicy.Block{CIDR: netip.MustParsePrefix("10.244.1.8/29"), Except: []netip.Prefix{netip.PrefixFrom(otherAddr, 32)}}},
	}
	set := func(i int) {
		name := api.Name{Namespace: "default", Name: fmt.Sprint("web-", i%2)}
		rule := networkpolicy.Rule{Peers: []networkpolicy.Peer{peers[i%len(peers)]}}
		if i%3 == 0 {
			rule.Ports = []networkpolicy.Port{{Proto: api.TCP, First: 8000, Last: 8080}}
		}
		r.source.setPolicy(name, &networkpolicy.Policy{Name: name, Isolates: [2]bool{networkpolicy.Ingress: true}, Rules: [2][]networkpolicy.Rule{networkpolicy.Ingress: {rule}},
			Selector: api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"web"}}}}})
	}
	// written waits until the kernel has what the objects say: the agent answers in order.
	written := func(i int) {
		r.askUntil(isolate.Request{Command: isolate.Add, Pod: "default/flip", UID: "flip", Container: fmt.Sprintf("%012d", i), Addrs: []netip.Addr{netip.MustParseAddr("10.244.9.9")}})
	}
	set(0)
	r.eventually("web is isolated", func() bool { return stranger.Ask("tcp", at, testnet.Patience).Outcome == testnet.Dropped })
	lasting := r.connect(client, at)
	came, listener := new(atomic.Int32), listenAt(t, web)
	var working sync.WaitGroup
	working.Go(func() {
		for b := make([]byte, 100); ; {
			if _, _, err := listener.ReadFrom(b); err != nil {
				return
			}
			came.Add(1)
		}
	})
	end := make(chan struct{})
	sent := 0
	working.Go(func() { sent = keepSending(t, stranger, end) })
	asking := client.KeepAsking(at)
	for i := 1; i <= flips; i++ {
		set(i) // two say the same for a moment, then one
		written(i)
		r.source.setPolicy(api.Name{Namespace: "default", Name: fmt.Sprint("web-", (i+1)%2)}, nil)
		written(i)
	}
	asked, failed := asking()
	close(end)
	if a := lasting.Ask(testnet.Patience * 60); a.Outcome != testnet.Answered {
		t.Errorf("the client's connection: %v", a)
	}
	_ = listener.Close()
	working.Wait()
	if t.Logf("%d requests and %d packets of a stranger in %d changes", asked, sent, 2*flips); len(failed) > 0 || asked < 10 {
		t.Errorf("%d of %d requests failed: %v", len(failed), asked, failed)
	}
	if came.Load() > 0 || sent < 10 {
		t.Errorf("%d of %d packets of a stranger came", came.Load(), sent)
	}
}

// keepSending sends from otherAddr to webAddr until end is closed, and returns how often.
func keepSending(t *testing.T, from *testnet.Host, end chan struct{}) (sent int) {
	for {
		select {
		case <-end:
			return sent
		default:
		}
		if err := from.Do(func() error { return sendFrom(otherAddr, netip.AddrPortFrom(webAddr, 9), "stranger") }); err != nil {
			t.Error(err)
			return sent
		}
		sent++
	}
}
