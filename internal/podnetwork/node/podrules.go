package node

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

//go:embed pods.nft
var podsRules string

const (
	podsTable   = numbers.TablePods
	podsComment = "pods.nft" // of each rule
)

// podsParts are the parts of the program that not every node has: each chain at a hook costs every packet of every pod.
type podsParts struct {
	tunnel     bool // there is a VXLAN device, or is to be one
	encrypt    bool // what is sent to other nodes' pods is encrypted
	masquerade bool // something that pods send out of the cluster gets the node's address
}

func (p podsParts) program() *nft.Ruleset {
	return &nft.Ruleset{Source: podsRules, Data: map[string]any{
		"Tunnel": p.tunnel, "Encrypt": p.encrypt, "Masquerade": p.masquerade,
		"Priority": numbers.HookPods, "SourceCheck": numbers.HookSourceCheck, "Comment": podsComment,
		"VXLAN": vxlanLink, "Port": numbers.PortVXLAN, "VNI": numbers.VNI, "WireGuard": wgLink, "Egress": egressLink, "EgressTable": numbers.TableEgress, "Raw": numbers.HookRaw,
		// Four bytes are compared faster than the three of the VNI.
		"Network": fmt.Sprintf("@th,96,32 & 0xffffff00 == %#x", numbers.VNI<<8),
		"Checked": "5s",
	}}
}

// What is sent to these podCIDRs, or comes from them, is encrypted.
const setEncrypted4, setEncrypted6 = "encrypted4", "encrypted6"

// multicast is never masqueraded.
var multicast = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}

var linkLocal = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}

// podRules are our table of rules for pods: it checks what they send, and masquerades it.
type podRules struct {
	table *nft.Table
	watch *nft.Watch
	// synced is what the kernel held after the last sync; nil: not known. parts are those of the program then.
	synced map[string][]netipx.IPRange
	ends   elements
	parts  podsParts
}

func newPodRules() *podRules {
	t := nft.New(podsTable)
	return &podRules{table: t, watch: t.Watch()}
}

// podsSets are the program's sets, and whether each is of IPv4.
var podsSets = map[string]bool{
	"pods4": true, "pods6": false, "non-masquerade4": true, "non-masquerade6": false,
	"non-masquerade-cidrs4": true, "non-masquerade-cidrs6": false,
	"vxlan-behind4": true, "vxlan-behind6": false,
	"vxlan-sources4": true, "vxlan-sources6": false,
	setEncrypted4: true, setEncrypted6: false,
}

// wantedSets are the elements of the sets.
func (n *Network) wantedSets(p *plan) map[string][]netip.Prefix {
	inside := slices.Concat(p.pods, n.ClusterCIDRs, multicast, hosts(p.nodes))
	p.inside = append(slices.Clone(inside), linkLocal...) // no gateway forwards those
	var sources, encrypted []netip.Prefix
	if p.tunnel != nil {
		sources = p.tunnel.sources
	}
	if p.wg != nil {
		encrypted = p.wg.encrypted
	}
	return map[string][]netip.Prefix{
		"pods4": n.masqueraded(p), "pods6": n.masqueraded(p), "non-masquerade-cidrs4": n.NonMasqueradeCIDRs, "non-masquerade-cidrs6": n.NonMasqueradeCIDRs,
		"non-masquerade4": inside, "non-masquerade6": inside,
		"vxlan-sources4": sources, "vxlan-sources6": sources,
		setEncrypted4: encrypted, setEncrypted6: encrypted,
		"vxlan-behind4": p.egress.behind(), "vxlan-behind6": p.egress.behind(),
	}
}

// masqueraded are the node's podCIDRs of which something is masqueraded.
func (n *Network) masqueraded(p *plan) (some []netip.Prefix) {
	if !n.Masquerade {
		return nil
	}
	for _, own := range p.podCIDRs {
		exempt := func(c netip.Prefix) bool { return c.Bits() == 0 && c.Addr().Is4() == own.Addr().Is4() }
		if !slices.ContainsFunc(n.NonMasqueradeCIDRs, exempt) {
			some = append(some, own)
		}
	}
	return some
}

