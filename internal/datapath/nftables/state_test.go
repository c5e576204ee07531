package nftables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func mustAdopt(t *testing.T, d *Datapath) *service.Table {
	t.Helper()
	held, err := d.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return held.Table
}

// affinityCluster returns a cluster of n Services with affinity and different durations.
func affinityCluster(n int) *service.Builder {
	b := service.NewBuilder()
	for i := range n {
		e := numbered(i, 2)
		e.Frontends[0].Affinity = time.Duration(1+i) * time.Minute
		b.Set(e)
	}
	return b
}

// TestSweepUnknown: a process that starts deletes entries of clients with an endpoint that their Service does not have,
// and entries with an unused affinity ID. An earlier process may have been killed before it deleted them, and the ID
// may be used again.
func TestSweepUnknown(t *testing.T) {
	testnet.Enter(t)
	d := open(t)
	defer d.Close()
	table := affinityCluster(3).Table(settings())
	sync(t, d, table)
	f := table.Sorted()[1]
	i := d.state.at(f.Key()).extraOrZero().affinityID
	entry := func(i affinityID, client byte, to netip.AddrPort) nft.Write {
		key := append(affinityData(i), nftset.Number(uint32(client))...)
		return nft.Write{Set: "affinity-buckets4", Key: key, Data: nftset.AddrPort(to), Timeout: time.Hour, Add: true}
	}
	good := entry(i, 1, f.Internal.Endpoints[1].Addr)
	if err := d.syncer.Table.Commit(t.Context(), nil, []nft.Write{
		good, entry(i, 2, netip.MustParseAddrPort("10.9.9.9:9")), entry(i+77, 3, f.Internal.Endpoints[0].Addr), entry(0xfa110001, 4, f.Internal.Endpoints[0].Addr),
	}); err != nil {
		t.Fatal(err)
	}
	d.Close()
	sync(t, d, table)
	var left [][]byte
	if err := d.syncer.Table.Elements(t.Context(), "affinity-buckets4", func(e nft.Element) error {
		left = append(left, e.Key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || !slices.Equal(left[0], good.Key) {
		t.Errorf("left are %x, want %x", left, good.Key)
	}
}

// TestUpdateChains: the affinity hooks exist while any frontend has affinity. Each duration has two chains.
func TestUpdateChains(t *testing.T) {
	testnet.Enter(t)
	d := open(t)
	defer d.Close()
	remember := func() (names []string) {
		t.Helper()
		chains, err := d.syncer.Table.Chains(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for c := range chains {
			if strings.HasPrefix(c, affinityChainPrefix) {
				names = append(names, c)
			}
		}
		slices.Sort(names)
		return names
	}
	for _, n := range []int{0, 2, 1, 0, 3, 300, 2, 0} {
		b := affinityCluster(n)
		b.Set(numbered(1000, 1))
		table := b.Table(settings())
		sync(t, d, table)
		want := min(n, maxDurations)
		if want *= 2; n > 0 { // one for new connections, one for answers
			want += 2
		}
		if got := remember(); len(got) != want {
			t.Errorf("%d durations: %d chains, want %d: %v", n, len(got), want, got[:min(len(got), 10)])
		}
		for _, f := range table.Sorted() { // a client may stay longer than configured, not shorter
			m := d.state.at(f.Key()).extraOrZero()
			if at := d.state.durations[m.duration]; f.Affinity > 0 && at < m.seconds && n < maxDurations {
				t.Errorf("%v stays %d s, want %d", f.Key(), at, m.seconds)
			}
		}
		if diff := service.Diff(mustAdopt(t, d), table); len(diff) > 0 {
			t.Errorf("%d durations: %d frontends differ", n, len(diff))
		}
		again := open(t)
		if s, err := again.Sync(t.Context(), table); err != nil || s.Added+s.Deleted > 0 && n < maxDurations {
			t.Errorf("%d durations: a restart wrote %+v, error %v", n, s, err)
		}
		again.Close()
		d.Close()
		sync(t, d, table)
	}
}

// TestNodeIPs: for known addresses of the node the rules do not ask the kernel whether an address is local.
func TestNodeIPs(t *testing.T) {
	testnet.Enter(t)
	d := open(t)
	defer d.Close()
	ip, ip6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		serve        []netip.Prefix
		own          []netip.Addr
		hosts, asked int
	}{
		{[]netip.Prefix{prefix("192.0.2.1/32"), prefix("2001:db8::1/128")}, []netip.Addr{ip, ip6}, 2, 0},
		{[]netip.Prefix{prefix("192.0.2.1/32"), prefix("2001:db8::1/128")}, nil, 0, 2},
		{[]netip.Prefix{prefix("0.0.0.0/0")}, []netip.Addr{ip, ip6}, 1, 1},
		{[]netip.Prefix{prefix("192.0.2.0/24"), prefix("198.51.100.0/24")}, []netip.Addr{ip}, 1, 2},
		{[]netip.Prefix{prefix("198.51.100.0/24")}, []netip.Addr{ip}, 0, 1},
		{nil, []netip.Addr{ip}, 0, 0},
	} {
		table := cluster(1).Table(service.Settings{NodePorts: c.serve, NodeIPs: c.own})
		sync(t, d, table)
		held := mustAdopt(t, d)
		if !held.Settings.Equal(table.Settings) {
			t.Errorf("%v with %v: read back %v", c.serve, c.own, held.Settings)
		}
		if f := d.state.settings; len(f.hosts) != c.hosts || len(f.NodePorts) != c.asked {
			t.Errorf("%v with %v: %d hosts, %d prefixes to ask about, want %d, %d", c.serve, c.own, len(f.hosts), len(f.NodePorts), c.hosts, c.asked)
		}
		out, err := exec.Command("nft", "list", "set", "inet", "fairway", "nodeport-hosts4").CombinedOutput()
		if has := strings.Contains(string(out), fmt.Sprint(ip)); err != nil || has != (c.hosts > 0) {
			t.Errorf("%v with %v: nodeport-hosts4 %s, error %v", c.serve, c.own, out, err)
		}
	}
}

// TestDedicatedChainsAreFew: of many frontends with round robin only some have dedicated chains, and the others share a
// chain. A restart changes nothing. When dedicated chains are removed, other frontends get new ones.
func TestDedicatedChainsAreFew(t *testing.T) {
	testnet.Enter(t)
	d := open(t)
	rotating := func(from, to int) *service.Table {
		b := service.NewBuilder()
		for i := from; i < to; i++ {
			e := numbered(i, 2)
			e.Frontends[0].Balance = service.RoundRobin
			b.Set(e)
		}
		return b.Table(settings())
	}
	check := func(d *Datapath, want *service.Table, least, most int) {
		t.Helper()
		sync(t, d, want)
		chains, err := d.syncer.Table.Chains(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hasShared, hasDedicated := 0, 0
		for c := range chains {
			switch {
			case strings.HasPrefix(c, lbChainPrefix+"rr-shared-"):
				hasShared++
			case strings.HasPrefix(c, lbChainPrefix+"rr-"):
				hasDedicated++
			}
		}
		if hasDedicated < least || hasDedicated > most || d.state.dedicated != hasDedicated || hasShared != 1 {
			t.Errorf("%d chains for one frontend only, counted %d, want %d to %d; %d shared", hasDedicated, d.state.dedicated, least, most, hasShared)
		}
		if diff := service.Diff(mustAdopt(t, d), want); len(diff) > 0 {
			t.Errorf("the kernel differs in %d frontends", len(diff))
		}
	}
	const more = 50
	all := rotating(0, maxDedicated+more)
	check(d, all, maxDedicated, maxDedicated)
	d.Close()
	again := open(t)
	if stats, err := again.Sync(t.Context(), all); err != nil || stats.Added+stats.Deleted > 0 {
		t.Errorf("a restart: %+v, %v", stats, err)
	}
	check(again, all, maxDedicated, maxDedicated)
	// Chance decides which frontends share. They continue to share, and the others keep their dedicated chains.
	check(again, rotating(more, maxDedicated+more), maxDedicated-more, maxDedicated)
	check(again, rotating(more, maxDedicated+3*more), maxDedicated, maxDedicated)
}
