package nftables_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// patience is the time to wait for answers that must come, also on a busy machine.
const patience = 20 * time.Second

// A node has a datapath, three pods that answer, and some client pods.
type node struct {
	t       testing.TB
	net     *testnet.Net
	host    *testnet.Host
	eps     []service.Endpoint // IPv4, then IPv6
	clients []*testnet.Host
	cfg     nftables.Config
	dp      *nftables.Datapath
}

func newNode(t testing.TB, cfg nftables.Config, clients int) *node {
	n := &node{t: t, net: testnet.New(t), cfg: cfg}
	n.host = n.net.Node("node-1")
	for _, is4 := range []bool{true, false} {
		for i := range 3 {
			a := pod(is4, 1+i)
			h := n.net.Pod(n.host, fmt.Sprintf("answers-%v", a), a)
			at := netip.AddrPortFrom(a, 8080)
			h.Serve("tcp", at)
			h.Serve("udp", at)
			n.eps = append(n.eps, service.Endpoint{Addr: at, Local: true})
		}
	}
	for i := range clients {
		n.clients = append(n.clients, n.net.Pod(n.host, fmt.Sprintf("client-%d", i), pod(true, 100+i), pod(false, 100+i)))
	}
	n.restart()
	t.Cleanup(func() { n.dp.Close() })
	return n
}

func pod(is4 bool, i int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%d", i))
}

// restart replaces the datapath, like a new process.
func (n *node) restart() {
	n.t.Helper()
	if n.dp != nil {
		n.dp.Close()
	}
	var err error
	if n.dp, err = nftables.New(n.cfg); err != nil {
		n.t.Fatal(err)
	}
}

// frontend returns a frontend at an address, with the endpoints of its family and an algorithm.
func (n *node) frontend(at string, proto api.Proto, balance service.Algorithm, weights ...uint16) *service.Frontend {
	addr := netip.MustParseAddrPort(at)
	r := &service.Route{Masquerade: service.MasqueradeOffCluster}
	for _, e := range n.eps {
		if e.Addr.Addr().Is4() != addr.Addr().Is4() {
			continue
		}
		if i := len(r.Endpoints); i < len(weights) {
			e.Weight = weights[i]
		}
		r.Endpoints = append(r.Endpoints, e)
	}
	return &service.Frontend{
		Addr: addr, Proto: proto, Balance: balance, Internal: r, External: r,
		Service: api.PortName{Name: api.Name{Namespace: "default", Name: fmt.Sprintf("at-%d", addr.Port())}, Port: proto.String()},
	}
}

// table returns a table of frontends with the node's settings.
func (n *node) table(frontends ...*service.Frontend) *service.Table {
	return service.NewTable(service.Settings{
		Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("172.18.0.11/32"), netip.MustParsePrefix("fd00:172:18::11/128")},
		NodeIPs:   []netip.Addr{netip.MustParseAddr("172.18.0.11")},
	}, frontends)
}

