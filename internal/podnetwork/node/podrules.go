package node

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"reflect"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

//go:embed pods.nft
var podsRules string

const (
	podsTable   = numbers.TablePods
	podsComment = "pods.nft" // of each rule
)

// podsParts are the optional parts of the program. Not every node has them, because each chain at a hook costs every
// packet of every pod.
type podsParts struct {
	tunnel     bool // there is a VXLAN device, or one is wanted
	encrypt    bool // packets to other nodes' pods are encrypted
	masquerade bool // some podCIDR of the node is masqueraded
	fragments  int  // a second that a pod may send; 0: no limit
}

func (p podsParts) program() *nft.Ruleset {
	return &nft.Ruleset{Source: podsRules, Data: map[string]any{
		"Tunnel": p.tunnel, "Encrypt": p.encrypt, "Masquerade": p.masquerade,
		"Priority": numbers.HookPods, "SourceCheck": numbers.HookSourceCheck, "Comment": podsComment,
		"VXLAN": tunnel.VXLANLink, "Port": numbers.PortVXLAN, "VNI": numbers.VNI, "WireGuard": tunnel.WireGuardLink, "Egress": tunnel.EgressLink, "EgressTable": numbers.TableEgress, "Raw": numbers.HookRaw,
		// The kernel compares four bytes faster than the three of the VNI.
		"Network": fmt.Sprintf("@th,96,32 & 0xffffff00 == %#x", numbers.VNI<<8),
		"Checked": "5s", "Fragments": p.fragments,
	}}
}

// The sets of podCIDRs with encrypted packets in both directions.
const setEncrypted4, setEncrypted6 = "encrypted4", "encrypted6"

// podRules is our table of rules for pods: it checks their source addresses, and masquerades them.
type podRules struct {
	table *nft.Table
	watch *nft.Watch
	// synced is the state of the kernel after the last sync; nil: not known. parts are the program's parts then.
	synced map[string][]netipx.IPRange
	ends   elements
	parts  podsParts
}

func newPodRules() *podRules {
	t := nft.New(podsTable)
	return &podRules{table: t, watch: t.Watch()}
}

// podsSets are the program's sets. The value says whether a set is of IPv4.
var podsSets = map[string]bool{
	"pods4": true, "pods6": false, "non-masquerade4": true, "non-masquerade6": false,
	"non-masquerade-cidrs4": true, "non-masquerade-cidrs6": false,
	"vxlan-behind4": true, "vxlan-behind6": false,
	"vxlan-sources4": true, "vxlan-sources6": false,
	setEncrypted4: true, setEncrypted6: false,
}

// wantedSets returns the elements of these sets.
func wantedSets(p *plan.Plan) map[string][]netip.Prefix {
	var sources, encrypted []netip.Prefix
	if p.Tunnel != nil {
		sources = p.Tunnel.Sources
	}
	if p.WireGuard != nil {
		encrypted = p.WireGuard.Encrypted
	}
	return map[string][]netip.Prefix{
		"pods4": p.Masqueraded, "pods6": p.Masqueraded, "non-masquerade-cidrs4": p.NonMasquerade, "non-masquerade-cidrs6": p.NonMasquerade,
		"non-masquerade4": p.Inside, "non-masquerade6": p.Inside,
		"vxlan-sources4": sources, "vxlan-sources6": sources,
		setEncrypted4: encrypted, setEncrypted6: encrypted,
		"vxlan-behind4": p.Egress.Behind(), "vxlan-behind6": p.Egress.Behind(),
	}
}

// wantedEnds returns the elements of the sets of the tunnel's ends. Without a tunnel they are empty.
func wantedEnds(t *plan.Tunnel) elements {
	want := elements{"vxlan-peers4": {}, "vxlan-peers6": {}, "vxlan-ends4": {}, "vxlan-ends6": {}}
	if t == nil {
		return want
	}
	local := string(t.Local.AsSlice())
	for _, node := range t.Nodes { // of the family of local
		family := "6"
		if node.Is4() {
			family = "4"
		}
		peer := string(node.AsSlice())
		want["vxlan-peers"+family][peer], want["vxlan-ends"+family][peer+local] = "", ""
	}
	return want
}

// syncRules writes the table. The table stays without podCIDRs too, because pods from before still run. A tunnel's
// checks come before its device, and go after it.
func (n *Network) syncRules(ctx context.Context, p *plan.Plan, links *tunnels) error {
	parts := podsParts{tunnel: p.Tunnel != nil || links.vxlan.Link != 0, encrypt: p.WireGuard != nil, masquerade: len(p.Masqueraded) > 0, fragments: n.Fragments}
	want := wantedSets(p)
	err := n.keepBehind(ctx, p, want)
	if err == nil {
		err = n.rules.sync(ctx, parts, want, wantedEnds(p.Tunnel))
	}
	if err != nil {
		n.rules.forget()
		return fmt.Errorf("load the pods' rules: %w", err)
	}
	return nil
}

// sync compares the table with the wanted state if anything has changed since the last call. It writes the rules, or
// only elements, or nothing.
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

// damaged reports whether the table has other rules than the program. Another program may have changed them while no
// agent ran.
func (m *podRules) damaged(ctx context.Context, parts podsParts) (bool, error) {
	return m.table.Altered(ctx, parts.program(), podsComment)
}

// loaded reports whether the kernel runs the program, with any of its parts and this limit of fragments.
func (m *podRules) loaded(ctx context.Context, fragments int) (bool, error) {
	for i := range 8 { // all combinations
		parts := podsParts{tunnel: i&1 != 0, encrypt: i&2 != 0, masquerade: i&4 != 0, fragments: fragments}
		if ours, _, err := m.table.Runs(ctx, parts.program()); err != nil || ours {
			return ours, err
		}
	}
	return false, nil
}

// fill writes the elements that differ.
func (m *podRules) fill(ctx context.Context, want map[string][]netip.Prefix, ends elements) error {
	var ws []nft.Write
	for set, is4 := range podsSets {
		have, err := m.table.Prefixes(ctx, set)
		if err != nil {
			return err
		}
		ws = append(ws, nft.ReplacePrefixes(set, is4, have, want[set])...)
	}
	other, err := m.table.Differences(ctx, ends, "vxlan-ends4", "vxlan-ends6", "vxlan-peers4", "vxlan-peers6")
	if err != nil {
		return err
	}
	ws = append(ws, other...)
	return m.table.Commit(ctx, nil, ws)
}

// forget makes the next sync read the kernel.
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
