package probe

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/fairway-net/fairway/internal/datapath/takeover"
	deadline "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/operate/doctor"
	"github.com/fairway-net/fairway/internal/podnetwork/node/obstacles"
	"github.com/fairway-net/fairway/internal/text"
)

// proxyLinks lists interfaces that service proxies create.
var proxyLinks = []struct{ name, whose string }{
	{"kube-ipvs0", "kube-proxy in mode ipvs (link kube-ipvs0)"}, {"cilium_host", "Cilium (link cilium_host)"},
	{"kube-dummy-if", "kube-router (link kube-dummy-if)"}, {"antrea-gw0", "Antrea (link antrea-gw0)"},
	{"ovn-k8s-mp0", "OVN-Kubernetes (link ovn-k8s-mp0)"},
}

// others reads the rules of other programs that carry or drop packets of Services.
func others(ctx context.Context) (f doctor.OthersFacts) {
	there, _ := links()
	for _, l := range proxyLinks {
		if slices.ContainsFunc(there, func(o doctor.Link) bool { return o.Name == l.name }) {
			f.Proxies = append(f.Proxies, l.whose)
		}
	}
	remains, err := (&takeover.KubeProxy{}).Find(ctx)
	if err != nil {
		f.Err = text.OneLine(err).Error()
		return f
	}
	for _, r := range remains {
		f.Proxies = append(f.Proxies, "kube-proxy ("+r.String()+")")
	}
	if f.Drops, err = drops(ctx); err != nil {
		f.Err = text.OneLine(err).Error()
	}
	return f
}

// drops returns the base chains at forward and input that drop by their policy or their last rule, of nf_tables and of
// iptables-legacy. Fairway has none.
func drops(ctx context.Context) (all []string, err error) {
	var socket *netlink.Conn
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(n *netlink.Conn) error { socket = n; return nil }))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w [needs CAP_NET_ADMIN]", err)
	}
	var chains []*nftables.Chain
	err = deadline.Within(ctx, socket, func() (err error) { chains, err = c.ListChains(); return err })
	_ = c.CloseLasting()
	if err != nil {
		return nil, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	for _, ch := range chains {
		if ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop || ch.Hooknum == nil || ch.Table.Family == nftables.TableFamilyARP || ch.Table.Family == nftables.TableFamilyBridge {
			continue
		}
		hook := map[nftables.ChainHook]string{*nftables.ChainHookInput: "input", *nftables.ChainHookForward: "forward"}[*ch.Hooknum]
		if hook != "" {
			all = append(all, fmt.Sprintf("nft %s %s %s (%s)", families[ch.Table.Family], ch.Table.Name, ch.Name, hook))
		}
	}
	last, err := obstacles.LastRuleDrops(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the last rules of chains: %w", err)
	}
	all = append(all, last...)
	for _, is4 := range []bool{true, false} {
		all = append(all, legacyDrops(ctx, is4)...)
	}
	slices.SortFunc(all, strings.Compare)
	return all, nil
}

// legacyDrops returns the chains of iptables-legacy that drop by their policy or their last rule.
func legacyDrops(ctx context.Context, is4 bool) (all []string) {
	last := map[string]string{}                                       // the last rule of a chain
	_ = xtables.Save(ctx, xtables.Legacy, is4, func(l xtables.Line) { // an iptables that is not installed has no rules
		if !slices.Contains([]string{"INPUT", "FORWARD"}, l.Chain) {
			return
		}
		name := fmt.Sprintf("%s %s %s", xtables.Program(xtables.Legacy, is4, ""), l.Table, l.Chain)
		switch l.Kind {
		case xtables.Chain:
			if l.Text == "DROP" {
				all = append(all, name)
			}
		case xtables.Rule:
			last[name] = l.Text
		}
	})
	for name, rule := range last {
		if strings.Contains(rule, "-j DROP") || strings.Contains(rule, "-j REJECT") {
			if words := strings.Fields(rule); slices.Index(words, "-j") == 0 { // nothing is matched
				all = append(all, name+" (by its last rule)")
			}
		}
	}
	return all
}

var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet", nftables.TableFamilyNetdev: "netdev",
}
