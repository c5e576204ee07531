package status

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/text"
)

// A Level is the state of a Part.
type Level string

// The levels.
const (
	OK        Level = "ok"
	Note      Level = "note"      // nothing is wrong, but it should be known
	Attention Level = "attention" // something does not work
	Unknown   Level = "unknown"   // the facts could not be read
)

// A Part is a part of Fairway other than the agents, or a state of the cluster that concerns Fairway.
type Part struct {
	Name  string `json:"name"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"`
}

// JudgeParts judges the facts of a cluster at a time. A part that is not installed has no Part.
func JudgeParts(p *kube.Parts, nodes []kube.AgentPod, now time.Time) (all []Part) {
	for _, judge := range []func(*kube.Parts) []Part{
		judgeDNS, func(p *kube.Parts) []Part { return judgeController(p, now) }, judgeSpeakers, judgeGateways, judgeNames, judgeEdges, judgeKubeProxy,
		func(p *kube.Parts) []Part { return judgePolicies(p, nodes) },
	} {
		all = append(all, judge(p)...)
	}
	return append(all, judgeNodes(nodes, p.DaemonSets["fairway-speaker"] != nil)...)
}

// unread returns a Part for the first of the facts that could not be read.
func unread(p *kube.Parts, name string, facts ...string) []Part {
	for _, f := range facts {
		if why := p.Unread[f]; why != "" {
			return []Part{{name, Unknown, why, ""}}
		}
	}
	return nil
}

func judgeDNS(p *kube.Parts) []Part {
	const name = "DNS"
	if bad := unread(p, name, kube.FactWorkloads, kube.FactDNS); bad != nil {
		return bad
	}
	var server *kube.Workload
	for _, n := range []string{"coredns", "fairway-dns"} {
		if w := p.Deployments[n]; w != nil && w.Fairway() && w.Wanted > 0 {
			server = w
		}
	}
	switch {
	case p.DNSService == "":
		return []Part{{name, Attention, "no Service has the label k8s-app=kube-dns, so pods get no DNS server", "fairway upgrade --dns fairway"}}
	case p.DNSReady == 0:
		return []Part{{name, Attention, "the Service " + p.DNSService + " has no ready endpoint: no name is answered", "kubectl -n kube-system get pods -l k8s-app=kube-dns; fairway upgrade --dns fairway"}}
	case server == nil:
		return []Part{{name, OK, fmt.Sprintf("not Fairway's: %s with %s ready", p.DNSService, text.Count(p.DNSReady, "endpoint")), ""}}
	case len(p.StaleDNS) > 0:
		return []Part{{name, Attention, strings.Join(p.StaleDNS, ", ") + ": the changed Corefile cannot be served, the previous one stays in use", "fairway dns --check FILE names the line; the pod's log, too"}}
	case server.Available < server.Wanted:
		return []Part{{name, Attention, running(server), "kubectl -n kube-system get pods -l k8s-app=kube-dns"}}
	case len(p.UnaskedDNS) > 0:
		return []Part{{name, Note, running(server) + "; whether they serve the last Corefile is not known: " + strings.Join(p.UnaskedDNS, ", ") + " did not answer at port 9153", ""}}
	}
	return []Part{{name, OK, running(server), ""}}
}

// leaderSilent is the age of a leader's last sign above which no controller works. A Lease lasts 15 s, and clocks differ.
const leaderSilent = time.Minute

func judgeController(p *kube.Parts, now time.Time) []Part {
	const name, do = "controller", "kubectl -n kube-system logs deploy/fairway-controller"
	if bad := unread(p, name, kube.FactWorkloads, kube.FactLeader); bad != nil {
		return bad
	}
	w := p.Deployments["fairway-controller"]
	switch {
	case w == nil && p.DaemonSets["fairway-speaker"] != nil:
		return []Part{{name, Attention, "there is none, so that Services of type LoadBalancer get no address", "fairway upgrade --component load-balancer"}}
	case w == nil:
		return nil
	case w.Available == 0:
		return []Part{{name, Attention, running(w), "kubectl -n kube-system describe pods -l app.kubernetes.io/name=fairway-controller"}}
	case p.Leader == "":
		return []Part{{name, Attention, running(w) + ", and none leads: nothing is decided", do}}
	case now.Sub(p.LeaderSeen) > leaderSilent:
		return []Part{{name, Attention, fmt.Sprintf("%s, and the leader %s was last seen %s ago: nothing is decided", running(w), p.Leader, age(now, p.LeaderSeen)), do}}
	case w.Available < w.Wanted:
		return []Part{{name, Attention, running(w) + "; " + p.Leader + " leads", "kubectl -n kube-system describe pods -l app.kubernetes.io/name=fairway-controller"}}
	}
	return []Part{{name, OK, running(w) + "; " + p.Leader + " leads", ""}}
}

