package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// A layout is the wanted rules of one family. Without Services it has kube-proxy's constant chains.
type layout struct {
	chains map[chain][]string
	tails  map[chain][]string // rules at the end of shared chains, behind the Services' entries
	hooks  []hook
}

// layout returns the rules of a family without Services.
func (p *renderer) layout(is4 bool, mark uint32) *layout {
	l := &layout{chains: map[chain][]string{}, tails: map[chain][]string{}}
	for _, table := range []string{nat, filter} {
		for _, name := range read.Constant(table) {
			l.chains[chain{Table: table, Name: name}] = nil
		}
	}
	rules := func(c chain, all ...rule) {
		for _, r := range all {
			l.chains[c] = append(l.chains[c], r.String())
		}
	}
	bit := fmt.Sprintf("%#x", mark)
	rules(natChain(xtables.KubeMarkMasq), rule{jump: "MARK --set-xmark " + bit + "/" + bit})
	rules(natChain(xtables.KubePostrouting),
		rule{matches: "-m mark ! --mark " + bit + "/" + bit, jump: "RETURN"},
		rule{jump: "MARK --set-xmark " + bit + "/0x0"},
		rule{comment: "kubernetes service traffic requiring SNAT", jump: "MASQUERADE --random-fully"})
	if !p.liberal {
		rules(filterChain(xtables.KubeForward), rule{matches: "-m conntrack --ctstate INVALID", jump: "DROP"})
	}
	rules(filterChain(xtables.KubeForward),
		rule{comment: "kubernetes forwarding rules", matches: "-m mark --mark " + bit + "/" + bit, jump: "ACCEPT"},
		rule{comment: "kubernetes forwarding conntrack rule", matches: "-m conntrack --ctstate RELATED,ESTABLISHED", jump: "ACCEPT"})
	pods := p.pods(is4)
	for _, pod := range pods {
		pod.comment, pod.jump = "pods keep their address", "RETURN"
		rules(natChain(read.OffCluster), pod)
	}
	rules(natChain(read.OffCluster), rule{jump: xtables.KubeMarkMasq})
	for _, line := range settingsComments(p.settings, is4) {
		rules(natChain(xtables.FairwaySettings), rule{comment: truncate(line)})
	}
	for _, r := range p.nodePorts(is4) {
		l.tails[natChain(xtables.KubeServices)] = append(l.tails[natChain(xtables.KubeServices)], r.String())
		l.tails[filterChain(xtables.KubeExternalServices)] = append(l.tails[filterChain(xtables.KubeExternalServices)], r.String())
	}
	l.hooks = hooks()
	return l
}

// nodePorts returns the rules that lead to NodePorts. Loopback addresses have no NodePorts.
func (p *renderer) nodePorts(is4 bool) (all []rule) {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	loopback := netip.PrefixFrom(netip.IPv6Loopback(), 128)
	if is4 {
		loopback = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	for _, at := range ofFamily(p.settings.NodePorts, is4) {
		r := rule{comment: comment, matches: toLocal, jump: xtables.KubeNodePorts}
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

// excludePrefix returns the prefixes that cover p except for hole.
func excludePrefix(p, hole netip.Prefix) []netip.Prefix {
	if !p.Overlaps(hole) {
		return []netip.Prefix{p}
	}
	var b netipx.IPSetBuilder
	b.AddPrefix(p)
	b.RemovePrefix(hole)
	set, err := b.IPSet()
	if err != nil { // a prefix is invalid
		return nil
	}
	return set.Prefixes()
}

// hooks returns kube-proxy's hooks, in the order of the kernel. The hook from OUTPUT to KUBE-EXTERNAL-SERVICES is not
// kube-proxy's: it refuses the node's own packets to a Service without endpoints.
func hooks() (all []hook) {
	add := func(table, in, comment, more, jump string) {
		r := rule{comment: comment, jump: jump}
		text := r.String()
		if more != "" {
			text = more + " " + text
		}
		all = append(all, hook{In: chain{Table: table, Name: in}, Rule: text})
	}
	for _, in := range []string{"PREROUTING", "OUTPUT"} {
		add(nat, in, "kubernetes service portals", "", xtables.KubeServices)
	}
	add(nat, "POSTROUTING", "kubernetes postrouting rules", "", xtables.KubePostrouting)
	for _, in := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		if in != "INPUT" {
			add(filter, in, "kubernetes service portals", isNew, xtables.KubeServices)
		}
		add(filter, in, "kubernetes externally-visible service portals", isNew, xtables.KubeExternalServices)
		add(filter, in, "kubernetes load balancer firewall", isNew, xtables.KubeProxyFirewall)
	}
	add(filter, "FORWARD", "kubernetes forwarding rules", "", xtables.KubeForward)
	return all
}

// liberal reports whether the node's connection tracking accepts TCP packets that are out of the window.
func liberal() bool {
	value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(string(value)) != "0"
}

// settingsComments returns the settings of a family as comments of the chain FAIRWAY. settingsOf parses them.
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
