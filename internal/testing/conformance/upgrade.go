package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A Former is what another release left on a node that served UpgradeTable.
type Former struct {
	Table string // the name of its nft table
	Rules string // that table, as nft lists it
	// Prepare makes what else it left, on the node.
	Prepare func() error
	// Home is the endpoint of the client pod at the Service with affinity; invalid: the
	// rules note it, as there is no process that does.
	Home netip.AddrPort
	// Carries says that its process carries connections, which end with it.
	Carries bool
	// TakesBack says that nft can load its rules into the table of this release. It cannot
	// where the load-balancing chains are written over netlink: see nftables/chains.go.
	TakesBack bool
}

// UpgradeTable has a frontend of each kind.
func UpgradeTable() *service.Table {
	balanced := web("turns", "10.96.0.3:80", api.TCP, 0, 1, 2)
	balanced.Balance = service.RoundRobin
	affinity := web("sticky", "10.96.0.4:80", api.TCP, 0, 1, 2, 3, 4, 5)
	nodePort := web("sticky", "0.0.0.0:30080", api.TCP, 0, 1, 2, 3, 4, 5)
	affinity.Affinity, nodePort.Affinity = 3*time.Hour, 3*time.Hour
	restricted := web("restricted", "10.96.0.5:80", api.TCP, 0, 1)
	restricted.Sources = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	local := web("local", "10.96.0.6:80", api.TCP, 0, 1, 2, 3, 4, 5)
	local.External = web("local", "10.96.0.6:80", api.TCP, 0, 2, 4).Internal
	local.External.Masquerade = service.MasqueradeHairpin
	all := []*service.Frontend{
		web("web", "10.96.0.1:80", api.TCP, 0, 1, 2), web("web", "10.96.0.1:80", api.UDP, 0, 1, 2),
		web("load", "10.96.0.2:80", api.TCP, 0, 1, 2, 3, 4, 5), balanced, affinity, nodePort, restricted, local,
		web("empty", "10.96.0.7:80", api.TCP), web("hairpin", "10.96.0.8:80", api.TCP, 0),
	}
	for _, f := range all {
		f.ClusterIP = !f.NodePort()
	}
	t := tableOf(all...)
	t.Settings.NodePorts = []netip.Prefix{netip.MustParsePrefix("172.18.0.11/32")}
	t.Settings.NodeIPs = []netip.Addr{netip.MustParseAddr("172.18.0.11")}
	t.Settings.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	return t
}

// Upgrade takes the node over from another release under load, and gives it back. No
// connection is lost, clients are answered all the time, those with affinity by their
// endpoint, and nothing of the other release is left.
func Upgrade(t *testing.T, open Open, f Former) {
	w := &walk{t: t, table: UpgradeTable()}
	w.rig = sixRig(t, suite{open: open, patience: 10 * time.Second})
	w.keepFlows()
	r := w.rig
	f.load(t, r)
	if !f.Carries {
		w.conns = append(w.conns, w.openConns("of another release")...)
		w.conns = append(w.conns, w.hairpin())
	}
	client := r.hosts[scenario.World.Pod.V4]
	if !f.Home.IsValid() {
		f.Home = r.awaitAffinity(t, client, "tcp", "10.96.0.4:80", "172.18.0.11:30080")
	}
	stop := w.load()
	if err := r.sync(w.table); err != nil {
		t.Fatal(err)
	}
	when := "after the upgrade"
	w.checkOpen(when, w.conns)
	if now := r.awaitAffinity(t, client, "tcp", "10.96.0.4:80", "172.18.0.11:30080"); now != f.Home {
		t.Errorf("%s the client with affinity is at %v, was at %v", when, now, f.Home)
	}
	report(t, r.checkSynced(w.table))
	report(t, r.packets(r.everywhere(w.table)))
	if left := f.leftovers(t, r); len(left) > 0 {
		t.Errorf("%s these names of the other release are left: %v", when, left)
	}
	if f.TakesBack {
		w.conns = append(w.conns, append(w.openConns("of this release"), w.hairpin())...)
		w.checkOpen("before the downgrade", w.conns)
		f.takeBack(t, r)
		w.checkOpen("after the downgrade", append(w.conns, append(w.openConns("of the other release, again"), w.hairpin())...))
		r.reopen()
		report(t, r.sync(w.table))
		w.checkOpen("after the second upgrade", w.conns)
		report(t, r.checkSynced(w.table))
	}
	report(t, stop())
	for _, c := range w.conns {
		c.Close()
	}
}

