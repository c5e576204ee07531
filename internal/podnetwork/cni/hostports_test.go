package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// withPorts is a network whose plugin gets pods' ports, as the agent writes it.
func (n *node) withPorts(name, cidr string) *libcni.NetworkConfigList {
	n.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(fmt.Sprintf(
		`{"cniVersion":"1.1.0","name":%q,"plugins":[{"type":"fairway-cni","capabilities":{"portMappings":true},"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":%q}]]}}]}`,
		name, n.stateDir, cidr)))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

type mapping map[string]any

func (p *pod) asks(ports ...mapping) *pod {
	p.rt.CapabilityArgs = map[string]any{"portMappings": ports}
	return p
}

// records are what the agent reads.
func (n *node) records() []HostPorts {
	n.t.Helper()
	all, err := ReadHostPorts(HostPortsDir(n.stateDir))
	if err != nil {
		n.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b HostPorts) int { return strings.Compare(a.Pod, b.Pod) })
	return all
}

// TestHostPorts: ADD records what the runtime asks for, CHECK compares, a repeated ADD
// replaces, DEL and GC remove.
func TestHostPorts(t *testing.T) {
	n := newNode(t)
	list := n.withPorts("fairway", "10.244.1.0/24")
	p := newPod(t).asks(
		mapping{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"},
		mapping{"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"},
		mapping{"hostPort": 0, "containerPort": 9000},
	)
	p.rt.Args = append(p.rt.Args, [2]string{"K8S_POD_UID", "uid-1"})
	n.mustAdd(list, p)
	all := n.records()
	want := []PortMapping{{8080, 80, "tcp", ""}, {5353, 53, "udp", "192.0.2.1"}}
	if len(all) != 1 || !slices.Equal(all[0].Ports, want) || !slices.Equal(all[0].Addresses, p.addrs) ||
		!strings.HasPrefix(all[0].Pod, "default/web-") || all[0].UID != "uid-1" || all[0].Network != "fairway" || all[0].Created.IsZero() {
		t.Fatalf("recorded %+v, want %v at %v", all, want, p.addrs)
	}
	if info, err := os.Stat(HostPortsDir(n.stateDir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v: others may read it", info.Mode(), err)
	}
	if err := n.check(list, p); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	path := filepath.Join(HostPortsDir(n.stateDir), attachment{"fairway", p.rt.ContainerID, "eth0"}.hostLink())
	if err := os.Rename(path, path+"-away"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, n.check(list, p), codeHostPorts, "delete the pod")
	if err := os.Rename(path+"-away", path); err != nil {
		t.Fatal(err)
	}
	if err := n.del(list, p); err != nil {
		t.Fatal(err)
	}
	if left := n.records(); len(left) > 0 {
		t.Errorf("DEL left %+v", left)
	}
	if err := n.del(list, p); err != nil {
		t.Errorf("a second DEL: %v", err)
	}
	plain := newPod(t)
	n.mustAdd(list, plain)
	if all := n.records(); len(all) > 0 {
		t.Errorf("a pod without host ports: %+v", all)
	}
}

// TestHostPortsGC: GC removes the records of pods that are gone, what a killed plugin left
// unfinished, and what no reader understands; never those of another network.
func TestHostPortsGC(t *testing.T) {
	n := newNode(t)
	list, other := n.withPorts("fairway", "10.244.1.0/24"), n.withPorts("other", "10.244.2.0/24")
	port := func(n int) mapping { return mapping{"hostPort": n, "containerPort": 80} }
	kept, gone, foreign := newPod(t).asks(port(1)), newPod(t).asks(port(2)), newPod(t).asks(port(3))
	n.mustAdd(list, kept)
	n.mustAdd(list, gone)
	n.mustAdd(other, foreign)
	dir := HostPortsDir(n.stateDir)
	for _, name := range []string{unfinishedRecord("fw0123456789ab"), "fw0123456789cd"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"pod":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	valid := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"}],"ipam":{"type":"host-local","dataDir":%q}}`, kept.rt.ContainerID, n.stateDir)
	if _, err := n.call("GC", valid, nil); err != nil {
		t.Fatal(err)
	}
	var ports []uint16
	for _, r := range n.records() {
		ports = append(ports, r.Ports[0].HostPort)
	}
	slices.Sort(ports)
	if !slices.Equal(ports, []uint16{1, 3}) {
		t.Errorf("kept the host ports %v, want 1 and 3", ports)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("%d files are left, want 2", len(files))
	}
}

// TestHostPortsRefused: what makes no sense fails ADD, which leaves nothing behind.
func TestHostPortsRefused(t *testing.T) {
	n := newNode(t)
	list := n.withPorts("fairway", "10.244.1.0/24")
	for text, m := range map[string]mapping{
		`protocol "icmp"`: {"hostPort": 1, "containerPort": 1, "protocol": "icmp"},
		"hostPort 65536":  {"hostPort": 65536, "containerPort": 1},
		"containerPort 0": {"hostPort": 1, "containerPort": 0},
		`hostIP "nobody"`: {"hostPort": 1, "containerPort": 1, "hostIP": "nobody"},
	} {
		_, err := n.add(list, newPod(t).asks(m))
		wantCode(t, err, types.ErrInvalidNetworkConfig, text)
	}
	many := make([]mapping, maxHostPorts+1)
	for i := range many {
		many[i] = mapping{"hostPort": i + 1, "containerPort": 1}
	}
	_, err := n.add(list, newPod(t).asks(many...))
	wantCode(t, err, types.ErrInvalidNetworkConfig, "1001 host ports")
	if left := n.left(); left != "" || len(n.records()) > 0 {
		t.Errorf("left behind: %s %v", left, n.records())
	}
	// A store that cannot be written: no pod without its ports.
	if err := os.MkdirAll(n.stateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(HostPortsDir(n.stateDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.add(list, newPod(t).asks(mapping{"hostPort": 1, "containerPort": 1})); err == nil || !strings.Contains(err.Error(), "record host ports") {
		t.Errorf("ADD without a place for the record: %v", err)
	}
	if left := n.left(); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// FuzzHostPorts: no record makes the reader fail otherwise than by an error.
func FuzzHostPorts(f *testing.F) {
	f.Add([]byte(`{"network":"fairway","pod":"a/b","addresses":["10.0.0.1"],"ports":[{"hostPort":1,"containerPort":2,"protocol":"tcp"}],"created":"2026-01-02T03:04:05Z"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "fw0")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := readHostPorts(path)
		if err == nil && slices.ContainsFunc(r.Addresses, func(a netip.Addr) bool { return a.Zone() != "" && !a.Is6() }) {
			t.Errorf("%v", r.Addresses)
		}
	})
}
