package dns

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
)

// TestOnlyTheClusterIsAnswered asks from addresses inside and outside of the cluster, over both
// transports: an address outside is refused, what is in the cache and what is the cluster's too.
func TestOnlyTheClusterIsAnswered(t *testing.T) {
	if !alone(t) {
		return
	}
	addAddresses(t, "10.1.2.3/32", "198.51.100.7/32", "203.0.113.9/32", "fd00::7/128", "2001:db8::9/128")
	api := newAPIServer(t)
	fill(api)
	up, queries := upstream(t, "192.0.2.7")
	serve(t, Config{Corefile: builtinFor(t, 5330, api.URL, up, netip.MustParsePrefix("198.51.100.0/24"))})
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"example.org.", "web.prod.svc.cluster.local."} {
			for _, c := range []struct {
				from, to string
				answered bool
			}{
				{"127.0.0.1", "127.0.0.1", true},
				{"10.1.2.3", "10.1.2.3", true},
				{"198.51.100.7", "127.0.0.1", true}, // as configured
				{"fd00::7", "::1", true},
				{"203.0.113.9", "127.0.0.1", false},
				{"2001:db8::9", "::1", false},
			} {
				m, err := askFrom(network, c.from, c.to, 5330, name)
				if err != nil {
					t.Errorf("%s from %s: %v", network, c.from, err)
				} else if (m.Rcode == dns.RcodeSuccess) != c.answered || m.Rcode == dns.RcodeRefused == c.answered {
					t.Errorf("%s %s from %s: got %q, answered should be %v", network, name, c.from, answer(m), c.answered)
				}
			}
		}
	}
	if n := queries(); n != 1 {
		t.Errorf("the upstream was asked %d times, want 1", n)
	}
}

// addAddresses gives lo addresses from which a test asks.
func addAddresses(t *testing.T, addresses ...string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err == nil {
			err = netlink.AddrAdd(lo, addr)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// askFrom is ask with an address of the client and of the server.
func askFrom(network, from, to string, port int, name string) (*dns.Msg, error) {
	ip := net.IP(netip.MustParseAddr(from).AsSlice())
	d := &net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.UDPAddr{IP: ip}}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	c := &dns.Client{Net: network, Timeout: 5 * time.Second, Dialer: d}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort(to, fmt.Sprint(port)))
	return m, err
}

func TestClusterCIDRs(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]", "10.244.0.0/16": "[10.244.0.0/16]", "10.244.0.0/16,2001:db8:1::1/48": "[10.244.0.0/16 2001:db8:1::/48]",
	} {
		t.Setenv("CLUSTER_CIDR", text)
		if got, err := ClusterCIDRs(); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q gives %v, %v; want %s", text, got, err, want)
		}
	}
	t.Setenv("CLUSTER_CIDR", "ten")
	if _, err := ClusterCIDRs(); err == nil {
		t.Error("nonsense is taken")
	}
}
