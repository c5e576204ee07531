package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/service"
)

// A layout is what is wanted in the kernel of our chains in one family.
type layout struct {
	chains map[chain][]string
	// tails are the rules that come behind the entries of shared chains.
	tails map[chain][]string
	// hooks are the rules in chains that are not ours, which lead to ours.
	hooks []hook
}

type hook struct {
	in   chain
	rule string

	handle uint64 // the kernel's number for it; 0: not known
}

// same reports whether two hooks are equal except for their handles.
func (h hook) same(o hook) bool { return h.in == o.in && h.rule == o.rule }

// layout is what a family has whatever the Services are: kube-proxy's chains around
// them.
func (p *renderer) layout(is4 bool, mark uint32) *layout {
	l := &layout{chains: map[chain][]string{}, tails: map[chain][]string{}}
	for _, table := range []string{nat, filter} {
		for _, name := range constantNames(table) {
			l.chains[chain{table, name}] = nil
		}
	}
	rules := func(c chain, all ...rule) {
		for _, r := range all {
			l.chains[c] = append(l.chains[c], r.String())
		}
	}
	bit := fmt.Sprintf("%#x", mark)
	rules(chain{nat, markMasq}, rule{jump: "MARK --set-xmark " + bit + "/" + bit})
	rules(chain{nat, postroute},
		rule{matches: "-m mark ! --mark " + bit + "/" + bit, jump: "RETURN"},
		rule{jump: "MARK --set-xmark " + bit + "/0x0"},
		rule{comment: "kubernetes service traffic requiring SNAT", jump: "MASQUERADE --random-fully"})
	if !p.liberal {
		rules(chain{filter, forward}, rule{matches: "-m conntrack --ctstate INVALID", jump: "DROP"})
	}
	rules(chain{filter, forward},
		rule{comment: "kubernetes forwarding rules", matches: "-m mark --mark " + bit + "/" + bit, jump: "ACCEPT"},
		rule{comment: "kubernetes forwarding conntrack rule", matches: "-m conntrack --ctstate RELATED,ESTABLISHED", jump: "ACCEPT"})
	pods := p.pods(is4)
	for _, pod := range pods {
		pod.comment, pod.jump = "pods keep their address", "RETURN"
		rules(chain{nat, markOffCluster}, pod)
	}
	rules(chain{nat, markOffCluster}, rule{jump: markMasq})
	for _, line := range settingsComments(p.settings, is4) {
		rules(chain{nat, recordings}, rule{comment: truncate(line)})
	}
	for _, r := range p.nodePorts(is4) {
		l.tails[chain{nat, services}] = append(l.tails[chain{nat, services}], r.String())
		l.tails[chain{filter, externals}] = append(l.tails[chain{filter, externals}], r.String())
	}
	l.hooks = hooks()
	return l
}

// nodePorts are the rules that lead to NodePorts, on no loopback address.
func (p *renderer) nodePorts(is4 bool) (all []rule) {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	loopback := netip.PrefixFrom(netip.IPv6Loopback(), 128)
	if is4 {
		loopback = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	for _, at := range ofFamily(p.settings.NodePorts, is4) {
		r := rule{comment: comment, matches: toLocal, jump: nodeports}
		if at.Bits() == 0 {
			r.dst, r.notDst = loopback.String(), true
			all = append(all, r)
			continue
		}
		for _, part := range excludePrefix(at.Masked(), loopback) {
			r.dst = part.String()
			all = append(all, r)
		}
	}
	return all
}

// excludePrefix returns the prefixes that cover p but not hole.
func excludePrefix(p, hole netip.Prefix) []netip.Prefix {
	if !p.Overlaps(hole) {
		return []netip.Prefix{p}
	}
	var b netipx.IPSetBuilder
	b.AddPrefix(p)
	b.RemovePrefix(hole)
	set, err := b.IPSet()
	if err != nil { // only of invalid prefixes
		return nil
	}
	return set.Prefixes()
}

// hooks are kube-proxy's, in the order in which they stand. Beyond its own, the node's
// own packets are refused too where a Service has no endpoints.
func hooks() (all []hook) {
	add := func(table, in, comment, more, jump string) {
		r := rule{comment: comment, jump: jump}
		text := r.String()
		if more != "" {
			text = more + " " + text
		}
		all = append(all, hook{in: chain{table, in}, rule: text})
	}
	for _, in := range []string{"PREROUTING", "OUTPUT"} {
		add(nat, in, "kubernetes service portals", "", services)
	}
	add(nat, "POSTROUTING", "kubernetes postrouting rules", "", postroute)
	for _, in := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		if in != "INPUT" {
			add(filter, in, "kubernetes service portals", isNew, services)
		}
		add(filter, in, "kubernetes externally-visible service portals", isNew, externals)
		add(filter, in, "kubernetes load balancer firewall", isNew, firewall)
	}
	add(filter, "FORWARD", "kubernetes forwarding rules", "", forward)
	return all
}

// liberal reports whether the node takes TCP packets out of window for valid.
func liberal() bool {
	value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(string(value)) != "0"
}

// settingsComments are the settings of a family, as comments.
func settingsComments(s service.Settings, is4 bool) (lines []string) {
	for _, p := range ofFamily(s.Pods, is4) {
		lines = append(lines, "pods "+p.String())
	}
	for _, name := range s.PodInterfaces {
		lines = append(lines, "interface "+name)
	}
	for _, p := range ofFamily(s.NodePorts, is4) {
		lines = append(lines, "nodeports "+p.String())
	}
	for _, p := range ofFamily(s.ServiceCIDRs, is4) {
		lines = append(lines, "services "+p.String())
	}
	return append(lines, "Fairway wrote these chains; this one holds its settings")
}