// hairpin opens a connection of an endpoint to itself by its Service.
func (w *walk) hairpin() *openConn {
	w.t.Helper()
	at := six()[0].Addr
	c, err := w.rig.hosts[at.Addr()].Dial("tcp", netip.MustParseAddrPort("10.96.0.8:80"), w.rig.suite.patience)
	if err != nil {
		w.t.Fatalf("hairpin: %v", err)
	}
	if got := c.Ask(w.rig.suite.patience); got.Outcome != testnet.Answered || got.At != at {
		w.t.Fatalf("hairpin: %v", got)
	}
	return &openConn{c, "hairpin", at}
}

// load puts in place what the other release left.
func (f *Former) load(t *testing.T, r *rig) {
	t.Helper()
	f.nft(t, r, f.Rules)
	if f.Prepare != nil {
		report(t, r.node.Do(f.Prepare))
	}
}

func (f *Former) nft(t *testing.T, r *rig, text string) {
	t.Helper()
	report(t, r.node.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %.400s", err, out)
		}
		return nil
	}))
}

// What nft lists: a set with its elements, and a chain.
var (
	setBlock   = regexp.MustCompile(`(?ms)^\t(set|map) (\S+) \{.*?^\t\}\n`)
	chainBlock = regexp.MustCompile(`(?ms)^\t(chain) (\S+) \{.*?^\t\}\n`)
	elements   = regexp.MustCompile(`(?s)\t\telements = \{.*?\}\n`)
)

// blocks returns the declarations in a listing by kind and name, "chain services".
func blocks(text string) map[string]bool {
	all := map[string]bool{}
	for _, block := range []*regexp.Regexp{setBlock, chainBlock} {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			all[m[1]+" "+m[2]] = true
		}
	}
	return all
}

// list is the table as nft lists it.
func (f *Former) list(t *testing.T, r *rig) (text string) {
	t.Helper()
	report(t, r.node.Do(func() error {
		out, err := exec.Command("nft", "list", "table", "inet", f.Table).CombinedOutput()
		text = string(out)
		return err
	}))
	return text
}

// leftovers returns what the other release declared and a node has not that never saw it.
func (f *Former) leftovers(t *testing.T, r *rig) (left []string) {
	t.Helper()
	fresh := sixRig(t, r.suite)
	report(t, fresh.sync(UpgradeTable()))
	ours := blocks(f.list(t, fresh))
	report(t, fresh.node.Do(func() error { return fresh.dp.Cleanup(context.Background()) }))
	for name := range blocks(f.list(t, r)) {
		if !ours[name] {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	return left
}

// takeBack does what the other release does when it finds the table of this one: it
// replaces the rules in one transaction, fills in elements, and removes what it does not
// know.
func (f *Former) takeBack(t *testing.T, r *rig) {
	t.Helper()
	there := f.list(t, r)
	var flush, remove strings.Builder
	for _, m := range setBlock.FindAllStringSubmatch(there, -1) {
		if !strings.Contains(f.Rules, "\t"+m[1]+" "+m[2]+" {") {
			if m[1] == "map" {
				fmt.Fprintf(&flush, "flush map inet %s %s\n", f.Table, m[2])
			}
			fmt.Fprintf(&remove, "delete %s inet %s %s\n", m[1], f.Table, m[2])
		}
	}
	var empty strings.Builder
	for _, m := range chainBlock.FindAllStringSubmatch(there, -1) {
		fmt.Fprintf(&empty, "flush chain inet %s %s\n", f.Table, m[2])
		if !strings.Contains(f.Rules, "\tchain "+m[2]+" {") {
			fmt.Fprintf(&remove, "delete chain inet %s %s\n", f.Table, m[2])
		}
	}
	// Maps of verdicts are part of the rules.
	var sets, bare strings.Builder
	for _, set := range setBlock.FindAllString(f.Rules, -1) {
		if strings.Contains(set, ": verdict\n") {
			bare.WriteString(set)
			continue
		}
		bare.WriteString(elements.ReplaceAllString(set, ""))
		sets.WriteString(set)
	}
	in := func(text string) string { return fmt.Sprintf("table inet %s {\n%s}\n", f.Table, text) }
	f.nft(t, r, empty.String()+in(bare.String()+strings.Join(chainBlock.FindAllString(f.Rules, -1), "")))
	f.nft(t, r, in(sets.String()))
	f.nft(t, r, flush.String()+remove.String())
}
