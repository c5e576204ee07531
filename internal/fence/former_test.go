package fence

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/numbers"
)

// TestFormerTables: what Former says is in the kernel after the next Hold, of ten thousand addresses too, and after
// the rules were removed by another program; nothing else is.
func TestFormerTables(t *testing.T) {
	inNode(t, func(int) {
		ctx := t.Context()
		f, err := Open(ctx, grant)
		must(t, err)
		defer f.Close()
		must(t, f.FormerError())
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
		f.Former(map[netip.Addr]netip.Addr{vip4: two, vip6: six})
		check("before Hold")
		must(t, f.Hold(ctx, []netip.Addr{vip4, vip6}, nil))
		check("held", "172.18.0.200 : 172.18.0.12", "fd00:172:18::200 : fd00:172:18::12")
		f.Former(map[netip.Addr]netip.Addr{vip4: three})
		must(t, f.Hold(ctx, nil, []netip.Addr{vip6}))
		check("another one", "172.18.0.200 : 172.18.0.13")
		must(t, Remove(ctx))
		must(t, f.Reload(ctx, []netip.Addr{vip4}))
		check("loaded again", "172.18.0.200 : 172.18.0.13")
		many := map[netip.Addr]netip.Addr{}
		for a := netip.MustParseAddr("10.0.0.1"); len(many) < 10_000; a = a.Next() {
			many[a] = two
		}
		f.Former(many)
		must(t, f.Hold(ctx, nil, nil))
		check("many", "10.0.0.1 : 172.18.0.12", "10.0.39.16 : 172.18.0.12")
		f.Former(nil)
		must(t, f.Hold(ctx, nil, nil))
		check("none")
	})
}
