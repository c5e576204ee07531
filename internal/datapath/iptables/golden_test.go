package iptables

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

var update = flag.Bool("update", false, "write testdata again")

// TestGolden compares the input of iptables-restore for each scenario, into an empty kernel, and the elements of the
// helper's sets.
func TestGolden(t *testing.T) {
	d, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	scenario.Golden(t, ".rules", *update, func(s *scenario.Scenario) (string, error) {
		return kernelText(s.Offer(d.Info().Capabilities.Algorithms).Table()), nil
	})
}

// kernelText returns everything that a table puts into an empty kernel.
func kernelText(table *service.Table) string {
	p := newRenderer(table.Settings, false)
	d := &Datapath{cfg: Config{Mark: DefaultMark}, renderer: p}
	groups := map[group][]*service.Frontend{}
	for _, f := range table.Sorted() {
		groups[groupOf(f)] = append(groups[groupOf(f)], f)
	}
	var b strings.Builder
	wanted := map[elem]int{}
	for _, is4 := range []bool{true, false} {
		l, entries := d.renderAll(groups, is4, wanted)
		s := newScript()
		s.changeAll(&read.State{}, l, entries)
		fmt.Fprintf(&b, "# %s\n%s", xtables.Program(NFT, is4, "restore"), s)
	}
	b.WriteString("# nft elements\n")
	for _, e := range order(keys(wanted)) {
		fmt.Fprintf(&b, "%s %x : %x%s\n", e.set, e.key, e.data, e.to)
	}
	return b.String()
}

// TestNamesStay: chains keep their names. Other names would be another set of chains at an upgrade. The table needs
// every kind of name: kube-proxy's, and the names of second chains, which are hashed from their content as well.
func TestNamesStay(t *testing.T) {
	at := func(addr string, local bool, weight uint16) service.Endpoint {
		return service.Endpoint{Addr: netip.MustParseAddrPort(addr), Local: local, Weight: weight}
	}
	every := &service.Route{Endpoints: []service.Endpoint{at("10.244.1.2:80", true, 3), at("10.244.2.3:80", false, 0)}, Masquerade: service.MasqueradeOffCluster}
	local := &service.Route{Endpoints: every.Endpoints[:1], Local: true}
	second := &service.Route{Endpoints: every.Endpoints[1:], Masquerade: service.MasqueradeAll}
	name := api.PortName{Name: api.Name{Namespace: "default", Name: "web"}, Port: "http"}
	front := func(addr string, in, out *service.Route, affinity time.Duration, sources ...string) *service.Frontend {
		f := &service.Frontend{Addr: netip.MustParseAddrPort(addr), Proto: api.TCP, Service: name, Internal: in, External: out, Affinity: affinity}
		for _, s := range sources {
			f.Sources = append(f.Sources, netip.MustParsePrefix(s))
		}
		return f
	}
	cluster := front("10.96.0.1:80", every, every, 0)
	cluster.ClusterIP = true
	turns := front("203.0.113.5:80", second, second, 0)
	turns.Balance = service.RoundRobin
	reject := &service.Route{Action: service.Reject}
	table := service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, []*service.Frontend{
		cluster,
		front("203.0.113.1:80", every, local, 0),
		front("203.0.113.2:80", every, every, 3*time.Hour),
		front("203.0.113.3:80", every, local, 3*time.Hour, "192.0.2.0/24"),
		front("203.0.113.4:80", second, local, 0, "192.0.2.0/24", "198.51.100.0/24"),
		front("203.0.113.6:80", every, reject, 0),
		turns,
	})
	names := map[string]bool{}
	for line := range strings.Lines(kernelText(table)) {
		if name, ok := strings.CutPrefix(line, ":"); ok {
			if name, _, _ = strings.Cut(name, " "); xtables.PerService(name) && name != read.OffCluster {
				names[name] = true
			}
		}
	}
	scenario.CompareFile(t, "testdata/names", strings.Join(slices.Sorted(maps.Keys(names)), "\n")+"\n", *update)
}
