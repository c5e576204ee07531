package doctor

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/cli/output"
)

var update = flag.Bool("update", false, "write the golden files")

// healthy is a node on which nothing is wrong.
func healthy() Facts {
	return Facts{
		Node: "node-1", Root: true, Kernel: "6.1.0-30-amd64", Mode: "nftables",
		Modes:     []ModeFact{{Name: "nftables"}, {Name: "iptables"}, {Name: "ipvs", Err: "the kernel has no IPVS"}},
		Ways:      []ModeFact{{Name: "vxlan"}, {Name: "wireguard", Err: "the kernel has no WireGuard"}},
		Programs:  []ProgramFact{{Name: "nft", Version: "nft v1.0.6"}, {Name: "iptables-nft", Version: "iptables v1.8.9 (nf_tables)", Rules: 3}, {Name: "iptables-legacy"}},
		Sysctls:   map[string]string{"net.ipv4.ip_forward": "1"},
		Conntrack: ConntrackFacts{Known: true, Max: 262144, Count: 411},
		CgroupV2:  true,
		Ports:     []PortFact{{Port: 10256, What: "/healthz"}, {Port: 10249, What: "/metrics", Holder: "fairway (process 7)", Agent: true}},
		API:       APIFacts{Server: "https://192.168.49.254:6443", Version: "v1.37.1", Took: 5 * time.Millisecond, SkewKnown: true, Skew: time.Second, NodeKnown: true},
		Links:     []Link{{Name: "eth0", MTU: 1500}, {Name: "veth1", MTU: 1450, Pods: true}, {Name: "flannel.1", MTU: 1450, Pods: true, Overhead: 50}},
		Uplink:    "eth0",
	}
}

// cases change one thing each; the lines that are not ok then are in testdata/cases.
func cases() []struct {
	name   string
	change func(*Facts)
} {
	type f = *Facts
	return []struct {
		name   string
		change func(*Facts)
	}{
		{"nothing", func(f) {}},
		{"not root", func(f f) { f.Root = false; f.Modes[0].Err = "no rights" }},
		{"the mode does not work", func(f f) { f.Modes[0].Err = "needs Linux 5.13" }},
		{"another mode works for auto", func(f f) { f.Mode = "auto"; f.Modes[0].Err = "needs Linux 5.13" }},
		{"no mode works", func(f f) {
			f.Mode = "auto"
			for i := range f.Modes {
				f.Modes[i].Err = "nothing here"
			}
		}},
		{"no WireGuard, which is asked for", func(f f) { f.PodNetwork = "wireguard" }},
		{"no VXLAN, for auto", func(f f) { f.PodNetwork, f.Ways[0].Err = "auto", "the kernel has no links of kind vxlan" }},
		{"no nft", func(f f) { f.Programs[0].Version = "" }},
		{"both kinds of iptables", func(f f) { f.Programs[2].Version, f.Programs[2].Rules = "iptables v1.8.9 (legacy)", 9 }},
		{"no connection table", func(f f) { f.Conntrack = ConntrackFacts{} }},
		{"connection table in use", func(f f) { f.Conntrack.Count = 200000 }},
		{"connection table full", func(f f) { f.Conntrack.Count = 262144 }},
		{"no forwarding", func(f f) { f.Sysctls["net.ipv4.ip_forward"] = "0" }},
		{"no forwarding, with the pod network", func(f f) { f.Sysctls["net.ipv4.ip_forward"] = "0"; f.PodNetwork = "routes" }},
		{"no /proc/sys", func(f f) { f.Sysctls = nil }},
		{"bridge and rp_filter", func(f f) {
			f.Sysctls["net.bridge.bridge-nf-call-iptables"], f.Sysctls["net.ipv4.conf.all.rp_filter"] = "0", "1"
		}},
		{"cgroup v1", func(f f) { f.CgroupV1, f.CgroupV2 = true, false }},
		{"no cgroups", func(f f) { f.CgroupV2 = false }},
		{"port in use", func(f f) { f.Ports[0].Holder = "kube-proxy (process 12)" }},
		{"kube-proxy", func(f f) { f.Others.Proxies = []string{"kube-proxy (nftables table ip kube-proxy)"} }},
		{"firewall", func(f f) { f.Others.Drops = []string{"nft ip filter FORWARD (forward)"} }},
		{"another CNI configuration comes first", func(f f) { f.PodNetwork, f.Others.Configs = "routes", []string{"05-cilium.conflist"} }},
		{"rules cannot be read", func(f f) { f.Others.Err = "timeout" }},
		{"no kubeconfig", func(f f) { f.API = APIFacts{Skipped: "no kubeconfig"} }},
		{"API server by ClusterIP", func(f f) { f.API.Server, f.API.ClusterIP = "https://10.96.0.1", true }},
		{"API server away", func(f f) { f.API = APIFacts{Server: "https://192.0.2.1:6443", Err: "connection refused"} }},
		{"API server slow", func(f f) { f.API.Took = 3 * time.Second }},
		{"clock ahead", func(f f) { f.API.Skew = time.Minute }},
		{"clock far behind", func(f f) { f.API.Skew = -time.Hour }},
		{"no rights", func(f f) { f.API.Forbidden, f.API.NodeKnown = []string{"endpointslices", "nodes"}, false }},
		{"no rights of the service account", func(f f) { f.API.Forbidden, f.API.Own = []string{"services"}, true }},
		{"unknown node", func(f f) { f.API.NodeKnown = false }},
		{"network unavailable", func(f f) { f.API.NetworkUnavailable = "no route created" }},
		{"kube-proxy is written again", func(f f) { f.AgentRuns, f.API.KubeProxies = true, 3 }},
		{"kube-proxy carries", func(f f) { f.AgentRuns, f.Mode, f.API.KubeProxies = true, "none", 3 }},
		{"MTU", func(f f) { f.Links[2].Overhead, f.Links[1].MTU = 60, 9000 }},
		{"no uplink", func(f f) { f.Uplink = "" }},
		{"no pods yet", func(f f) { f.Links = f.Links[:1] }},
	}
}

// TestExamine: what each thing that is wrong leads to, and that nothing else changes.
func TestExamine(t *testing.T) {
	var got strings.Builder
	for _, c := range cases() {
		f := healthy()
		c.change(&f)
		r := Examine(f)
		got.WriteString("== " + c.name + "\n")
		for _, l := range r.Lines {
			if l.Level != OK {
				got.WriteString(string(l.Level) + " | " + l.Check + " | " + l.Found + "\n  do: " + l.Do + "\n")
			}
			if (l.Level == Warning || l.Level == Failure) && l.Do == "" {
				t.Errorf("%s: %s says not what to do", c.name, l.Check)
			}
		}
		if r.Failed() {
			got.WriteString("exit status 1\n")
		}
	}
	golden(t, "cases", got.String())
}

// TestGolden: the formats.
func TestGolden(t *testing.T) {
	f := healthy()
	f.Sysctls["net.ipv4.ip_forward"], f.Others.Drops = "0", []string{"nft ip filter FORWARD (forward)"}
	f.API = APIFacts{Skipped: "no kubeconfig"}
	for _, format := range []output.Format{output.Table, output.Wide, output.JSON, output.YAML} {
		var got bytes.Buffer
		if err := output.Write(&got, format, Examine(f)); err != nil {
			t.Fatal(err)
		}
		golden(t, "report."+string(format), got.String())
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != got {
		t.Errorf("%s (%v):\n%s\nwant\n%s", path, err, got, want)
	}
}
