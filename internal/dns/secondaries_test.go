package dns

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/testing/nameserver"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestSecondaries: bind9 and Knot as secondaries transfer a zone, and follow each change by its notification.
func TestSecondaries(t *testing.T) {
	nameserver.Need(t)
	if !alone(t) {
		return
	}
	if err := loopbackUp(); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	self := testnet.OpenNamespace(t, "self", "/proc/self/ns/net")
	cfg := names.Config{Zones: []string{"example.org"}, Nameservers: []string{"dns.kube-system"}, TTL: 60}
	var now atomic.Pointer[names.Table]
	secondaries := map[string]string{"bind9": "127.0.0.9", "knot": "127.0.0.10"}
	var transferTo []netip.Addr
	for _, addr := range secondaries {
		transferTo = append(transferTo, netip.MustParseAddr(addr))
		own, err := netlink.ParseAddr(addr + "/32")
		if err == nil {
			err = netlink.AddrAdd(lo, own) // bind9 listens only on addresses of interfaces
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	up, _ := upstream(t, "198.51.100.1")
	set := func(addr string) {
		objects := []names.Object{{Ref: names.Ref{Kind: "Service", Namespace: "prod", Name: "web"}, Hostnames: []string{"www.example.org", "*.apps.example.org"}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}},
			{Ref: names.Ref{Kind: "Service", Namespace: "kube-system", Name: "dns"}, Own: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.53")}}}
		next, _ := names.New(names.Cluster{Objects: objects}, cfg, now.Load(), 1)
		now.Store(next)
	}
	set("192.0.2.1")
	serve(t, Config{Corefile: corefile(t, ".:1053 {\n    forward . %s\n}\n", up), Zones: cfg.Zones, Names: now.Load, ZoneTransferTo: transferTo})
	for kind, addr := range secondaries {
		nameserver.Start(t, self, nameserver.Config{Kind: kind, Zones: cfg.Zones, Primary: "127.0.0.1:8053", Listen: addr})
	}
	await := func(name, want string) {
		t.Helper()
		for kind, addr := range secondaries {
			eventually(t, kind+" has "+want, func() error {
				r, _, err := (&dns.Client{}).Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), addr+":53")
				if err != nil {
					return err
				}
				if len(r.Answer) != 1 || r.Answer[0].(*dns.A).A.String() != want || !r.Authoritative {
					return fmt.Errorf("%s", r)
				}
				return nil
			})
		}
	}
	await("www.example.org.", "192.0.2.1")
	await("x.apps.example.org.", "192.0.2.1")
	await("dns.kube-system.example.org.", "192.0.2.53")
	set("192.0.2.2")
	await("www.example.org.", "192.0.2.2")
}