func judgeSpeakers(p *kube.Parts) []Part {
	const name = "speakers"
	if p.Unread[kube.FactWorkloads] != "" {
		return nil // the controller's Part says so
	}
	w, c := p.DaemonSets["fairway-speaker"], p.Deployments["fairway-controller"]
	switch {
	case w == nil && c != nil && slices.Contains(c.Command, "--load-balancer=pools"):
		return []Part{{name, Attention, "there are none: nobody announces the addresses of load balancers", "fairway upgrade --component load-balancer"}}
	case w == nil:
		return nil
	case w.Available < w.Wanted || w.Wanted == 0:
		return []Part{{name, Attention, running(w), "kubectl -n kube-system get pods -o wide -l app.kubernetes.io/name=fairway-speaker"}}
	}
	return []Part{{name, OK, running(w), ""}}
}

func judgeGateways(p *kube.Parts) []Part {
	const name = "gateways"
	w := p.DaemonSets["fairway-gateway"]
	switch {
	case w == nil || p.Unread[kube.FactWorkloads] != "": // the controller's Part says so
		return nil
	case p.Deployments["fairway-controller"] == nil:
		return []Part{{name, Attention, running(w) + ", and no controller: Gateways get no Service", "fairway upgrade --component load-balancer"}}
	case w.Available < w.Wanted || w.Wanted == 0:
		return []Part{{name, Attention, running(w), "kubectl -n kube-system get pods -o wide -l app.kubernetes.io/name=fairway-gateway"}}
	}
	return []Part{{name, OK, running(w), ""}}
}

// judgeNames reports the writer of names on other DNS servers.
func judgeNames(p *kube.Parts) []Part {
	const name = "names"
	w := p.Deployments["fairway-names"]
	switch {
	case w == nil || p.Unread[kube.FactWorkloads] != "":
		return nil
	case w.Available < w.Wanted || w.Wanted == 0:
		return []Part{{name, Attention, running(w) + ": names on other DNS servers stay as they are", "kubectl -n kube-system logs deploy/fairway-names"}}
	}
	return []Part{{name, OK, running(w), ""}}
}

// judgeEdges mentions machines outside of the cluster, which the API server does not know.
func judgeEdges(p *kube.Parts) []Part {
	c := p.Deployments["fairway-controller"]
	if c == nil || !slices.Contains(c.Command, "--load-balancer=edge") {
		return nil
	}
	found := "outside of the cluster, and not asked"
	if p.EdgeVoter != "" {
		found += "; " + p.EdgeVoter + " has the vote of two edges"
	}
	return []Part{{"edges", Note, found, "fairway status on the edge's machine"}}
}

func judgeKubeProxy(p *kube.Parts) []Part {
	w := p.DaemonSets["kube-proxy"]
	if w == nil || w.Wanted == 0 || p.Settings == nil || p.Settings["PROXY_MODE"] == "none" {
		return nil
	}
	found := fmt.Sprintf("DaemonSet %s runs %s next to Fairway's service proxy", w.Name, text.Count(w.Wanted, "pod"))
	if p.Settings["REPLACE_KUBE_PROXY"] == "true" {
		return []Part{{"kube-proxy", Attention, found + ", which replaces it: kubeadm upgrade writes it again", "fairway upgrade ends it; next time: kubeadm upgrade apply --skip-phases addon/kube-proxy"}}
	}
	return []Part{{"kube-proxy", Attention, found, "fairway upgrade --replace-kube-proxy true, or --proxy-mode none"}}
}

// enforcers are the DaemonSets of other programs that enforce NetworkPolicies.
var enforcers = map[string]string{
	"calico-node": "Calico", "canal": "Canal", "rke2-canal": "Canal", "cilium": "Cilium", "weave-net": "Weave Net", "kube-router": "kube-router",
	"antrea-agent": "Antrea", "ovnkube-node": "OVN-Kubernetes", "kube-ovn-cni": "Kube-OVN", "kindnet": "kindnet",
	"kube-network-policies": "kube-network-policies", "azure-npm": "Azure NPM", "aws-node": "Amazon VPC CNI",
}

