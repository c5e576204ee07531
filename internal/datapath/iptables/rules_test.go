package iptables

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestNames: chains have the names that articles show.
func TestNames(t *testing.T) {
	port := func(ns, name, port string) api.PortName {
		return api.PortName{Name: api.Name{Namespace: ns, Name: name}, Port: port}
	}
	for want, got := range map[string]string{
		"NPX46M4PTMTKRN6Y": hash(port("default", "kubernetes", "https"), api.TCP),
		"TCOU7JCQXEZGVUNU": hash(port("kube-system", "kube-dns", "dns"), api.UDP),
		"ERIFXISQEP7F7OF4": hash(port("kube-system", "kube-dns", "dns-tcp"), api.TCP),
	} {
		if got != want {
			t.Errorf("hash is %s, want %s", got, want)
		}
	}
}

// TestRuleText: a rule that was parsed has its text again.
func TestRuleText(t *testing.T) {
	for _, text := range []string{
		`-d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y`,
		`! -d 127.0.0.0/8 -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`,
		`! -s 10.244.0.0/16 -d 10.96.0.1/32 -p udp -m comment --comment plain -m udp --dport 53 -j KUBE-MARK-MASQ`,
		`! -i veth+ -j KUBE-MARK-MASQ`,
		`-p sctp -m comment --comment "ns/svc" -m sctp --dport 65535 -j KUBE-SVC-A`,
		`-m comment --comment "a/b -> 10.0.0.1:80(local)*3" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-A`,
		`-m comment --comment "quo\"te" -m connmark ! --mark 0xfb000001 -j CONNMARK --set-xmark 0xfa000001/0xffffffff`,
		`-p tcp -m comment --comment "a/b" -m tcp -j DNAT --to-destination [fd00::1]:80`,
	} {
		if got := parse(text).String(); got != text {
			t.Errorf("read and written again:\n%s\n%s", text, got)
		}
	}
	if got := chance(1, 3); !strings.HasSuffix(got, " 0.33333333349") {
		t.Errorf("a third is %s", got)
	}
}

// TestSlotsOf: a list whose endpoints take turns by weight has a bounded number of rules.
func TestSlotsOf(t *testing.T) {
	var all []service.Endpoint
	for i, w := range []uint16{65535, 1, 1} {
		all = append(all, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Weight: w})
	}
	if n := len(slotsOf(service.RoundRobin, all)); n > maxSlots+3 {
		t.Errorf("a round has %d turns", n)
	}
	if slots := slotsOf(service.Random, all); len(slots) != 3 || slots[2].match != "" || slots[1].match != chance(1, 2) {
		t.Errorf("random: %v", slots)
	}
}

// TestCheckNotices: Check notices each change of our rules by another program, and the next Sync repairs the rules.
func TestCheckNotices(t *testing.T) {
	for _, v := range []Variant{NFT, Legacy} {
		t.Run(v.String(), func(t *testing.T) {
			testnet.Enter(t)
			run := func(command string) {
				t.Helper()
				f := strings.Fields(command)
				if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", command, err, out)
				}
			}
			b := cluster(20)
			one := numbered(21, 2)
			one.Frontends[0].Affinity = time.Hour
			b.Set(one)
			d, table := open(t, v), b.Table(settings())
			sync(t, d, table)
			name := "iptables-" + v.String()
			for _, command := range []string{
				name + " -t nat -F KUBE-SERVICES",
				name + " -t nat -D KUBE-MARK-MASQ 1",
				name + " -t nat -I KUBE-" + "SVC-" + hash(one.Frontends[0].Service, api.TCP) + " -j RETURN",
				name + " -t nat -D PREROUTING 1",
				name + " -t filter -F",
				name + " -t nat -F",
				"ip6tables-" + v.String() + " -t nat -F",
				"nft flush chain inet fairway-iptables affinity-frontends",
				"nft flush map inet fairway-iptables affinity-ids4",
				name + " -t filter -D FORWARD 1",
				name + " -t nat -R KUBE-MARK-MASQ 1 -j RETURN",
				name + " -t nat -A OUTPUT -j KUBE-SERVICES",
				name + " -t nat -A KUBE-NODEPORTS -p udp -j RETURN",
				name + " -t nat -N KUBE-SEP-AAAAAAAAAAAAAAAA",
				"nft flush ruleset",
			} {
				d.nextRead = time.Time{} // as if the last look was long ago
				if drift, err := d.Check(t.Context()); err != nil || drift.Any() {
					t.Fatalf("before %s: drift %+v, error %v", command, drift, err)
				}
				run(command)
				d.nextRead = time.Time{}
				if drift, err := d.Check(t.Context()); err != nil || !drift.Any() {
					t.Errorf("after %s: drift %+v, error %v", command, drift, err)
				}
				sync(t, d, table)
				held, err := d.Adopt(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if diff := service.Diff(held.Table, table); len(diff) > 0 || !held.Table.Settings.Equal(table.Settings) {
					t.Errorf("after %s and a Sync: %d frontends differ", command, len(diff))
				}
			}
			if err := d.Cleanup(t.Context()); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(name + "-save").Output()
			if err != nil || strings.Contains(string(out), "KUBE-") || strings.Contains(string(out), xtables.FairwaySettings) {
				t.Errorf("after Cleanup: %v\n%s", err, out)
			}
		})
	}
}

// TestOthers: chains of other programs that begin with KUBE- stay.
func TestOthers(t *testing.T) {
	testnet.Enter(t)
	for _, command := range []string{
		"iptables-nft -t mangle -N KUBE-KUBELET-CANARY", "iptables-nft -t nat -N KUBE-MARK-DROP",
		"iptables-nft -t nat -A POSTROUTING -s 10.244.0.0/16 -j MASQUERADE",
	} {
		f := strings.Fields(command)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	save := func() string {
		out, err := exec.Command("iptables-nft-save").Output()
		if err != nil {
			t.Fatal(err)
		}
		lines := slices.DeleteFunc(strings.Split(string(out), "\n"), func(l string) bool {
			return strings.HasPrefix(l, "#") || strings.HasPrefix(l, ":") && strings.Contains(l, " ACCEPT ")
		})
		return strings.Join(lines, "\n")
	}
	before := save()
	d := open(t, Auto)
	sync(t, d, cluster(3).Table(settings()))
	if d.variant != NFT {
		t.Errorf("where kubelet uses nft, %v is taken", d.variant)
	}
	if err := d.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := save(); after != before {
		t.Errorf("others' rules were\n%s\nand are\n%s", before, after)
	}
}
