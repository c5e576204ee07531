package status

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/text"
)

// wellParts is a cluster in which every part works.
func wellParts() (*kube.Parts, []kube.AgentPod) {
	w := func(name string, wanted, available int, command ...string) *kube.Workload {
		return &kube.Workload{Name: name, Wanted: wanted, Available: available, Command: append([]string{"fairway"}, command...)}
	}
	return &kube.Parts{
		Deployments: map[string]*kube.Workload{"fairway-dns": w("fairway-dns", 2, 2, "dns"), "fairway-controller": w("fairway-controller", 2, 2, "controller", "--load-balancer=pools")},
		DaemonSets:  map[string]*kube.Workload{"fairway-speaker": w("fairway-speaker", 3, 3, "speaker")},
		DNSService:  "kube-system/kube-dns", DNSReady: 2, Leader: "fairway-controller-a", LeaderSeen: now,
		Settings: map[string]string{"PROXY_MODE": "nftables", "REPLACE_KUBE_PROXY": "true", "NETWORK_POLICY": "true"}, Policies: 3,
		Unread: map[string]string{},
	}, []kube.AgentPod{{Node: "node-1", ControlPlane: true}, {Node: "node-2"}, {Node: "node-3"}}
}

// A partCase changes one thing.
type partCase struct {
	name   string
	change func(*kube.Parts, []kube.AgentPod)
}

// partCases change one thing each.
func partCases() []partCase {
	type (
		p = *kube.Parts
		n = []kube.AgentPod
	)
	coredns := &kube.Workload{Name: "coredns", Wanted: 2, Available: 2, Command: []string{"/coredns", "-conf"}}
	return []partCase{
		{"all works", func(p, n) {}},
		{"one DNS pod", func(p p, _ n) { p.Deployments["fairway-dns"].Available, p.DNSReady = 1, 1 }},
		{"no DNS pod", func(p p, _ n) { p.Deployments["fairway-dns"].Available, p.DNSReady = 0, 0 }},
		{"no DNS Service", func(p p, _ n) { delete(p.Deployments, "fairway-dns"); p.DNSService = "" }},
		{"DNS deleted", func(p p, _ n) { delete(p.Deployments, "fairway-dns"); p.DNSReady = 0 }},
		{"coredns", func(p p, _ n) { delete(p.Deployments, "fairway-dns"); p.Deployments["coredns"] = coredns }},
		{"our image in coredns", func(p p, _ n) {
			delete(p.Deployments, "fairway-dns")
			p.Deployments["coredns"] = &kube.Workload{Name: "coredns", Wanted: 2, Available: 1, Command: []string{"/usr/bin/fairway", "dns"}}
		}},
		{"coredns is parked", func(p p, _ n) {
			parked := *coredns
			parked.Wanted, parked.Available = 0, 0
			p.Deployments["coredns"] = &parked
		}},
		{"stale Corefile", func(p p, _ n) { p.StaleDNS = []string{"fairway-dns-a", "fairway-dns-b"} }},
		{"DNS without metrics", func(p p, _ n) { p.UnaskedDNS = []string{"fairway-dns-a"} }},
		{"one controller", func(p p, _ n) { p.Deployments["fairway-controller"].Available = 1 }},
		{"no controller runs", func(p p, _ n) { p.Deployments["fairway-controller"].Available = 0 }},
		{"no leader", func(p p, _ n) { p.Leader = "" }},
		{"silent leader", func(p p, _ n) { p.LeaderSeen = now.Add(-5 * leaderSilent) }},
		{"controller deleted", func(p p, _ n) { delete(p.Deployments, "fairway-controller") }},
		{"no load balancer", func(p p, _ n) {
			delete(p.Deployments, "fairway-controller")
			delete(p.DaemonSets, "fairway-speaker")
		}},
		{"two speakers", func(p p, _ n) { p.DaemonSets["fairway-speaker"].Available = 2 }},
		{"no speakers", func(p p, _ n) { delete(p.DaemonSets, "fairway-speaker") }},
		{"edges", func(p p, _ n) {
			p.Deployments["fairway-controller"].Command[2] = "--load-balancer=edge"
			p.EdgeVoter = "edge-1"
			delete(p.DaemonSets, "fairway-speaker")
		}},
	}
}

