package fence

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// TestRoutedStays: the targets of addresses by BGP stay in the kernel until the next process sets others, so that
// connections go on while a speaker is replaced. The previous owners of layer-2 addresses do not stay.
func TestRoutedStays(t *testing.T) {
	inNode(t, func(int) {
		ctx := t.Context()
		two, three, six := netip.MustParseAddr("172.18.0.12"), netip.MustParseAddr("172.18.0.13"), netip.MustParseAddr("fd00:172:18::12")
		of := func(set, a string, node netip.Addr) string { return "map " + set + " " + a + " : " + node.String() }
		check := func(when string, want ...string) {
			t.Helper()
			text, have, want := "", "", slices.Clone(want)
			for _, family := range []string{"ip", "ip6"} {
				out, err := exec.Command("nft", "list", "table", family, numbers.TableFormer).CombinedOutput()
				must(t, err)
				text += string(out)
			}
			for line := range strings.Lines(text) {
				switch f := strings.Fields(line); {
				case len(f) > 1 && (f[0] == "map" || f[0] == "set"):
					have = f[0] + " " + f[1]
				case len(f) > 3 && f[0] == "elements":
					i := slices.Index(want, have+" "+strings.Join(f[3:len(f)-1], " "))
					if i < 0 {
						t.Errorf("%s: %s has %s", when, have, line)
						continue
					}
					want = slices.Delete(want, i, i+1)
				}
			}
			if len(want) > 0 {
				t.Errorf("%s: there is no %v in %s", when, want, text)
			}
		}
		open := func() *Fence {
			f, err := Open(ctx, grant)
			must(t, err)
			must(t, f.ForwardingError())
			return f
		}
		f := open()
		all := Forwarding{
			Previous: map[netip.Addr]netip.Addr{vip4: two}, First: map[netip.Addr]netip.Addr{vip4: two, vip6: six}, Next: map[netip.Addr]netip.Addr{vip4: three},
			Errors: [2]ErrorTargets{{Root: two, Right: three}, {Left: six}}, Peers: []string{"02:00:00:00:00:12"},
		}
		peers := []string{"set peers 02:00:00:00:00:12", "set peers 02:00:00:00:00:12"}
		tree := []string{of("error-root", "icmp", two), of("error-right", "icmp", three), of("error-left", "ipv6-icmp", six)}
		routed := append(slices.Concat(peers, tree), of("routed-first", vip4.String(), two), of("routed-first", vip6.String(), six), of("routed-next", vip4.String(), three))
		f.SetForwarding(all)
		must(t, f.Hold(ctx, nil, nil))
		check("written", append([]string{of("former", vip4.String(), two)}, routed...)...)
		f.Close()
		f = open()
		defer f.Close()
		check("the next process", routed...)
		f.SetForwarding(Forwarding{Previous: map[netip.Addr]netip.Addr{vip4: three}, Peers: all.Peers})
		must(t, f.Hold(ctx, nil, nil))
		check("it does not know yet", append([]string{of("former", vip4.String(), three)}, routed...)...)
		f.SetForwarding(Forwarding{First: map[netip.Addr]netip.Addr{vip4: three}, Errors: [2]ErrorTargets{{Left: three}}, Peers: all.Peers})
		must(t, f.Hold(ctx, nil, nil))
		check("it knows", append(peers, of("routed-first", vip4.String(), three), of("error-left", "icmp", three))...)
	})
}

// TestReleased: an address is in the set released for some seconds after the node has released it, unless the node holds
// the address again.
func TestReleased(t *testing.T) {
	inNode(t, func(int) {
		ctx := t.Context()
		f, err := Open(ctx, grant)
		must(t, err)
		defer f.Close()
		must(t, f.ForwardingError())
		holds := func(family string, a netip.Addr) bool {
			t.Helper()
			out, err := exec.Command("nft", "list", "set", family, numbers.TableFormer, releasedSet).CombinedOutput()
			must(t, err)
			return strings.Contains(string(out), a.String())
		}
		check := func(when string, want bool) {
			t.Helper()
			if v4, v6 := holds("ip", vip4), holds("ip6", vip6); v4 != want || v6 != want {
				t.Errorf("%s: %t and %t, want %t", when, v4, v6, want)
			}
		}
		all := []netip.Addr{vip4, vip6}
		for range 2 {
			must(t, f.Hold(ctx, all, nil))
			check("held", false)
			must(t, f.Hold(ctx, nil, all))
			check("released", true)
		}
		must(t, f.Reload(ctx, nil))
		check("loaded again", true)
		waitUntil(t, func() bool { return !holds("ip", vip4) && !holds("ip6", vip6) })
	})
}

// TestForwardingTables: the next Hold writes the targets of SetForwarding, and nothing else: for ten thousand addresses
// too, and after another program has removed the rules.
func TestForwardingTables(t *testing.T) {
	inNode(t, func(int) {
		ctx := t.Context()
		f, err := Open(ctx, grant)
		must(t, err)
		defer f.Close()
		must(t, f.ForwardingError())
		check := func(when string, want ...string) {
			t.Helper()
			for _, family := range []string{"ip", "ip6"} {
				out, err := exec.Command("nft", "list", "map", family, numbers.TableFormer, "former").CombinedOutput()
				must(t, err)
				for _, w := range want {
					if strings.Contains(w, ".") == (family == "ip") && !strings.Contains(string(out), w) {
						t.Errorf("%s: %s is not in %s", when, w, out)
					}
				}
				if len(want) == 0 && strings.Contains(string(out), "elements") {
					t.Errorf("%s: %s", when, out)
				}
			}
		}
		two, three := netip.MustParseAddr("172.18.0.12"), netip.MustParseAddr("172.18.0.13")
		six := netip.MustParseAddr("fd00:172:18::12")
		f.SetForwarding(Forwarding{Previous: map[netip.Addr]netip.Addr{vip4: two, vip6: six}})
		check("before Hold")
		must(t, f.Hold(ctx, []netip.Addr{vip4, vip6}, nil))
		check("held", "172.18.0.200 : 172.18.0.12", "fd00:172:18::200 : fd00:172:18::12")
		f.SetForwarding(Forwarding{Previous: map[netip.Addr]netip.Addr{vip4: three}})
		must(t, f.Hold(ctx, nil, []netip.Addr{vip6}))
		check("another one", "172.18.0.200 : 172.18.0.13")
		must(t, Remove(ctx))
		must(t, f.Reload(ctx, []netip.Addr{vip4}))
		check("loaded again", "172.18.0.200 : 172.18.0.13")
		many := map[netip.Addr]netip.Addr{}
		for a := netip.MustParseAddr("10.0.0.1"); len(many) < 10_000; a = a.Next() {
			many[a] = two
		}
		f.SetForwarding(Forwarding{Previous: many})
		must(t, f.Hold(ctx, nil, nil))
		check("many", "10.0.0.1 : 172.18.0.12", "10.0.39.16 : 172.18.0.12")
		f.SetForwarding(Forwarding{})
		must(t, f.Hold(ctx, nil, nil))
		check("none")
	})
}
