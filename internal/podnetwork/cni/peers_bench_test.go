package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// pluginsEnv is a directory with our plugin and the reference plugins bridge, host-local, portmap and bandwidth
// (make bench-podnetwork).
const pluginsEnv = "FAIRWAY_BENCH_PLUGINS"

// networks are configurations of ours and of the reference plugins that do the same.
var networks = []struct{ name, plugins string }{
	{"fairway", `{"type":"fairway-cni","capabilities":{"bandwidth":true,"portMappings":true},"ipam":IPAM}`},
	{"reference", `{"type":"bridge","bridge":"cni0","isDefaultGateway":true,"ipam":IPAM},
		{"type":"portmap","capabilities":{"portMappings":true}},{"type":"bandwidth","capabilities":{"bandwidth":true}}`},
}

// BenchmarkPlugins measures ADD and DEL of a pod beside 100 others, as a runtime sees them, and GC of 1,000 addresses whose
// containers are gone: our plugin, and the reference plugins, alternately. Pods are plain, or have a hostPort and limits.
func BenchmarkPlugins(b *testing.B) {
	dir := os.Getenv(pluginsEnv)
	if dir == "" {
		b.Skipf("%s is not set: make bench-podnetwork", pluginsEnv)
	}
	for _, n := range networks {
		for _, limited := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/limited=%t", n.name, limited), func(b *testing.B) { benchmarkPlugin(b, dir, n.plugins, limited) })
		}
		b.Run(n.name+"/gc", func(b *testing.B) { benchmarkGC(b, dir, n.plugins) })
	}
}

// reference is a node with these plugins, whose addresses are in a store of its own.
func reference(b *testing.B, dir, plugins string) (*node, *libcni.NetworkConfigList) {
	b.Helper()
	n := newNode(b)
	n.runtime = libcni.NewCNIConfigWithCacheDir([]string{dir}, b.TempDir(), pluginExec())
	ipam := fmt.Sprintf(`{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.0.0/20"}],[{"subnet":"fd00:10:244:1::/64"}]]}`, n.stateDir)
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.1.0","cniVersions":["1.0.0","1.1.0"],"name":"bench","plugins":[` +
		strings.ReplaceAll(plugins, "IPAM", ipam) + `]}`))
	if err != nil {
		b.Fatal(err)
	}
	return n, list
}

func benchmarkPlugin(b *testing.B, dir, plugins string, limited bool) {
	n, list := reference(b, dir, plugins)
	ask := func(i int) *pod {
		p := newPod(b)
		if limited {
			p.rt.CapabilityArgs = map[string]any{
				"bandwidth":    map[string]any{"ingressRate": 100_000_000, "ingressBurst": 1 << 24, "egressRate": 100_000_000, "egressBurst": 1 << 24},
				"portMappings": []map[string]any{{"hostPort": 20000 + i, "containerPort": 80, "protocol": "tcp"}},
			}
		}
		return p
	}
	for i := range 100 {
		n.mustAdd(list, ask(i))
	}
	p := ask(1000)
	var adds, dels []time.Duration
	for b.Loop() {
		began := time.Now()
		n.mustAdd(list, p)
		added := time.Now()
		if err := n.del(list, p); err != nil {
			b.Fatal(err)
		}
		adds, dels = append(adds, added.Sub(began)), append(dels, time.Since(added))
	}
	for name, all := range map[string][]time.Duration{"ADD": adds, "DEL": dels} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms/"+name+"-p50")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms/"+name+"-p99")
	}
	b.ReportMetric(0, "ns/op")
}

func benchmarkGC(b *testing.B, dir, plugins string) {
	n, list := reference(b, dir, plugins)
	kept := newPod(b)
	n.mustAdd(list, kept)
	store := filepath.Join(n.stateDir, "bench")
	for b.Loop() {
		b.StopTimer()
		for i := range 1000 { // as host-local writes them
			path := filepath.Join(store, fmt.Sprintf("10.244.%d.%d", 1+i/250, 1+i%250))
			if err := os.WriteFile(path, fmt.Appendf(nil, "gone-%d\r\neth0", i), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		fresh := libcni.NewCNIConfigWithCacheDir([]string{dir}, b.TempDir(), pluginExec())
		b.StartTimer()
		err := n.do(func() error {
			return fresh.GCNetworkList(context.Background(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: kept.rt.ContainerID, IfName: "eth0"}}})
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(store, "10.244.*"))
	if err != nil || len(left) != 1 {
		b.ReportMetric(float64(len(left)-1), "left")
	}
}
