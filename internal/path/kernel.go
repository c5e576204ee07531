package path

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairway-net/fairway/internal/service"
)

// kernelFrontend names the kernel object that holds a frontend in the mode of the agents.
func (p *predictor) kernelFrontend(f *service.Frontend) []Ref {
	family := familyOf(f.Addr.Addr())
	key := fmt.Sprintf("%v . %s . %d", f.Addr.Addr(), strings.ToLower(f.Proto.String()), f.Addr.Port())
	chain, match := "KUBE-SERVICES", fmt.Sprintf("-d %v/%d -p %s --dport %d", f.Addr.Addr(), f.Addr.Addr().BitLen(), strings.ToLower(f.Proto.String()), f.Addr.Port())
	list := "frontends" + family
	if f.NodePort() {
		list, chain = "nodeports"+family, "KUBE-NODEPORTS"
		key = fmt.Sprintf("%s . %d", strings.ToLower(f.Proto.String()), f.Addr.Port())
		match = fmt.Sprintf("-p %s --dport %d", strings.ToLower(f.Proto.String()), f.Addr.Port())
	}
	switch p.Mode {
	case "nftables":
		return []Ref{{Kernel: "nft-element", Table: "inet fairway", Chain: list, Text: list + " " + key, Show: "nft list map inet fairway " + list}}
	case "iptables":
		program := "iptables"
		if family == "6" {
			program = "ip6tables"
		}
		return []Ref{{Kernel: "iptables-rule", Table: "nat", Chain: chain, Text: chain + " " + match, Show: program + " -t nat -S " + chain}}
	}
	return nil
}

// natRefs names the kernel object that holds an endpoint.
func (p *predictor) natRefs(d service.Decision, _ service.Endpoint) []Ref {
	if p.Mode != "nftables" || d.Frontend.Affinity > 0 {
		return nil
	}
	list := "endpoints" + familyOf(d.Frontend.Addr.Addr())
	if d.Frontend.NodePort() {
		list = "nodeport-" + list
	}
	return []Ref{{Kernel: "nft-element", Table: "inet fairway", Chain: list, Text: list, Show: "nft list map inet fairway " + list}}
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}