// wantedEnds are the elements of the sets of the tunnel's ends. Without a tunnel nobody sends through it.
func wantedEnds(t *tunnel) elements {
	want := elements{"vxlan-peers4": {}, "vxlan-peers6": {}, "vxlan-ends4": {}, "vxlan-ends6": {}}
	if t == nil {
		return want
	}
	local := string(t.local.AsSlice())
	for _, node := range t.nodes { // of the family of local
		family := "6"
		if node.Is4() {
			family = "4"
		}
		peer := string(node.AsSlice())
		want["vxlan-peers"+family][peer], want["vxlan-ends"+family][peer+local] = "", ""
	}
	return want
}

func hosts(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, addr := range addrs {
		out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return out
}

// syncRules makes the table what is wanted. It is there also without podCIDRs: pods that
// have them from before are still running. A tunnel's checks come before its device, and go after it.
func (n *Network) syncRules(ctx context.Context, p *plan, links *tunnels) error {
	parts := podsParts{tunnel: p.tunnel != nil || links.vxlan.link != 0, encrypt: p.wg != nil, masquerade: len(n.masqueraded(p)) > 0}
	want := n.wantedSets(p)
	err := n.keepBehind(ctx, p, want)
	if err == nil {
		err = n.rules.sync(ctx, parts, want, wantedEnds(p.tunnel))
	}
	if err != nil {
		n.rules.forget()
		return fmt.Errorf("load the pods' rules: %w", err)
	}
	return nil
}

// sync compares the table with what is wanted, if anything has changed since the last
// time, and writes the rules, or only elements, or nothing.
func (m *podRules) sync(ctx context.Context, parts podsParts, want map[string][]netip.Prefix, ends elements) error {
	ranges := map[string][]netipx.IPRange{}
	for set, is4 := range podsSets {
		ranges[set] = nft.Ranges(want[set], is4)
	}
	again := func(ctx context.Context) (bool, error) { return m.damaged(ctx, parts) }
	if m.synced != nil {
		change, _, err := m.watch.Look(ctx)
		if err != nil || change == nft.Nothing && m.parts == parts && reflect.DeepEqual(m.synced, ranges) && reflect.DeepEqual(m.ends, ends) {
			return err
		}
		again = func(context.Context) (bool, error) { return change == nft.Rules, nil }
	}
	err := m.watch.Keep(ctx, parts.program(), again, func(ctx context.Context) error { return m.fill(ctx, want, ends) })
	m.synced, m.ends, m.parts = ranges, ends, parts
	return err
}

// damaged reports whether the table has other rules than a load made. Another program may
// have changed them when no agent was there.
func (m *podRules) damaged(ctx context.Context, parts podsParts) (bool, error) {
	return m.table.Altered(ctx, parts.program(), podsComment)
}

// loaded reports whether the kernel runs the program, with whichever parts.
func (m *podRules) loaded(ctx context.Context) (bool, error) {
	for i := range 8 { // all combinations
		parts := podsParts{tunnel: i&1 != 0, encrypt: i&2 != 0, masquerade: i&4 != 0}
		if ours, _, err := m.table.Runs(ctx, parts.program()); err != nil || ours {
			return ours, err
		}
	}
	return false, nil
}

// fill writes what differs of the elements.
func (m *podRules) fill(ctx context.Context, want map[string][]netip.Prefix, ends elements) error {
	var ws []nft.Write
	for set, is4 := range podsSets {
		have, err := m.table.Prefixes(ctx, set)
		if err != nil {
			return err
		}
		ws = append(ws, nft.ReplacePrefixes(set, is4, have, want[set])...)
	}
	other, err := ends.differing(ctx, m.table, "vxlan-ends4", "vxlan-ends6", "vxlan-peers4", "vxlan-peers6")
	if err != nil {
		return err
	}
	ws = append(ws, other...)
	return m.table.Commit(ctx, nil, ws)
}

// forget makes the next sync read what the kernel holds.
func (m *podRules) forget() {
	m.synced = nil
	m.watch.Reset()
	m.table.Close()
}

func (n *Network) removeRules(ctx context.Context) error {
	n.rules.forget()
	if err := n.rules.table.Delete(ctx); err != nil {
		return fmt.Errorf("delete the pods' rules: %w", err)
	}
	return nil
}

func joinPrefixes(prefixes []netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}
