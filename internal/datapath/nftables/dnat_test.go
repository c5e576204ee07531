package nftables_test

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
)

// A load-balancing chain binds no map, because the kernel walks all elements of a map to bind it. nft can list all
// chains, also those that it could not load.
func TestChainsBindNoMaps(t *testing.T) {
	n := newNode(t, nftables.Config{CountTraffic: true}, 1)
	var all []*service.Frontend
	for i, text := range []string{"10.96.0.1:80", "[fd00:96::1]:80", "0.0.0.0:30080", "[::]:30080"} {
		for algorithm := range service.Algorithm(8) {
			if !n.dp.Info().Capabilities.Algorithms.Has(algorithm) {
				continue
			}
			for _, affinity := range []time.Duration{0, time.Hour} {
				at := netip.MustParseAddrPort(text)
				f := &service.Frontend{Addr: netip.AddrPortFrom(at.Addr(), at.Port()+uint16(len(all))), Proto: api.TCP, Balance: algorithm, Affinity: affinity}
				f.Service.Name = api.Name{Namespace: "default", Name: "svc-" + string(rune('a'+i))}
				eps := []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.5:80")}, {Addr: netip.MustParseAddrPort("10.244.0.6:80")}}
				if at.Addr().Is6() {
					eps = []service.Endpoint{{Addr: netip.MustParseAddrPort("[fd00:244::5]:80")}, {Addr: netip.MustParseAddrPort("[fd00:244::6]:80")}}
				}
				f.Internal = &service.Route{Endpoints: eps, Masquerade: service.MasqueradeOffCluster}
				f.External = &service.Route{Endpoints: eps[:1], Masquerade: service.MasqueradeAll}
				all = append(all, f)
			}
		}
	}
	n.sync(all...)
	listed := n.nft("", "list", "table", "inet", "fairway")
	chains := regexp.MustCompile(`(?ms)^\tchain (lb-\S+) \{\n(.*?)^\t\}`).FindAllStringSubmatch(listed, -1)
	numbered := 0
	for _, c := range chains {
		if strings.HasPrefix(c[1], "lb-dnat") || strings.HasPrefix(c[1], "lb-affinity") {
			continue
		}
		if numbered++; strings.Contains(c[2], " map @") || !strings.Contains(c[2], "goto lb-dnat") {
			t.Errorf("chain %s:\n%s", c[1], c[2])
		}
	}
	if shared := len(chains) - numbered; numbered < 30 || shared != 12 {
		t.Errorf("%d chains of a number of slots, %d shared ones", numbered, shared)
	}
}
