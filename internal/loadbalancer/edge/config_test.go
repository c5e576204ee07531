package edge

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

const head = "apiVersion: edge.fairway.net/v1alpha1\nkind: EdgeConfiguration\n"

// least is a configuration with what is required.
const least = head + "kubeconfig: k\naddresses: [192.0.2.0/26]\n"

// ipByBGP are routes that routers announce.
const ipByBGP = "targetType: ip\nroutes: bgp\n"

func TestDefaults(t *testing.T) {
	c, err := Parse([]byte(least))
	if err != nil {
		t.Fatal(err)
	}
	if c.TargetType != TargetInstance || c.ClientSource != SourceMasquerade || c.ProxyMode != "nftables" || c.Metrics != "" ||
		c.Checks != (Checks{Interval: 5 * time.Second, Timeout: 2 * time.Second, Healthy: 2, Unhealthy: 3, PerSecond: 500, ProxyPort: 10256}) {
		t.Errorf("%+v", c)
	}
	if c, err = Parse([]byte(least + "targetType: ip\n")); err != nil || c.ClientSource != SourceKeep {
		t.Errorf("%+v: %v", c, err)
	}
}

// TestMistakes: each is one line, with advice.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    `it is apiVersion "", kind ""; want apiVersion "edge.fairway.net/v1alpha1", kind "EdgeConfiguration"`,
		head:                                  "kubeconfig is missing [",
		head + "kubeconfig: k\n":              "addresses are missing [",
		least + "adresses: []\n":              `unknown field "adresses"`,
		least + "addresses: []\n":             `key "addresses" already set`,
		least + "targetType: pod":             `targetType is "pod" [choose one of instance, ip]`,
		least + "routes: static":              "routes are for targetType ip: node ports need none [",
		least + "routes: ospf":                `routes is "ospf" [choose one of none, static, bgp]`,
		least + "targetType: ip\nroutes: bgp": "routes bgp needs bgp [name myASN and peers",
		least + "targetType: ip\nbgp: {myASN: 1, peers: [{peerAddress: 192.0.2.1, peerASN: 2}]}": "bgp is for routes bgp [",
		least + ipByBGP + "bgp: {myASN: 1, peers: [{peerAddress: 192.0.2.1, peerASN: 2}]}":       "routes bgp needs clusterCIDRs [",
		least + ipByBGP + "bgp: {}":                                            "bgp.myASN is missing [this machine's AS number, such as 64512]; bgp.peers are 0 [name 1 to 8 routers]",
		least + ipByBGP + "bgp: {myASN: 1, peers: [{peerAddress: router}]}":    `bgp.peers.peerAddress has "router", which is no machine's address [`,
		least + ipByBGP + "bgp: {myASN: 1, peers: [{peerAddress: 192.0.2.1}]}": "bgp.peers 192.0.2.1: peerASN is missing",
		least + ipByBGP + "bgp: {myASN: 1, routerID: 2001:db8::1, peers: [{peerAddress: 192.0.2.1, peerASN: 2, passwordFile: /no/such}]}":      "bgp.routerID is 2001:db8::1 [an IPv4 address]; read bgp.peers.passwordFile: open /no/such",
		least + ipByBGP + "bgp: {myASN: 1, peers: [{peerAddress: 192.0.2.1, peerASN: 2, bfd: {}, enableGracefulRestart: true, holdTime: 1s}]}": "exclude each other [leave one out]",
		least + ipByBGP + "bgp: {myASN: 1, peers: [{peerAddress: 192.0.2.1, peerASN: 2}, {peerAddress: 192.0.2.1, peerASN: 2}]}":               "bgp.peers has 192.0.2.1 twice",
		least + "clientSource: hide":                                                             `clientSource is "hide" [`,
		least + "proxyMode: ebpf":                                                                `proxyMode is "ebpf" [`,
		least + "targetType: ip\nproxyMode: userspace":                                           "proxyMode userspace cannot promise to keep clients' addresses [",
		least + "healthCheck: {interval: soon}":                                                  "[write a time from 100ms to 10m0s, such as 5s]",
		least + "healthCheck: {interval: 1s, timeout: 2s}":                                       `healthCheck.timeout is "2s" [write a time from 10ms to 1s, such as 5s]`,
		least + "healthCheck: {healthyThreshold: 0}":                                             "healthCheck.healthyThreshold is 0 [from 1 to 100]",
		least + "healthCheck: {perSecond: 0, proxyPort: 0}":                                      "healthCheck.perSecond is 0 [from 1 to 100000]; healthCheck.proxyPort is 0 [",
		least + "metricsBindAddress: localhost":                                                  `metricsBindAddress "localhost" is no HOST:PORT [such as 127.0.0.1:10282]`,
		least + "balance: fast":                                                                  `balance is "fast" [choose one of random,`,
		least + "announce: {gateways: [10.0.0.0/8]}":                                             `announce.gateways has "10.0.0.0/8", which is no machine's address [`,
		least + "announce: {members: {a: 192.0.2.1}}":                                            "announce.members are 1 [two, or three, which need no Lease for the third vote]",
		least + "announce: {members: {a: 192.0.2.1, b: x}}":                                      `announce.members has "x", which is no machine's address [`,
		least + "announce: {name: c, members: {a: 192.0.2.1, b: 192.0.2.2}}":                     `announce.name is "c" [which of announce.members is this machine: a, b]; announce.keyFile is missing [`,
		least + "announce: {name: a, members: {a: 192.0.2.1, b: 192.0.2.2}, keyFile: /dev/null}": "announce.keyFile /dev/null has 0 bytes [32 or more",
		least + "clusterCIDRs: [10.0.0.0/33]":                                                    `clusterCIDRs has "10.0.0.0/33", which is no range [`,
		head + "kubeconfig: k\naddresses: [0.0.0.0/0]\n":                                         `addresses has "0.0.0.0/0": that is every address [`,
		least + "---\n" + least:                                                                  "it holds more than one YAML document [leave only the EdgeConfiguration]",
		head + "kubeconfig: k\naddresses: [192.0.2.0/24, x]":                                     `addresses has "x", which is no range [`,
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzConfig: any text is a complete configuration or an error of one line.
func FuzzConfig(f *testing.F) {
	f.Add(least)
	f.Add(least + "healthCheck: {interval: 1s, timeout: 100ms, perSecond: 7}\ntargetType: ip\nclusterCIDRs: [fd00::/48]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		if err != nil {
			if err.Error() == "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is not one line: %q", err)
			}
			return
		}
		if c.Kubeconfig == "" || len(c.Addresses) == 0 || c.Checks.Timeout <= 0 || c.Checks.Timeout > c.Checks.Interval || c.Checks.PerSecond < 1 {
			t.Errorf("%+v", c)
		}
	})
}

