package arp

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestLinks: of a real kernel's interfaces those can announce that are Ethernet, up and no member of a bridge, also
// after a member has left its bridge. Without names only interfaces that have an address of a network count.
func TestLinks(t *testing.T) {
	testnet.Enter(t)
	add := func(l netlink.Link, addr string) netlink.Link {
		t.Helper()
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		if addr != "" {
			a, err := netlink.ParseAddr(addr)
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.AddrAdd(l, a); err != nil {
				t.Fatal(err)
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	named := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	bridge := add(&netlink.Bridge{LinkAttrs: named("lan0")}, "172.20.0.1/24")
	pair := func(name string) netlink.Link { // whose other end stays down
		return &netlink.Veth{LinkAttrs: named(name), PeerName: name + "-peer"}
	}
	member, down := add(pair("eth1"), "172.20.1.1/24"), add(pair("eth2"), "172.20.2.1/24")
	for name, addr := range map[string]string{"eth3": "172.20.3.1/24", "eth4": "172.20.4.1/32", "eth5": "", "veth6": "172.20.6.1/24"} {
		add(pair(name), addr)
	}
	for _, err := range []error{netlink.LinkSetMaster(member, bridge), netlink.LinkSetDown(down)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	checkLinks(t, "eth1 is a member of lan0", "eth3+network eth4 eth5 lan0+network veth6")
	if err := netlink.LinkSetNoMaster(member); err != nil {
		t.Fatal(err)
	}
	checkLinks(t, "eth1 has left lan0, which has no MAC without a member", "eth1+network eth3+network eth4 eth5 veth6")
	other, err := netlink.LinkByName("eth3-peer")
	if err == nil {
		err = netlink.LinkSetUp(other)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkLinks(t, "the other end of eth3 is up", "eth1+network eth3+network+connected eth3-peer+connected eth4 eth5 veth6")
	if w := Wireless([]string{"lan0", "eth1", "eth3"}); len(w) > 0 {
		t.Errorf("%v are wireless", w)
	}
}

// TestReserved: the addresses of a network that no machine can have.
func TestReserved(t *testing.T) {
	for network, want := range map[string]string{
		"192.168.49.7/24": "[192.168.49.0 192.168.49.255]", "172.18.0.11/16": "[172.18.0.0 172.18.255.255]", "10.0.0.9/29": "[10.0.0.8 10.0.0.15]", "10.0.0.9/31": "[]", "10.0.0.9/32": "[]",
		"192.0.2.77/0": "[0.0.0.0 255.255.255.255]", "2001:db8::7/64": "[2001:db8::]", "2001:db8::7/127": "[]", "2001:db8::7/128": "[]",
	} {
		if got := fmt.Sprint(reserved(netip.MustParsePrefix(network))); got != want {
			t.Errorf("%s: %s, want %s", network, got, want)
		}
	}
}

// checkLinks compares the interfaces that can announce with the wanted ones.
func checkLinks(t *testing.T, when, want string) {
	t.Helper()
	all, err := links()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range all {
		text := l.Name
		if l.Network {
			text += "+network"
		}
		if l.Connected {
			text += "+connected"
		}
		got = append(got, text)
	}
	slices.Sort(got)
	if strings.Join(got, " ") != want {
		t.Errorf("%s: %v announce, want %s", when, got, want)
	}
}

// TestWireless: an interface that the kernel marks as wireless is found. The test needs a machine with a radio, or the
// module mac80211_hwsim, which simulates one.
func TestWireless(t *testing.T) {
	marks, err := filepath.Glob("/sys/class/net/*/phy80211")
	if err != nil {
		t.Fatal(err)
	}
	if len(marks) == 0 {
		t.Skip("this machine has no wireless interface, and its kernel makes none [modprobe mac80211_hwsim]")
	}
	all, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	var names, want []string
	for _, one := range all {
		names = append(names, one.Name())
	}
	for _, mark := range marks {
		want = append(want, filepath.Base(filepath.Dir(mark)))
	}
	if got := Wireless(names); !slices.Equal(got, want) {
		t.Errorf("%v are wireless, want %v", got, want)
	}
}
