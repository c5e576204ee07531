package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// hash returns the end of a chain's name: kube-proxy's hash of the Service port, the protocol, and the parts that
// distinguish the chain from others.
func hash(name api.PortName, proto api.Proto, more ...string) string {
	return xtables.Hash(append([]string{name.String(), lower(proto)}, more...)...)
}

// The texts below are hashed into the names of chains for which kube-proxy has no name: the second chain of a kind that
// one Service port needs. The names are in the kernel, so another text would give the chains other names at an upgrade.
// The texts are therefore written out, and do not change with a new field or another String method.

// routeText is "{[10.244.1.2:80(local)*3 10.244.2.3:80] forward far false}".
func routeText(r *service.Route) string {
	action := map[service.Action]string{service.Forward: "forward", service.Reject: "reject", service.Drop: "drop"}[r.Action]
	masquerade := map[service.Masquerade]string{
		service.MasqueradeHairpin: "hairpin", service.MasqueradeOffCluster: "far", service.MasqueradeAll: "all",
	}[r.Masquerade]
	return "{" + endpointsText(r.Endpoints) + " " + action + " " + masquerade + " " + strconv.FormatBool(r.Local) + "}"
}

// endpointsText is "[10.244.1.2:80(local)*3 10.244.2.3:80]".
func endpointsText(all []service.Endpoint) string {
	texts := make([]string, len(all))
	for i, e := range all {
		texts[i] = endpointText(e)
	}
	return "[" + strings.Join(texts, " ") + "]"
}

// endpointText is "10.244.1.2:80(local)*3".
func endpointText(e service.Endpoint) string {
	text := e.Addr.String()
	if e.Local {
		text += "(local)"
	}
	if e.Weight != 0 {
		text += "*" + strconv.Itoa(int(e.Weight))
	}
	return text
}

// choiceText is "3h0m0s rr": the time of session affinity, and the algorithm.
func choiceText(f *service.Frontend) string {
	names := map[service.Algorithm]string{
		service.Random: "random", service.RoundRobin: "rr", service.LeastConn: "lc", service.SourceHash: "sh",
		service.DestHash: "dh", service.ShortestDelay: "sed", service.NeverQueue: "nq", service.Maglev: "maglev",
	}
	return f.Affinity.String() + " " + names[f.Balance]
}

// sourcesText is "[192.0.2.0/24 198.51.100.0/24]".
func sourcesText(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return "[" + strings.Join(texts, " ") + "]"
}
