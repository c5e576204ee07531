package arp

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// TestGroups: the kernel receives packets to the solicited-node multicast groups of the addresses, on their interfaces.
// A switch that snoops would pass on nothing else.
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

// TestProbe: a machine on a network of the node that has the address fails a probe. A pod that answers for it on a link
// where this node would not announce the address does not.
func TestProbe(t *testing.T) {
	a, _ := on(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "cali0"
	pod := &netlink.Veth{LinkAttrs: attrs, PeerName: "cali0-peer"}
	gateway, err := netlink.ParseAddr("192.0.2.254/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkAdd(pod), netlink.AddrAdd(pod, gateway)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cali0", "cali0-peer", "eth0-peer"} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := a.refresh(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from    string
		devices []string
		taken   bool
	}{
		{"cali0-peer", nil, false}, {"eth0-peer", nil, true}, {"cali0-peer", []string{"eth0"}, false},
		{"eth0-peer", []string{"eth0"}, true}, {"cali0-peer", []string{"cali0"}, true}, {"eth0-peer", []string{"cali0"}, false},
	} {
		wait := 200 * time.Millisecond
		if c.taken {
			wait = time.Minute
		}
		if mac, taken := probeAgainst(t, a, c.from, c.devices, wait); taken != c.taken || taken && mac != other {
			t.Errorf("a machine behind %s answers, devices %v: taken %v by %v, want %v", c.from, c.devices, taken, mac, c.taken)
		}
	}
}

// probeAgainst probes an address while a machine behind an interface answers for it all the time.
func probeAgainst(t *testing.T, a *Responder, from string, devices []string, wait time.Duration) (MAC, bool) {
	t.Helper()
	i, err := net.InterfaceByName(from)
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFrames(link{Interface: Interface{Name: from}, index: i.Index}, unix.ETH_P_ARP)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stop := make(chan struct{})
	var answers sync.WaitGroup
	answers.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_, _ = f.Write(gratuitous(vip4, other, source6)[1]) // the next one repeats it
			}
		}
	})
	defer answers.Wait()
	defer close(stop)
	return a.Probe(t.Context(), vip4, devices, wait)
}
