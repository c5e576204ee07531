package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/podnetwork/egress"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	if os.Getenv("STATUS_ASK") != "" { // the other half of TestSocket
		_, err := Ask(context.Background())
		fmt.Print(err)
		os.Exit(0)
	}
	testnet.Main(m)
}

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func well(name string) *Node {
	return &Node{
		Node: name, Version: "v0.1.0", Mode: "nftables", Configured: "nftables", PodNetwork: "routes", NetworkPolicies: true, Started: now.Add(-26 * time.Hour),
		InSync: true, Since: now.Add(-200 * time.Second), Services: 12, Addresses: 25, Endpoints: 31,
		OtherProxies: []string{}, Degraded: []Condition{}, Time: now,
	}
}

func sick(name string) *Node {
	n := well(name)
	n.Mode, n.Configured, n.InSync, n.Since = "iptables", "auto", false, now.Add(-75*time.Second)
	n.NetworkPolicies, n.Drained = false, true
	n.Drift = Drift{Restored: 3, Last: now.Add(-time.Hour)}
	n.OtherProxies = []string{"nftables table ip kube-proxy"}
	n.Egress = []egress.Way{
		{Service: "shop/web", Pods: "pods with app=web", Address: "192.0.2.200", Node: "node-2", Here: 2, Everywhere: 5},
		{Service: "shop/late", Pods: "the other pods of namespace shop", Address: "192.0.2.201", Everywhere: 3, Problem: "no node announces 192.0.2.201"},
	}
	n.Degraded = []Condition{
		{Reason: APIReadFailed, Message: "services: connection refused", Since: now.Add(-72 * time.Hour)},
		{Reason: RulesNotWritten, Message: "table full", Since: now.Add(-75 * time.Second)},
	}
	return n
}

// TestGolden: what people and programs see.
func TestGolden(t *testing.T) {
	fresh := well("node-4")
	fresh.InSync, fresh.Since, fresh.Services = false, time.Time{}, 0
	cluster := Cluster{Time: now, Namespace: "kube-system", Nodes: []Member{
		{Name: "node-1", Pod: "fairway-agent-a", State: "Running", Status: well("node-1")},
		{Name: "node-2", Pod: "fairway-agent-b", State: "Running", Restarts: 2, Status: func() *Node { n := sick("node-2").Public(); return &n }()},
		{Name: "node-3", Pod: "fairway-agent-c", State: "CrashLoopBackOff", Restarts: 7},
		{Name: "node-4", Pod: "fairway-agent-d", State: "Running", Status: fresh},
		{Name: "node-5", State: "none"},
		{Name: "node-6", Pod: "fairway-agent-f", State: "Running", Error: "ask the agent through the API server: no route to host"},
	}}
	facts, nodes := wellParts()
	facts.Settings["NETWORK_POLICY"], nodes[1].Drained = "false", true
	cluster.Parts = JudgeParts(facts, nodes, now)
	if well("a").OK() != true || sick("a").OK() || cluster.OK() || (Cluster{}).OK() {
		t.Error("OK is wrong")
	}
	for name, v := range map[string]output.Value{"node": well("node-1"), "sick": sick("node-2"), "fresh": fresh, "cluster": cluster, "balancers": balancers(), "gateways": gateways(t)} {
		for _, f := range []output.Format{output.Table, output.Wide, output.JSON, output.YAML} {
			if f == output.Wide && name != "cluster" && name != "balancers" || f == output.YAML && name != "node" {
				continue
			}
			var got bytes.Buffer
			if err := output.Write(&got, f, v); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+"."+string(f))
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, got.Bytes()) {
				t.Errorf("%s (%v):\n%s\nwant\n%s", path, err, got.Bytes(), want)
			}
		}
	}
}

