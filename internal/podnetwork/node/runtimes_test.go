package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// TestRuntimes: what Sync writes works for runtimes in the ways in which they call plugins, the real file and the plugin that it
// installed. The labs' runtime is a real containerd 1.6.
func TestRuntimes(t *testing.T) {
	for _, r := range []struct {
		name, version string
		cniVersions   bool // its libcni knows the list, and takes the highest that it knows
		status        bool // asks STATUS before it says that the network is ready
		check         bool // asks CHECK when it is asked how the pod is
		gc            bool // names all pods when it starts
	}{
		{name: "containerd 1.6 and 1.7: libcni 1.1", version: "1.0.0"},
		{name: "containerd 2: libcni 1.2 and later", version: "1.1.0", cniVersions: true, status: true},
		{name: "CRI-O: ocicni", version: "1.1.0", cniVersions: true, status: true, check: true, gc: true},
		{name: "CRI-O before STATUS: ocicni with libcni 1.1", version: "1.0.0", check: true},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := newCluster(t, 1, dual)
			c.sync()
			m := c.machines[0]
			list := m.readAs(r.cniVersions)
			if list.CNIVersion != r.version {
				t.Fatalf("the runtime takes version %s, want %s", list.CNIVersion, r.version)
			}
			plugins := libcni.NewCNIConfigWithCacheDir([]string{m.config.CNIBinDir}, t.TempDir(), nil)
			call := func(what string, do func(ctx context.Context) error) {
				t.Helper()
				if err := m.do(func() error { return do(t.Context()) }); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			if r.status {
				call("STATUS", func(ctx context.Context) error { return plugins.GetStatusNetworkList(ctx, list) })
			}
			attach := func(id string) (*namespace, *libcni.RuntimeConf) {
				sandbox := newNamespace(t)
				rt := criConf(id, sandbox.path())
				call("ADD", func(ctx context.Context) error {
					_, err := plugins.AddNetworkList(ctx, list, rt)
					return err
				})
				if out := sandbox.run("ip -o addr show dev eth0"); strings.Count(out, " scope global") != 2 {
					t.Errorf("the pod's addresses are:\n%s", out)
				}
				return sandbox, rt
			}
			_, first := attach("first")
			second, other := attach("second")
			if r.check {
				call("CHECK", func(ctx context.Context) error { return plugins.CheckNetworkList(ctx, list, first) })
			}
			if r.gc {
				call("GC", func(ctx context.Context) error {
					return plugins.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "second", IfName: "eth0"}}})
				})
			}
			call("DEL", func(ctx context.Context) error { return plugins.DelNetworkList(ctx, list, first) })
			second.file.Close()
			other.NetNS = "" // a sandbox whose namespace has gone
			for range 2 {
				call("DEL again", func(ctx context.Context) error { return plugins.DelNetworkList(ctx, list, other) })
			}
			if out := m.run("ip -o link; ip route show proto 70"); strings.Contains(out, "dev fw") || strings.Contains(out, ": fw") {
				t.Errorf("of the pods is left:\n%s", out)
			}
			if left, err := filepath.Glob(filepath.Join(m.config.StateDir, "fairway", "10.244.*")); err != nil || len(left) > 0 {
				t.Errorf("addresses are left: %v, %v", left, err)
			}
		})
	}
}

// criConf is what runtimes of the CRI pass for a pod with a hostPort and a limit.
func criConf(id, sandbox string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: id, NetNS: sandbox, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", id}, {"K8S_POD_INFRA_CONTAINER_ID", id}, {"K8S_POD_UID", "5a1b"}},
		CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": ""}},
			"bandwidth":    map[string]any{"ingressRate": 10_000_000, "ingressBurst": 1 << 31, "egressRate": 0, "egressBurst": 0},
			"dns":          map[string]any{"servers": []string{"10.96.0.10"}}, "cgroupPath": "/kubepods/x", // what we do not ask for
		},
	}
}

// readAs reads the configuration as a runtime does whose libcni knows cniVersions, or not.
func (m *machine) readAs(cniVersions bool) *libcni.NetworkConfigList {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.config.CNIConfDir, configName))
	var conf map[string]any
	if err == nil {
		err = json.Unmarshal(text, &conf)
	}
	if err == nil && !cniVersions {
		delete(conf, "cniVersions")
	}
	if text, err2 := json.Marshal(conf); err == nil && err2 == nil {
		var list *libcni.NetworkConfigList
		if list, err = libcni.ConfListFromBytes(text); err == nil {
			return list
		}
	}
	m.t.Fatal(fmt.Errorf("read the configuration: %w", err))
	return nil
}
