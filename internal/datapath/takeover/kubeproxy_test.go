package takeover

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// run runs a program in the network namespace of this thread.
func run(ctx context.Context, input, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	return string(out), err
}

func TestMain(m *testing.M) { testnet.Main(m) }

// kubeProxyNFT is the shape of what kube-proxy writes in mode nftables.
const kubeProxyNFT = `
table %[1]s kube-proxy {
	comment "rules for kube-proxy"
	map service-ips {
		type ipv%[2]s_addr . inet_proto . inet_service : verdict
		elements = { %[3]s . tcp . 80 : goto reject-chain }
	}
	chain reject-chain { reject; }
	chain filter-prerouting {
		type filter hook prerouting priority dstnat - 10; policy accept;
		ct state new %[1]s daddr . meta l4proto . th dport vmap @service-ips
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; }
}
table %[1]s mine {
	chain kube-proxy { type filter hook input priority 0; }
}
`

// TestKubeProxy puts what kube-proxy writes, beside others' rules, into each place where
// it can be, and takes it out again.
func TestKubeProxy(t *testing.T) {
	text := saved(t)
	four := strings.NewReplacer("icmp-port-unreachable", "icmp6-port-unreachable", "10.244.0.5:8080", "[fd00::5]:8080").Replace(text)
	for from, to := range map[string]string{
		"10.244.0.0/16": "fd00:10::/56", "10.244.0.0/24": "fd00:10::/64", "10.244.0.5/32": "fd00::5/128", "10.96.0.7/32": "fd00:96::7/128",
		"10.96.0.8/32": "fd00:96::8/128", "127.0.0.0/8": "::1/128",
	} {
		four = strings.ReplaceAll(four, from, to)
	}
	for _, c := range []struct{ program, rules string }{
		{"iptables-nft", text}, {"iptables-legacy", text}, {"ip6tables-nft", four}, {"ip6tables-legacy", four},
	} {
		t.Run(c.program, func(t *testing.T) {
			t.Parallel()
			inside(t, func() error {
				if _, err := run(t.Context(), c.rules, c.program+"-restore"); err != nil {
					return err
				}
				want := without(c.rules, func(line string) bool { return !foreign(line) })
				if err := replace(t, "chains KUBE-* of "+c.program+"-save"); err != nil {
					return err
				}
				saved, err := run(t.Context(), "", c.program+"-save")
				if err != nil {
					return err
				}
				got := without(saved, func(string) bool { return false })
				slices.Sort(got) // legacy prints chains and tables in another order
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("left are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				return nil
			})
		})
	}
	t.Run("nftables", func(t *testing.T) {
		t.Parallel()
		inside(t, func() error {
			rules := fmt.Sprintf(kubeProxyNFT, "ip", "4", "10.96.0.1") + fmt.Sprintf(kubeProxyNFT, "ip6", "6", "fd00::1")
			if _, err := run(t.Context(), rules, "nft", "-f", "-"); err != nil {
				return err
			}
			if err := replace(t, "nftables table ip kube-proxy, nftables table ip6 kube-proxy"); err != nil {
				return err
			}
			left, err := run(t.Context(), "", "nft", "list", "tables")
			if want := "table ip mine\ntable ip6 mine\n"; left != want {
				t.Errorf("left are\n%swant\n%s", left, want)
			}
			return err
		})
	})
}

// inside runs f in a network namespace of its own.
func inside(t *testing.T, f func() error) {
	t.Helper()
	if err := testnet.NewNamespace(t, "node").Do(f); err != nil {
		t.Fatal(err)
	}
}

// replace finds kube-proxy's rules, which must be called want, and removes them.
func replace(t *testing.T, want string) error {
	k := &KubeProxy{}
	remains, err := k.Find(t.Context())
	if err != nil {
		return err
	}
	if names(remains) != want {
		t.Errorf("found %q, want %q", names(remains), want)
	}
	if err := k.Remove(t.Context(), remains); err != nil {
		return err
	}
	if remains, err = k.Find(t.Context()); len(remains) > 0 {
		t.Errorf("found %q after they were removed", names(remains))
	}
	return err
}

// TestAdopted: chains that our mode iptables has adopted are left to it; those of the
// other command, and what it has no use for, are not.
func TestAdopted(t *testing.T) {
	inside(t, func() error {
		ours := strings.Replace(saved(t), ":KUBE-EXT-", ":FAIRWAY - [0:0]\n:KUBE-EXT-", 1)
		for program, rules := range map[string]string{"iptables-nft-restore": ours, "iptables-legacy-restore": saved(t)} {
			if _, err := run(t.Context(), rules, program); err != nil {
				return err
			}
		}
		k := &KubeProxy{}
		remains, err := k.Find(t.Context())
		if err != nil {
			return err
		}
		if want := "chains KUBE-* of iptables-nft-save, chains KUBE-* of iptables-legacy-save"; names(remains) != want {
			t.Errorf("found %q, want %q", names(remains), want)
		}
		if err := k.Remove(t.Context(), remains); err != nil {
			return err
		}
		if remains, err = k.Find(t.Context()); len(remains) > 0 {
			t.Errorf("found %q after they were removed", names(remains))
		}
		for program, there := range map[string]bool{"iptables-nft-save": true, "iptables-legacy-save": false} {
			text, err := run(t.Context(), "", program)
			if err != nil {
				return err
			}
			if strings.Contains(text, "-j KUBE-SVC-CG5I4G2RS3ZVWGLK") != there || strings.Contains(text, "KUBE-PROXY-CANARY") {
				t.Errorf("%s prints\n%s", program, text)
			}
		}
		return err
	})
}

// TestNothing: on a node where no kube-proxy ran nothing is found, and nothing is made.
func TestNothing(t *testing.T) {
	inside(t, func() error {
		remains, err := (&KubeProxy{}).Find(t.Context())
		if len(remains) > 0 {
			t.Errorf("found %v", remains)
		}
		if there, err := xtables.LegacyTables(true); there || err != nil {
			t.Errorf("Find made tables of iptables-legacy (%v)", err)
		}
		return err
	})
}

// TestContext: with a context that has ended, the kernel is not asked.
func TestContext(t *testing.T) {
	inside(t, func() error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if remains, err := (&KubeProxy{}).Find(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("found %v, error %v", remains, err)
		}
		return nil
	})
}