// TestWhy: what a pod without a status is asked, by its state.
func TestWhy(t *testing.T) {
	for state, want := range map[string]string{
		"CrashLoopBackOff": "why: kubectl -n kube-system logs a", "Running": "why: kubectl -n kube-system logs a",
		"ImagePullBackOff": "why: kubectl -n kube-system describe pod a", "ContainerCreating": "why: kubectl -n kube-system describe pod a",
	} {
		c := Cluster{Namespace: "kube-system", Nodes: []Member{{Name: "node-1", Pod: "a", State: state}}}
		if got := c.summary(); !strings.HasSuffix(got, "\n"+want) {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
}

// TestPublic: the network sees no text of an error, and the original keeps it.
func TestPublic(t *testing.T) {
	n := sick("node-1")
	text, err := json.Marshal(n.Public())
	if err != nil || strings.Contains(string(text), "refused") || strings.Contains(string(text), "full") || strings.Contains(string(text), "192.0.2.200") || !strings.Contains(string(text), RulesNotWritten) {
		t.Errorf("%s, %v", text, err)
	}
	if n.Degraded[0].Message == "" {
		t.Error("Public changed the original")
	}
}

// TestBoard: a condition keeps its time while its message changes, and goes.
func TestBoard(t *testing.T) {
	var b Board
	b.Set(PortInUse, "")
	if got := b.Conditions(); len(got) != 0 || got == nil {
		t.Errorf("%v", got)
	}
	b.Set(PortInUse, "one")
	first := b.Conditions()[0]
	b.Set(ListDoubted, "other")
	b.Set(PortInUse, "two")
	if got := b.Conditions(); len(got) != 2 || got[0].Reason != ListDoubted || got[1].Message != "two" || got[1].Since != first.Since {
		t.Errorf("%v after %v", got, first)
	}
	b.Set(PortInUse, "")
	if got := b.Conditions(); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// TestGather: every agent that runs is asked; what one does not answer is its own trouble.
func TestGather(t *testing.T) {
	members := make([]Member, 100)
	for i := range members {
		members[i] = Member{Name: fmt.Sprint(i), Running: i%3 != 0}
	}
	c := Gather(t.Context(), "kube-system", members, func(_ context.Context, i int) ([]byte, error) {
		switch i % 3 {
		case 1:
			return json.Marshal(well(fmt.Sprint(i)))
		default:
			return nil, errors.New("no route")
		}
	})
	for i, m := range c.Nodes {
		if got := []bool{m.Status != nil && m.Status.Node == m.Name, m.Error == "no route"}; got[0] != (i%3 == 1) || got[1] != (i%3 == 2) {
			t.Errorf("%d: %+v", i, m)
		}
	}
}

// TestCount counts different endpoints, once for each Service.
func TestCount(t *testing.T) {
	table := example(t)
	var c Counter
	if s, a, e := c.Count(nil); s+a+e != 0 {
		t.Error("nothing has something")
	}
	if s, a, e := c.Count(table); s != 1 || a != 2 || e != 2 {
		t.Errorf("%d Services, %d addresses, %d endpoints; want 1, 2, 2", s, a, e)
	}
}

func example(t *testing.T) *service.Table {
	t.Helper()
	to := func(addrs ...string) *service.Route {
		r := &service.Route{}
		for _, a := range addrs {
			r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: netip.MustParseAddrPort(a)})
		}
		return r
	}
	both, one := to("10.244.0.5:80", "10.244.1.5:80"), to("10.244.0.5:80")
	name := api.PortName{Name: api.Name{Namespace: "default", Name: "web"}}
	return service.NewTable(service.Settings{}, []*service.Frontend{
		{Addr: netip.MustParseAddrPort("10.96.0.9:80"), Proto: api.TCP, Service: name, Internal: both, External: both},
		{Addr: netip.MustParseAddrPort("0.0.0.0:30080"), Proto: api.TCP, Service: name, Internal: both, External: one},
	})
}

// TestSocket: root gets the status, others and other network namespaces do not.
func TestSocket(t *testing.T) {
	ns := testnet.NewNamespace(t, "node")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	in := func(f func() error) {
		t.Helper()
		if err := ns.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	in(func() error {
		if _, err := Ask(ctx); !errors.Is(err, ErrNoAgent) {
			t.Errorf("without an agent: %v", err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: Socket, Net: "unix"})
		if err != nil {
			return err
		}
		go func() { done <- Serve(ctx, slog.New(slog.DiscardHandler), l, func() Node { return *sick("node-1") }) }()
		for range 3 {
			n, err := Ask(ctx)
			if err != nil || n.Node != "node-1" || n.Degraded[0].Message == "" {
				t.Errorf("root gets %+v, %v", n, err)
			}
		}
		if Holder() != os.Getpid() {
			t.Errorf("the holder is %d", Holder())
		}
		return nil
	})
	in(func() error {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), "STATUS_ASK=1")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "answers root only [run it as root]") {
			t.Errorf("another user gets %s, %v", out, err)
		}
		return nil
	})
	stop()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	in(func() error {
		if _, err := Ask(t.Context()); !errors.Is(err, ErrNoAgent) {
			t.Errorf("after the end: %v", err)
		}
		return nil
	})
}