// enforcer returns another program that can enforce NetworkPolicies; empty: none is known.
func enforcer(p *kube.Parts, nodes []kube.AgentPod) string {
	for _, plugin := range p.Plugins {
		if name := enforcers[plugin]; name != "" {
			return name
		}
	}
	if slices.ContainsFunc(nodes, func(n kube.AgentPod) bool { return strings.Contains(n.Kubelet, "+k3s") }) {
		return "k3s"
	}
	return ""
}

func judgePolicies(p *kube.Parts, nodes []kube.AgentPod) []Part {
	const name = "policies"
	if bad := unread(p, name, kube.FactSettings, kube.FactPolicies, kube.FactWorkloads); bad != nil {
		return bad
	}
	exist := "none exists"
	if p.Policies > 0 {
		exist = fmt.Sprintf("%d exist", p.Policies)
		if p.Policies == 1 {
			exist = "1 exists"
		}
	}
	other := enforcer(p, nodes)
	switch {
	case p.Settings["NETWORK_POLICY"] == "true":
		return []Part{{name, OK, "enforced, " + exist, ""}}
	case other != "":
		return []Part{{name, Note, "not enforced by Fairway, " + exist + "; " + other + " can enforce them", ""}}
	case p.Policies == 0:
		return []Part{{name, OK, "not enforced, " + exist, ""}}
	}
	return []Part{{name, Attention, "not enforced, " + exist + ": what they deny passes", "fairway upgrade --component network-policy"}}
}

// judgeNodes reports nodes that load balancers or pods must not use. announce: some node must announce addresses.
func judgeNodes(nodes []kube.AgentPod, announce bool) (all []Part) {
	var drained, control, unavailable []string
	why := ""
	for _, n := range nodes {
		switch {
		case n.Drained && n.ControlPlane:
			control = append(control, n.Node)
		case n.Drained:
			drained = append(drained, n.Node)
		}
		if n.Unavailable != "" {
			unavailable = append(unavailable, n.Node)
			why = n.Unavailable
		}
	}
	switch some := some(append(drained, control...)); {
	case announce && len(nodes) > 0 && len(drained)+len(control) == len(nodes):
		all = append(all, Part{"drained nodes", Attention, "all: no node may announce a load balancer's address", "fairway drain NODE --undo"})
	case len(drained) > 0:
		all = append(all, Part{"drained nodes", Note, some + ": load balancers keep off", "fairway drain NODE --undo ends that"})
	case len(control) > 0: // kubeadm labels its control planes so
		all = append(all, Part{"drained nodes", Note, some + " (control plane): load balancers keep off", ""})
	}
	if len(unavailable) > 0 {
		all = append(all, Part{"nodes", Attention, fmt.Sprintf("%s: NetworkUnavailable, so that no new pod starts there: %s", some(unavailable), why),
			"end the program that sets it (a cloud's route controller, a former CNI plugin), then: kubectl edit node NAME --subresource status"})
	}
	return all
}

// some returns the first names of a list.
func some(names []string) string {
	const most = 5
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// running returns how many pods of a workload run.
func running(w *kube.Workload) string {
	return fmt.Sprintf("%s: %d of %d available", w.Name, w.Available, w.Wanted)
}

// writeParts writes a paragraph for each Part. Its lines fit a terminal.
func writeParts(w io.Writer, parts []Part) {
	names, levels := 0, 0
	for _, p := range parts {
		names, levels = max(names, len(p.Name)), max(levels, len(p.Level))
	}
	indent := strings.Repeat(" ", names+levels+4)
	for _, p := range parts {
		level := string(p.Level)
		if p.Level == Attention || p.Level == Unknown {
			level = strings.ToUpper(level)
		}
		lines := text.Wrap(p.Found, text.Width-len(indent))
		for i, do := range text.Wrap(p.Do, text.Width-len(indent)-2) {
			lines = append(lines, map[bool]string{true: "→ ", false: "  "}[i == 0]+do)
		}
		for i, line := range lines {
			if i == 0 {
				fmt.Fprintf(w, "%-*s  %-*s  %s\n", names, p.Name, levels, level, line)
				continue
			}
			fmt.Fprintf(w, "%s%s\n", indent, line)
		}
	}
}
