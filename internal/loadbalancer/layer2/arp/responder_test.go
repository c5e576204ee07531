package arp

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// on returns a Responder on an interface of its own namespace, which only the test drives, and its count of each
// address's announcements.
func on(t *testing.T) (*Responder, map[netip.Addr]int) {
	t.Helper()
	testnet.Enter(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	eth0 := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0-peer"}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	for _, step := range []func() error{
		func() error { return err },
		func() error { return netlink.LinkAdd(eth0) },
		func() error { return netlink.AddrAdd(eth0, addr) },
		func() error { return netlink.LinkSetUp(eth0) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	sent := map[netip.Addr]int{}
	a := New(Config{
		Log: slog.New(slog.DiscardHandler), Allowed: func(netip.Addr) bool { return true }, Conflict: func(netip.Addr, string, MAC) {},
		Interfaces: func([]Interface) {},
		Count: func(f Frame, to netip.Addr) {
			if f == Gratuitous {
				sent[to]++
			}
		},
	})
	if err := a.refresh(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.closeAll(); a.work.Wait() })
	return a, sent
}

// TestRepeats: an address is announced five times in 4.4 s, as request and as reply, and then again before a switch
// forgets it after 300 s. Addresses that appeared together do not stay together.
func TestRepeats(t *testing.T) {
	a, sent := on(t)
	second := netip.MustParseAddr("192.0.2.11")
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, addr := range []netip.Addr{vip4, second} {
		a.addrs[addr] = &announced{left: burst}
	}
	at := map[netip.Addr][]time.Duration{}
	start := time.Now()
	for now := time.Duration(0); now < 2*time.Hour; {
		before := map[netip.Addr]int{vip4: sent[vip4], second: sent[second]}
		next := a.announceLocked(start.Add(now))
		for addr, n := range before {
			switch sent[addr] - n {
			case 0:
			case 2:
				at[addr] = append(at[addr], now)
			default:
				t.Fatalf("%v: %d frames at once, want a request and a reply", addr, sent[addr]-n)
			}
		}
		now += next
	}
	same := 0
	for i, when := range at[vip4] {
		pause := when - at[vip4][max(i-1, 0)]
		switch least, most := repeatMin, 300*time.Second; {
		case i > 0 && i < burst && pause != burstPause:
			t.Errorf("announcement %d after %v, want %v", i+1, pause, burstPause)
		case i >= burst && (pause < least || pause >= most):
			t.Errorf("announcement %d after %v, want %v to %v", i+1, pause, least, most)
		}
		if i >= burst && i < len(at[second]) && at[second][i] == when {
			same++
		}
	}
	if n := len(at[vip4]); n < 25 || same > n/2 {
		t.Errorf("%d announcements in two hours, %d together with those of another address", n, same)
	}
}

// TestDefends: when another machine claims an address of this node, the node announces it again at once. It does so
// less often than a hostile machine claims it, and not for other addresses.
func TestDefends(t *testing.T) {
	a, sent := on(t)
	var conflicts []MAC
	a.cfg.Conflict = func(_ netip.Addr, _ string, mac MAC) { conflicts = append(conflicts, mac) }
	a.Set(map[netip.Addr][]string{vip4: nil})
	claim := func(addr netip.Addr) (n int) {
		q, ok := parseFrame(gratuitous(addr, other, source6)[0])
		if !ok {
			t.Fatal("a claim is no frame")
		}
		a.mu.Lock()
		p := a.listeners["eth0"]
		n = sent[addr]
		a.mu.Unlock()
		a.handle(p, q)
		return sent[addr] - n
	}
	if n := claim(vip4); n != 2 || len(conflicts) != 1 || conflicts[0] != other {
		t.Errorf("a claim: %d frames, conflicts with %v", n, conflicts)
	}
	if n := claim(vip4); n != 0 || len(conflicts) != 1 {
		t.Errorf("the next one at once: %d frames, conflicts with %v", n, conflicts)
	}
	if n := claim(client4); n != 0 || len(conflicts) != 1 {
		t.Errorf("another address: %d frames, conflicts with %v", n, conflicts)
	}
}

// TestGroups: the kernel receives packets to the solicited-node multicast groups of the addresses, on their
// interfaces. A switch that snoops would pass on nothing else.
func TestGroups(t *testing.T) {
	a, _ := on(t)
	joined := func() string {
		text, err := os.ReadFile("/proc/thread-self/net/igmp6")
		if err != nil {
			t.Skip("this kernel has no IPv6")
		}
		var groups []string
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); f[1] == "eth0" && strings.HasPrefix(f[2], "ff0200000000000000000001ff0000") {
				groups = append(groups, f[2][len(f[2])-6:])
			}
		}
		return strings.Join(groups, " ")
	}
	for _, c := range []struct {
		addrs map[netip.Addr][]string
		want  string
	}{
		{map[netip.Addr][]string{vip6: nil, vip4: nil}, "000010"},
		{map[netip.Addr][]string{vip6: {"eth1"}}, ""},
		{map[netip.Addr][]string{vip6: {"eth0", "eth1"}}, "000010"},
		{nil, ""},
	} {
		a.Set(c.addrs)
		if got := joined(); got != c.want {
			t.Errorf("announcing %v: groups %q, want %q", c.addrs, got, c.want)
		}
	}
}