// sync writes a table, checks that it can be read back and that nft can print it.
func (n *node) sync(frontends ...*service.Frontend) datapath.Stats {
	n.t.Helper()
	table := n.table(frontends...)
	var stats datapath.Stats
	err := n.host.Do(func() (err error) {
		if stats, err = n.dp.Sync(context.Background(), table); err != nil {
			return err
		}
		held, err := n.dp.Adopt(context.Background())
		if err != nil {
			return err
		}
		if diff := service.Diff(held.Table, table); len(diff) > 0 || !held.Table.Settings.Equal(table.Settings) {
			return fmt.Errorf("read back %d frontends that differ, the first %v", len(diff), diff[:min(1, len(diff))])
		}
		if out, err := exec.Command("nft", "list", "table", "inet", "fairway").CombinedOutput(); err != nil {
			return fmt.Errorf("nft list: %w: %.300s", err, out)
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return stats
}

// ask returns the endpoint that answers a client.
func (n *node) ask(client *testnet.Host, network, to string) netip.AddrPort {
	n.t.Helper()
	got := client.Ask(network, netip.MustParseAddrPort(to), patience)
	if got.Outcome != testnet.Answered {
		n.t.Fatalf("%s to %s: %v", client.Name, to, got)
	}
	return got.At
}

// TestRoundRobin: each Service takes its own turns, also while clients call other Services, and continues after a
// restart.
func TestRoundRobin(t *testing.T) {
	t.Parallel()
	n := newNode(t, nftables.Config{}, 1)
	all := []*service.Frontend{
		n.frontend("10.96.0.1:80", api.TCP, service.RoundRobin), n.frontend("10.96.0.2:81", api.TCP, service.RoundRobin),
		n.frontend("10.96.0.1:80", api.UDP, service.RoundRobin), n.frontend("[fd00:10:96::1]:80", api.TCP, service.RoundRobin),
		n.frontend("10.96.0.3:83", api.TCP, service.RoundRobin, 1, 2, 3), n.frontend("0.0.0.0:30080", api.TCP, service.RoundRobin),
	}
	n.sync(all...)
	turns := map[string][]netip.AddrPort{}
	call := func(network, to string) {
		turns[network+to] = append(turns[network+to], n.ask(n.clients[0], network, to))
	}
	for i := range 24 {
		call("tcp", "10.96.0.1:80")
		for range i % 3 { // calls of other Services in between
			call("tcp", "10.96.0.2:81")
		}
		call("udp", "10.96.0.1:80")
		call("tcp", "[fd00:10:96::1]:80")
		call("tcp", "10.96.0.3:83")
		call("tcp", "172.18.0.11:30080")
		if i == 10 {
			n.restart()
			if s := n.sync(all...); s.Added+s.Deleted > 0 {
				t.Errorf("a restart wrote: %+v", s)
			}
		}
	}
	for to, got := range turns {
		cycle := 3
		if to == "tcp10.96.0.3:83" {
			cycle = 6
		}
		for i := range got[cycle:] {
			if got[i] != got[i+cycle] {
				t.Errorf("%s: turn %d is %v, turn %d %v", to, i, got[i], i+cycle, got[i+cycle])
			}
		}
		share := map[netip.AddrPort]int{}
		for _, a := range got[:cycle] {
			share[a]++
		}
		var counts []int
		for _, c := range share {
			counts = append(counts, c)
		}
		slices.Sort(counts)
		if want := map[int][]int{3: {1, 1, 1}, 6: {1, 2, 3}}[cycle]; !slices.Equal(counts, want) {
			t.Errorf("%s: shares of a cycle are %v, want %v", to, counts, want)
		}
	}
}

// TestWeights: three endpoints have the weights 1, 3 and 8. Of 600 connections the first gets less than 10 or more than
// 90 only once in 10^9 runs.
func TestWeights(t *testing.T) {
	t.Parallel()
	n := newNode(t, nftables.Config{}, 1)
	n.sync(n.frontend("10.96.0.1:80", api.TCP, service.Random, 1, 3, 8))
	established, err := n.clients[0].Dial("tcp", netip.MustParseAddrPort("10.96.0.1:80"), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer established.Close()
	home := established.Ask(patience)
	count := map[netip.AddrPort]int{}
	for range 600 {
		count[n.ask(n.clients[0], "tcp", "10.96.0.1:80")]++
	}
	for i, within := range [][2]int{{10, 95}, {80, 225}, {320, 475}} {
		if c := count[n.eps[i].Addr]; c < within[0] || c > within[1] {
			t.Errorf("%v got %d of 600, want %d to %d", n.eps[i].Addr, c, within[0], within[1])
		}
	}
	for _, weights := range [][]uint16{{8, 3, 1}, {1, 1, 1}, {}, {60000, 50000, 40000}, {65535, 1, 2}} {
		n.sync(n.frontend("10.96.0.1:80", api.TCP, service.Random, weights...))
		if now := established.Ask(patience); now.Outcome != testnet.Answered || now.At != home.At {
			t.Errorf("weights %v: the established connection is %v, was %v", weights, now, home)
		}
		n.ask(n.clients[0], "tcp", "10.96.0.1:80")
	}
}

// TestHashes: the same source or destination always gets the same endpoint, and not all get the same. The hash is the
// same in each run, so the test does not depend on chance.
func TestHashes(t *testing.T) {
	t.Parallel()
	const clients, addresses = 8, 8
	n := newNode(t, nftables.Config{}, clients)
	var all []*service.Frontend
	at := func(balance service.Algorithm, is4 bool, i int) string {
		if is4 {
			return fmt.Sprintf("10.96.%d.%d:80", balance, i)
		}
		return fmt.Sprintf("[fd00:10:96:%d::%d]:80", balance, i)
	}
	balances := []service.Algorithm{service.SourceHash, service.DestHash, service.Maglev}
	for _, b := range balances {
		for i := range addresses {
			for _, is4 := range []bool{true, false} {
				all = append(all, n.frontend(at(b, is4, i), api.TCP, b))
			}
		}
	}
	n.sync(all...)
	for _, b := range balances {
		for _, is4 := range []bool{true, false} {
			used, homes := map[netip.AddrPort]bool{}, map[int]netip.AddrPort{}
			for c, client := range n.clients {
				for i := range addresses {
					key := c // the choice depends on this
					if b == service.DestHash {
						key = i
					}
					got := n.ask(client, "tcp", at(b, is4, i))
					if home, ok := homes[key]; ok && home != got {
						t.Errorf("%v: client %d at %s is answered by %v, before by %v", b, c, at(b, is4, i), got, home)
					}
					homes[key], used[got] = got, true
				}
			}
			if len(used) < 2 {
				t.Errorf("%v: all went to one of three endpoints: %v", b, used)
			}
		}
	}
}

// TestCounts: rejects and drops are always counted, traffic only if configured.
func TestCounts(t *testing.T) {
	t.Parallel()
	for _, traffic := range []bool{false, true} {
		n := newNode(t, nftables.Config{CountTraffic: traffic}, 1)
		web, dns := n.frontend("10.96.0.1:80", api.TCP, service.Random), n.frontend("[fd00:10:96::1]:53", api.UDP, service.Random)
		port := n.frontend("0.0.0.0:30080", api.TCP, service.Random)
		refuses, guarded := n.frontend("10.96.0.2:81", api.TCP, service.Random), n.frontend("10.96.0.3:83", api.UDP, service.Random)
		refuses.Internal = &service.Route{Action: service.Reject}
		refuses.External = refuses.Internal
		guarded.Sources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		n.sync(web, dns, port, refuses, guarded)
		client := n.clients[0]
		for range 3 {
			n.ask(client, "tcp", "10.96.0.1:80")
			if got := client.Ask("tcp", refuses.Addr, patience); got.Outcome != testnet.Refused {
				t.Errorf("%v: %v", refuses.Addr, got)
			}
		}
		n.ask(client, "tcp", "172.18.0.11:30080")
		if got := client.Ask("udp", guarded.Addr, testnet.Patience); got.Outcome != testnet.Dropped {
			t.Errorf("%v: %v", guarded.Addr, got)
		}
		c, err := client.Dial("udp", dns.Addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if got := c.Ask(patience); got.Outcome != testnet.Answered {
				t.Error(got)
			}
		}
		c.Close()
		counts := n.counts()
		if read := n.countsElsewhere(); !maps.Equal(read, counts) {
			t.Errorf("traffic %v: another process counts %v, not %v", traffic, read, counts)
		}
		if c := counts[refuses.Service]; c.Rejects != 3 || c.Connections != 0 || c.Drops != 0 {
			t.Errorf("traffic %v: refused thrice: %+v", traffic, c)
		}
		if c := counts[guarded.Service]; c.Drops != 1 || c.Connections != 0 || c.Rejects != 0 {
			t.Errorf("traffic %v: dropped once: %+v", traffic, c)
		}
		if !traffic {
			if len(counts) != 2 {
				t.Errorf("counts of what is not counted: %v", counts)
			}
			continue
		}
		if c := counts[dns.Service]; c.Connections != 1 || c.Packets != 8 || c.Bytes < 8*48 {
			t.Errorf("four questions and answers: %+v", c)
		}
		if c := counts[web.Service]; c.Connections != 3 || c.Packets < 3*4 || c.Bytes < c.Packets*40 {
			t.Errorf("three connections: %+v", c)
		}
		if c := counts[port.Service]; c.Connections != 1 || c.Packets < 4 {
			t.Errorf("one connection to a NodePort: %+v", c)
		}
	}
}

// TestCountsStay: counts stay when a Service changes and when the process restarts. Counting of traffic can be switched
// off and on again.
func TestCountsStay(t *testing.T) {
	t.Parallel()
	n := newNode(t, nftables.Config{CountTraffic: true}, 1)
	web, refuses := n.frontend("10.96.0.1:80", api.TCP, service.Random), n.frontend("10.96.0.2:81", api.TCP, service.Random)
	refuses.Internal = &service.Route{Action: service.Reject}
	refuses.External = refuses.Internal
	n.sync(web, refuses)
	client := n.clients[0]
	for range 3 {
		if got := client.Ask("tcp", refuses.Addr, patience); got.Outcome != testnet.Refused {
			t.Errorf("%v: %v", refuses.Addr, got)
		}
	}
	// The count of rejects stays when the Service answers again.
	n.sync(web, n.frontend("10.96.0.2:81", api.TCP, service.Random))
	n.ask(client, "tcp", "10.96.0.2:81")
	if c := n.counts()[refuses.Service]; c.Rejects != 3 || c.Connections != 1 {
		t.Errorf("after it has endpoints again: %+v", c)
	}
	n.restart()
	if s := n.sync(web, n.frontend("10.96.0.2:81", api.TCP, service.Random)); s.Added+s.Deleted > 0 {
		t.Errorf("a restart wrote: %+v", s)
	}
	if c := n.counts()[refuses.Service]; c.Rejects != 3 || c.Connections != 1 {
		t.Errorf("after a restart: %+v", c)
	}
	// Counting of traffic is switched off and on again.
	for _, n.cfg.CountTraffic = range []bool{false, true} {
		n.restart()
		n.sync(web)
		n.ask(client, "tcp", "10.96.0.1:80")
	}
	if c := n.counts()[web.Service]; c.Connections != 1 {
		t.Errorf("after counting began anew: %+v", c)
	}
}

// countsElsewhere returns the counts as a process reads them that has only adopted the rules.
func (n *node) countsElsewhere() (all map[api.PortName]datapath.Count) {
	n.t.Helper()
	err := n.host.Do(func() error {
		dp, err := nftables.New(nftables.Config{})
		if err != nil {
			return err
		}
		defer dp.Close()
		if _, err := dp.Adopt(context.Background()); err != nil {
			return err
		}
		all, err = dp.Counts(context.Background())
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

func (n *node) counts() (all map[api.PortName]datapath.Count) {
	n.t.Helper()
	err := n.host.Do(func() (err error) {
		all, err = n.dp.Counts(context.Background())
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}
