package nftables_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestSpoofed: a Service gets 5,000 SYNs from 5,000 addresses. Without answers the entries end soon. With answers they
// are not more than the Service's share. Clients of other Services, old and new, are remembered for the whole time.
func TestSpoofed(t *testing.T) {
	t.Parallel()
	const spoofed, lasts = 5000, 3 * time.Hour
	n := newNode(t, nftables.Config{}, 3)
	at := func(port string, endpoints ...service.Endpoint) *service.Frontend {
		f := n.frontend("10.96.0.1:"+port, api.TCP, service.Random)
		f.Service = api.PortName{Name: api.Name{Namespace: "default", Name: fmt.Sprintf("at-%d", endpoints[0].Addr.Addr().As4()[3])}, Port: port}
		f.Internal = &service.Route{Masquerade: service.MasqueradeOffCluster, Endpoints: endpoints}
		f.External, f.Affinity = f.Internal, lasts
		return f
	}
	silent := service.Endpoint{Addr: netip.MustParseAddrPort("10.244.1.200:8080")}
	all := []*service.Frontend{at("80", silent), at("70", n.eps[1], n.eps[2])}
	for _, port := range []string{"91", "92", "93", "94", "95"} { // the fifth has the smaller share
		all = append(all, at(port, n.eps[0]))
	}
	n.sync(all...)
	home := n.ask(n.clients[0], "tcp", "10.96.0.1:70")
	for _, port := range []uint16{80, 95} {
		n.clients[2].Flood(netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port), spoofed)
	}
	newHome := n.ask(n.clients[1], "tcp", "10.96.0.1:70")
	for range 8 {
		for client, want := range []netip.AddrPort{home, newHome} {
			if got := n.ask(n.clients[client], "tcp", "10.96.0.1:70"); got != want {
				t.Errorf("client %d is at %v, was at %v", client, got, want)
			}
		}
	}
	entries := n.remembered()
	if e := entries[silent.Addr]; len(e) == 0 {
		t.Error("no SYN came")
	}
	for _, left := range entries[silent.Addr] {
		if left > time.Minute {
			t.Errorf("an entry that nobody answered lasts %v", left)
			break
		}
	}
	if e := entries[n.eps[0].Addr]; len(e) == 0 || len(e) > 256 {
		t.Errorf("%d SYNs made %d entries, want up to 256", spoofed, len(e))
	}
	remembered := append(entries[n.eps[1].Addr], entries[n.eps[2].Addr]...)
	if len(remembered) != 2 {
		t.Errorf("two clients have %d entries", len(remembered))
	}
	for _, left := range remembered {
		if left < lasts-10*time.Minute {
			t.Errorf("a client is remembered for %v, want %v", left, lasts)
		}
	}
	// A SYN with a client's address and without an answer does not shorten the life of the client's entry.
	n.sync(append(all, at("60", n.eps[0]))...)
	n.ask(n.clients[0], "tcp", "10.96.0.1:60")
	n.nft("insert rule inet fairway forward tcp dport 8080 tcp flags syn drop")
	if got := n.clients[0].Ask("tcp", netip.MustParseAddrPort("10.96.0.1:60"), testnet.Patience); got.Outcome == testnet.Answered {
		t.Errorf("the SYN was answered: %v", got)
	}
	long := 0
	for _, left := range n.remembered()[n.eps[0].Addr] {
		if left > lasts-10*time.Minute {
			long++
		}
	}
	if long == 0 {
		t.Error("a SYN shortened its client's entry")
	}
}

// remembered returns the lifetimes of the buckets' entries, by endpoint.
func (n *node) remembered() map[netip.AddrPort][]time.Duration {
	n.t.Helper()
	all := map[netip.AddrPort][]time.Duration{}
	err := n.host.Do(func() error {
		table := nft.New("fairway")
		defer table.Close()
		return table.Elements(context.Background(), "affinity-buckets4", func(e nft.Element) error {
			to, _, err := nftset.ParseAddrPort(e.Data, true)
			all[to] = append(all[to], e.Expires)
			return err
		})
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}
