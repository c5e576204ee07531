package iptables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// formerNames are what releases up to d2dfa2d called what the helper has.
var formerNames = strings.NewReplacer(
	"affinity-ids-nodeports-external", "nodeport-sticky-outside", "affinity-ids-nodeports", "nodeport-sticky",
	"affinity-ids-external", "sticky-outside", "affinity-ids", "sticky", "affinity-lists", "ids", "cluster-ips", "reserved",
)

// withAffinity has a Service with affinity at a ClusterIP and a NodePort, on a node where pods have two
// ranges and are known by their links too.
func withAffinity() *service.Table {
	s := settings()
	s.Pods = append(s.Pods, netip.MustParsePrefix("10.245.0.0/16"))
	e := numbered(1, 3)
	e.Frontends[0].Affinity = 3 * time.Hour
	port := *e.Frontends[0]
	port.Addr, port.ClusterIP = netip.MustParseAddrPort("0.0.0.0:30080"), false
	return service.NewTable(s, append(e.Frontends, &port))
}

// TestFormerNames: what a release with other names left is what it was in this one's words: the table
// that it carries, the numbers of its lists and their clients. Nothing keeps such a name.
func TestFormerNames(t *testing.T) {
	testnet.Enter(t)
	run := func(stdin, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %.600s", name, args, err, out)
		}
		return string(out)
	}
	table, before := withAffinity(), open(t, NFT)
	first := numbered(0, 3)
	first.Frontends[0].Affinity = time.Hour
	sync(t, before, service.NewTable(table.Settings, append(first.Frontends, table.Sorted()...))) // so that the others' numbers are not the first
	sync(t, before, table)
	var list []byte
	for e := range before.helper.elems {
		if e.set == affinityLists {
			list = []byte(e.data)
		}
	}
	client := nftset.BucketKey[listNumber](append(list, formerClient.AsSlice()...))
	mark := nftset.Number(markKnown | before.renderer.mark(sep+hash(table.Sorted()[0].Service, api.TCP, table.Sorted()[0].Internal.Endpoints[0].Addr.String())))
	if err := before.helper.table.Commit(t.Context(), nil, []nft.Write{{Set: affinityBuckets(true), Key: client, Data: mark, Timeout: time.Hour, Add: true}}); err != nil {
		t.Fatal(err)
	}
	had := before.helper.elems
	before.Close()
	for _, family := range []string{"iptables", "ip6tables"} {
		run(strings.ReplaceAll(run("", family+"-nft-save"), markOffCluster, formerMark), family+"-nft-restore")
	}
	var left strings.Builder
	for _, set := range regexp.MustCompile(`(?ms)^\t(set|map) (affinity-ids|affinity-lists|affinity-buckets|cluster-ips).*?^\t\}\n`).FindAllString(run("", "nft", "list", "table", "inet", numbers.TableIPTables), -1) {
		left.WriteString(formerNames.Replace(set))
	}
	run(fmt.Sprintf("delete table inet %[1]s\ntable inet %[1]s {\n%s\tchain program-0 {\n\t}\n\tchain which {\n\t}\n\tchain give-back {\n\t}\n}\n", numbers.TableIPTables, left.String()), "nft", "-f", "-")

	after := open(t, NFT)
	adopted, err := after.Adopt(t.Context())
	if err != nil || !adopted.Found || len(service.Diff(adopted.Table, table)) > 0 {
		t.Errorf("adopted %v: found %v, %d differences", err, adopted.Found, len(service.Diff(adopted.Table, table)))
	}
	sync(t, after, table)
	for e, n := range had {
		if after.helper.elems[e] != n {
			t.Errorf("element %s %x : %x%s: %d frontends use it, were %d", e.set, e.key, e.data, e.to, after.helper.elems[e], n)
		}
	}
	there := false
	if err := after.helper.table.Elements(t.Context(), affinityBuckets(true), func(e nft.Element) error {
		there = there || string(e.Key) == string(client) && string(e.Data) == string(mark)
		return nil
	}); err != nil || !there {
		t.Errorf("the client is forgotten (%v)", err)
	}
	kernel := run("", "nft", "list", "ruleset")
	if name := regexp.MustCompile(`(?m)(sticky|reserved|unserved|recall|learn|which|give-back|KUBE-MARK-FAR|(set|map) ids\b).*`).FindString(kernel); name != "" {
		t.Errorf("left of the former release: %q", name)
	}
	if stats, err := after.Sync(t.Context(), table); err != nil || stats.Added+stats.Deleted > 0 {
		t.Errorf("another Sync: %+v, %v", stats, err)
	}
}

// TestLookupComesFirst: at no moment of an upgrade the program asks for clients without the rules that know
// them: their next connections would go to other endpoints, and be noted there.
func TestLookupComesFirst(t *testing.T) {
	testnet.Enter(t)
	table, before := withAffinity(), open(t, NFT)
	sync(t, before, table)
	chains, err := before.helper.table.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range chains {
		if strings.HasPrefix(name, "program-") {
			if out, err := exec.Command("nft", "add", "chain", "inet", numbers.TableIPTables, "program-0;", "delete", "chain", "inet", numbers.TableIPTables, name).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	before.Close()

	after, looks := open(t, NFT), 0
	var kernel nft.Reader
	t.Cleanup(kernel.Close)
	rules := func(chain string) (n int) {
		if err := kernel.Rules(t.Context(), nft.Inet, numbers.TableIPTables, chain, func(nft.Rule) error { n++; return nil }); err != nil {
			t.Error(err)
		}
		return n
	}
	after.FailWrites(func() error {
		looks++
		for _, chain := range constantChains() {
			if rules("affinity-lookup-prerouting") > 0 && rules(chain) == 0 {
				t.Errorf("before write %d the program runs, and chain %s is empty", looks, chain)
			}
		}
		return nil
	})
	sync(t, after, table)
	if looks < 4 {
		t.Errorf("only %d writes", looks)
	}
}
