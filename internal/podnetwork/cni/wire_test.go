package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

var families = []struct {
	name  string
	cidrs []string
}{
	{"IPv4", []string{"10.244.1.0/24"}},
	{"IPv6", []string{"fd00:10:244:1::/64"}},
	{"dual stack", []string{"10.244.1.0/24", "fd00:10:244:1::/64"}},
}

// nodeAddr and outsideAddr are of the family of addr.
func nodeAddr(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return node4
	}
	return node6
}

func outsideAddr(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return outside4
	}
	return outside6
}

// TestLife follows a pod from ADD to DEL and sends packets on every way that a
// pod has: from and to the node (probes), another pod, and the world.
func TestLife(t *testing.T) {
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			n := newNode(t)
			list := n.list("1.1.0", "fairway", family.cidrs...)
			a, b := newPod(t), newPod(t)
			result := n.mustAdd(list, a)
			n.mustAdd(list, b)
			for _, s := range []*namespace{a.namespace, b.namespace, n.namespace, n.outside} {
				s.serve(8080)
			}
			if len(a.addrs) != len(family.cidrs) {
				t.Fatalf("pod has addresses %v, want one in each of %v", a.addrs, family.cidrs)
			}
			for i, addr := range a.addrs {
				if !netip.MustParsePrefix(family.cidrs[i]).Contains(addr) {
					t.Errorf("address %s is not in %s", addr, family.cidrs[i])
				}
				wantAnswer(t, "node to pod", n.namespace, addr, nodeAddr(addr))
				wantAnswer(t, "pod to node", a.namespace, nodeAddr(addr), addr)
				wantAnswer(t, "pod to pod", b.namespace, addr, b.addrs[i])
				wantAnswer(t, "pod to itself", a.namespace, addr, addr)
				wantAnswer(t, "pod to outside", a.namespace, outsideAddr(addr), addr)
				wantAnswer(t, "outside to pod", n.outside, addr, outsideAddr(addr))
			}
			if got := result.Interfaces[1]; got.Name != "eth0" || got.Sandbox != a.path() || got.Mtu != 1400 {
				t.Errorf("result names interface %+v, want eth0 in %s with the uplink's MTU 1400", got, a.path())
			}
			if out := n.run("ip link show " + result.Interfaces[0].Name); !strings.Contains(out, "alias fairway fairway default/web-") {
				t.Errorf("host side does not tell whose it is: %s", out)
			}
			if err := n.check(list, a); err != nil {
				t.Errorf("CHECK: %v", err)
			}

			if err := n.del(list, a); err != nil {
				t.Fatalf("DEL: %v", err)
			}
			if err := n.del(list, a); err != nil {
				t.Errorf("second DEL: %v", err)
			}
			if out, err := a.try("ip link show eth0", ""); err == nil {
				t.Errorf("the pod kept its interface: %s", out)
			}
			b.rt.NetNS = "" // its namespace is gone already
			if err := n.del(list, b); err != nil {
				t.Errorf("DEL without a namespace: %v", err)
			}
			if left := n.left(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

func wantAnswer(t *testing.T, what string, from *namespace, to, wantSource netip.Addr) {
	t.Helper()
	got, err := from.ask(to, 8080)
	if err != nil {
		t.Errorf("%s (%s): %v", what, to, err)
	} else if got != wantSource {
		t.Errorf("%s (%s): the server saw %s, want %s", what, to, got, wantSource)
	}
}

// TestHairpin: a pod reaches itself through a Service. The packet leaves the
// pod, is rewritten to the pod's own address and the node's as source, and goes
// back into the same link.
func TestHairpin(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	p := newPod(t)
	n.mustAdd(list, p)
	p.serve(8080)
	n.nft(fmt.Sprintf(`table inet test {
		chain prerouting {
			type nat hook prerouting priority dstnat
			ip daddr 10.96.0.1 tcp dport 80 dnat ip to %[1]s:8080
			ip6 daddr fd00:96::1 tcp dport 80 dnat ip6 to [%[2]s]:8080
		}
		chain postrouting {
			type nat hook postrouting priority srcnat
			ip saddr %[1]s ip daddr %[1]s masquerade
			ip6 saddr %[2]s ip6 daddr %[2]s masquerade
		}
	}`, p.addrs[0], p.addrs[1]))
	for i, service := range []string{"10.96.0.1", "fd00:96::1"} {
		got, err := p.ask(netip.MustParseAddr(service), 80)
		if want := nodeAddr(p.addrs[i]); err != nil || got != want {
			t.Errorf("a pod through its own Service %s: server saw %v, %v; want %s", service, got, err, want)
		}
	}
}

// TestSpoofing: strict reverse path filtering drops what a pod sends from an
// address that is not its own.
func TestSpoofing(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24")
	p := newPod(t)
	n.mustAdd(list, p)
	n.nft(`table inet count {
		chain in { type filter hook input priority 0
		ip saddr 10.244.1.77 counter
		ip saddr 10.244.1.2 counter
		}
	}`)
	p.run("ip addr add 10.244.1.77/32 dev lo")
	p.try("ping -c1 -W1 -I 10.244.1.77 192.0.2.1", "")
	p.run("ping -c1 -W2 192.0.2.1")
	out := n.run("nft list table inet count")
	if !strings.Contains(out, `10.244.1.77 counter packets 0 bytes 0`) || strings.Contains(out, `10.244.1.2 counter packets 0 `) {
		t.Errorf("want no spoofed packet and the pod's own:\n%s", out)
	}
}

// TestConcurrentAdds: kubelet starts many plugins at once.
func TestConcurrentAdds(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	const count = 24
	pods, errs := make([]*pod, count), make([]error, count)
	for i := range pods {
		pods[i] = newPod(t)
	}
	var group sync.WaitGroup
	for i, p := range pods {
		group.Go(func() { _, errs[i] = n.add(list, p) })
	}
	group.Wait()
	seen := map[netip.Addr]bool{}
	for i, p := range pods {
		if errs[i] != nil {
			t.Fatalf("ADD %d: %v", i, errs[i])
		}
		for _, addr := range p.addrs {
			if seen[addr] {
				t.Errorf("%s was given twice", addr)
			}
			seen[addr] = true
		}
	}
	for i, p := range pods {
		group.Go(func() { errs[i] = n.del(list, p) })
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("DEL %d: %v", i, err)
		}
	}
	if left := n.left(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestFailedAddLeavesNothing breaks ADD at every step that can be broken from
// outside.
func TestFailedAddLeavesNothing(t *testing.T) {
	for _, test := range []struct {
		name, breakIt string
		code          uint
		want          string
	}{
		{"the interface exists", "ip link add eth0 type bridge", types.ErrInvalidNetworkConfig, "exists already"},
		{"the pod has a default route", "ip link add wan type bridge; ip addr add 10.9.0.1/24 dev wan; ip link set wan up; ip route add default via 10.9.0.2", types.ErrInternal, "file exists"},
		{"the host has a route to the address", "", types.ErrTryAgainLater, "routed to another link already"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			list := n.list("1.1.0", "fairway", "fd00:10:244:1::/64", "10.244.1.0/24")
			p := newPod(t)
			if test.breakIt != "" {
				p.run(test.breakIt)
			} else {
				n.run("ip route add 10.244.1.2 dev uplink")
			}
			_, err := n.add(list, p)
			wantCode(t, err, test.code, test.want)
			if left := n.left(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
			if test.breakIt == "" { // a second try gets the next address
				n.mustAdd(list, p)
				if want := netip.MustParseAddr("10.244.1.3"); p.addrs[1] != want {
					t.Errorf("second try got %s, want %s", p.addrs[1], want)
				}
			}
		})
	}
}

// TestAddTwice: the second ADD fails and leaves the first one's pod alone.
func TestAddTwice(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	p := newPod(t)
	n.mustAdd(list, p)
	before := n.left()
	_, err := n.add(list, p)
	wantCode(t, err, types.ErrTryAgainLater, "duplicate allocation")
	if after := n.left(); after != before {
		t.Errorf("before the second ADD:\n%safter:\n%s", before, after)
	}
}

func TestCheckFindsDamage(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	for _, test := range []struct {
		name, inPod, onNode string
		code                uint
	}{
		{name: "pod link down", inPod: "ip link set eth0 down", code: codeLink},
		{name: "host link gone", onNode: "ip link del LINK", code: codeLink},
		{name: "address gone", inPod: "ip -6 addr flush dev eth0 scope global", code: codeAddress},
		{name: "default route gone", inPod: "ip route del default", code: codeRoute},
		{name: "gateway unknown", inPod: "ip -6 neigh del fe80::1 dev eth0", code: codeNeighbour},
		{name: "host route gone", onNode: "ip route del ADDR", code: codeRoute},
		{name: "host neighbour replaced", onNode: "ip neigh replace ADDR lladdr 02:00:00:00:00:01 dev LINK", code: codeNeighbour},
		{name: "address not reserved", onNode: "rm STATE/fairway/ADDR", code: codeStore},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			link := n.mustAdd(list, p).Interfaces[0].Name
			if err := n.check(list, p); err != nil {
				t.Fatalf("CHECK before the damage: %v", err)
			}
			if test.inPod != "" {
				p.run(test.inPod)
			} else {
				n.run(strings.NewReplacer("LINK", link, "ADDR", p.addrs[0].String(), "STATE", n.stateDir).Replace(test.onNode))
			}
			wantCode(t, n.check(list, p), test.code, "delete the pod")
			if err := n.del(list, p); err != nil {
				t.Errorf("DEL of a damaged pod: %v", err)
			}
		})
	}
}

// TestGC removes what the runtime does not list, in this network only.
func TestGC(t *testing.T) {
	n := newNode(t)
	ours := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	other := n.list("1.1.0", "fairway-2", "10.244.2.0/24")
	keep, drop, foreign := newPod(t), newPod(t), newPod(t)
	n.mustAdd(ours, keep)
	n.mustAdd(other, foreign)
	want := n.left()
	n.mustAdd(ours, drop)
	// An ADD killed between making and writing its file.
	if err := os.WriteFile(filepath.Join(n.stateDir, "fairway", "10.244.1.200"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	// A runtime without a memory: libcni would call DEL for what it remembers.
	fresh := libcni.NewCNIConfigWithCacheDir(n.runtime.Path, t.TempDir(), nil)
	collect := func(valid ...types.GCAttachment) error {
		return n.do(func() error {
			return fresh.GCNetworkList(context.Background(), ours, &libcni.GCArgs{ValidAttachments: valid})
		})
	}
	for range 2 {
		if err := collect(types.GCAttachment{ContainerID: keep.rt.ContainerID, IfName: "eth0"}); err != nil {
			t.Fatalf("GC: %v", err)
		}
		if got := n.left(); got != want {
			t.Errorf("after GC:\n%swant:\n%s", got, want)
		}
	}
	if err := n.check(ours, keep); err != nil {
		t.Errorf("CHECK of the pod that was kept: %v", err)
	}
	if err := n.check(other, foreign); err != nil {
		t.Errorf("CHECK of the other network's pod: %v", err)
	}
}