// clusterCases change one thing each around Fairway.
func clusterCases() []partCase {
	type (
		p = *kube.Parts
		n = []kube.AgentPod
	)
	return []partCase{
		{"kube-proxy is back", func(p p, _ n) {
			p.DaemonSets["kube-proxy"] = &kube.Workload{Name: "kube-proxy", Wanted: 3, Available: 0}
		}},
		{"kube-proxy beside us", func(p p, _ n) {
			p.DaemonSets["kube-proxy"] = &kube.Workload{Name: "kube-proxy", Wanted: 1, Available: 1}
			p.Settings["REPLACE_KUBE_PROXY"] = "false"
		}},
		{"kube-proxy carries", func(p p, _ n) {
			p.DaemonSets["kube-proxy"] = &kube.Workload{Name: "kube-proxy", Wanted: 3, Available: 3}
			p.Settings["PROXY_MODE"] = "none"
		}},
		{"policies not enforced", func(p p, _ n) { p.Settings["NETWORK_POLICY"] = "false" }},
		{"no policies", func(p p, _ n) { p.Settings["NETWORK_POLICY"], p.Policies = "false", 0 }},
		{"beside Calico", func(p p, _ n) {
			p.Settings["NETWORK_POLICY"], p.Plugins = "false", []string{"kube-proxy", "calico-node"}
		}},
		{"in k3s", func(p p, n n) { p.Settings["NETWORK_POLICY"], n[0].Kubelet = "false", "v1.33.1+k3s1" }},
		{"beside flannel", func(p p, _ n) { p.Settings["NETWORK_POLICY"], p.Plugins = "false", []string{"kube-flannel-ds"} }},
		{"drained", func(_ p, n n) { n[1].Drained = true }},
		{"control plane", func(_ p, n n) { n[0].Drained = true }},
		{"all drained", func(_ p, n n) { n[0].Drained, n[1].Drained, n[2].Drained = true, true, true }},
		{"network unavailable", func(_ p, n n) { n[1].Unavailable = "no route created" }},
		{"no rights", func(p p, _ n) {
			for _, f := range []string{kube.FactWorkloads, kube.FactDNS, kube.FactLeader, kube.FactSettings, kube.FactPolicies} {
				p.Unread[f] = "your user may not read " + f
			}
			p.Deployments, p.DaemonSets = map[string]*kube.Workload{}, map[string]*kube.Workload{}
		}},
	}
}

// TestParts: what each thing that is wrong leads to. A cluster in which something does not work is never ok.
func TestParts(t *testing.T) {
	var got strings.Builder
	for _, c := range slices.Concat(partCases(), clusterCases()) {
		facts, nodes := wellParts()
		c.change(facts, nodes)
		all := Cluster{Nodes: []Member{{Name: "node-1", Status: well("node-1")}}, Parts: JudgeParts(facts, nodes, now)}
		fmt.Fprintf(&got, "== %s: ok %v, unknown %v\n", c.name, all.OK(), all.Unknown())
		for _, p := range all.Parts {
			if p.Level == Attention && p.Do == "" {
				t.Errorf("%s: %s says not what to do", c.name, p.Name)
			}
		}
		before := got.Len()
		writeParts(&got, all.Parts)
		for line := range strings.Lines(got.String()[before:]) {
			if len([]rune(line)) > text.Width+1 {
				t.Errorf("%s: a line of %d letters: %s", c.name, len([]rune(line))-1, line)
			}
		}
	}
	path := filepath.Join("testdata", "parts")
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != got.String() {
		t.Errorf("%s (%v):\n%s\nwant\n%s", path, err, got.String(), want)
	}
}
