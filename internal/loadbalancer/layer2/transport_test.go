package layer2

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestForged: forged packets take no place in the queue, however many there are, and the speakers' packets come
// through.
func TestForged(t *testing.T) {
	testnet.Enter(t)
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	key := []byte("0123456789abcdef0123456789abcdef")
	member := election.New(election.Config{Self: "node-2", Key: key, Timing: election.DefaultTiming, Random: func() uint64 { return 7 }})
	member.SetPeers([]string{"node-1"})
	member.SetVoters(election.Voters{Epoch: 1, Names: []string{"node-1"}})
	sealed := member.Beat(time.Second)
	if len(sealed) != 1 {
		t.Fatalf("%d packets", len(sealed))
	}
	var refused atomic.Int64
	tr, err := listen(t.Context(), 0, key, func() { refused.Add(1) })
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- tr.run() }()
	c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", tr.conn.LocalAddr().(*net.UDPAddr).Port))
	must(t, err)
	defer c.Close()
	forged := append([]byte(nil), sealed[0].Data...)
	forged[10] ^= 1
	const many = 3 * inboxSize // the test does not read the inbox
	for sent := int64(0); sent < many; sent++ {
		_, err := c.Write(forged)
		must(t, err)
		for end := time.Now().Add(time.Minute); sent-refused.Load() > 100; time.Sleep(time.Millisecond) { // the kernel's queue has a bound too
			if time.Now().After(end) {
				t.Fatalf("%d of %d are refused", refused.Load(), sent)
			}
		}
	}
	_, err = c.Write(sealed[0].Data)
	must(t, err)
	select {
	case data := <-tr.inbox:
		if !election.Authentic(key, data) {
			t.Error("a forged packet is in the queue")
		}
	case <-time.After(time.Minute):
		t.Error("what a speaker sent is lost")
	}
	must(t, tr.conn.Close())
	must(t, <-done)
}