// TestNode: clients in the cluster are internal where clients' addresses are kept; what no Service
// has is dropped, but at the machine's own addresses.
func TestNode(t *testing.T) {
	c, err := Parse([]byte(least + "targetType: ip\nclusterCIDRs: [10.244.0.0/16]\n"))
	if err != nil {
		t.Fatal(err)
	}
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	n := c.Node([]netip.Addr{addr("172.18.0.11")}, []netip.Prefix{prefix("10.244.1.0/24"), prefix("10.9.0.0/24")}, []netip.Addr{addr("192.0.2.1"), addr("10.0.0.1")}, 0)
	text := func(all []netip.Prefix) string {
		var texts []string
		for _, p := range all {
			texts = append(texts, p.String())
		}
		return strings.Join(texts, " ")
	}
	if got, want := text(n.Settings.Pods), "10.9.0.0/24 10.244.0.0/16 172.18.0.11/32"; got != want {
		t.Errorf("internal clients: %s, want %s", got, want)
	}
	if got, want := text(n.Settings.ServiceCIDRs), "192.0.2.0/32 192.0.2.2/31 192.0.2.4/30 192.0.2.8/29 192.0.2.16/28 192.0.2.32/27"; got != want {
		t.Errorf("dropped: %s, want %s", got, want)
	}
	if !n.Outside || n.MasqueradeAll || n.Name != "" {
		t.Errorf("%+v", n)
	}
}
