package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/path/remote"
	"github.com/fairway-net/fairway/internal/path/trace"
)

const pathManifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: node-2
  containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: node-1
  containers: [{name: client, image: busybox, command: [sleep, "600"], imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, clusterIP: 10.96.7.7, ports: [{port: 80}]}
`

// TestPathNode: by pods/exec, two agents without further privileges watch a probe that one of them injects as a pod's.
// A process on the node itself enters the pod. Nothing is left on the nodes.
func TestPathNode(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2", "--load-balancer", "none")...)
	l.input(pathManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/web", "pod/client", "--timeout=120s")
	address := func(pod string) netip.Addr {
		return netip.MustParseAddr(strings.TrimSpace(l.run("kubectl", "get", "pod", pod, "-o", "jsonpath={.status.podIP}")))
	}
	client, endpoint := address("client"), netip.AddrPortFrom(address("web"), 80)
	agents, err := kube.ConnectAgents(kube.Connection{Kubeconfig: strings.TrimSpace(l.run("kubeconfig")), UserAgent: "test", QPS: 50, Burst: 100}, "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	pods, err := agents.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byExec := func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		for _, p := range pods {
			if p.Node == node {
				return agents.Exec(ctx, p, []string{"fairway", "path-node"}, in, out)
			}
		}
		return fmt.Errorf("no agent on %s", node)
	}
	onNode := func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		cmd := l.cmd("node", node, "--", built.fairway, "path-node")
		cmd.Stdin, cmd.Stdout = in, out
		return cmd.Run()
	}
	for name, transport := range map[string]remote.Transport{"exec": byExec, "on the node": onNode} {
		p := remote.Plan{Transport: transport}
		for _, node := range []string{"node-1", "node-2"} {
			p.Orders = append(p.Orders, trace.Order{Run: "lab", Node: node, Proto: 6, To: netip.MustParseAddrPort("10.96.7.7:80"), Endpoints: []netip.AddrPort{endpoint}, Tag: 11})
		}
		p.Orders[0].Send = &trace.Send{Pod: client}
		begin := time.Now()
		r, err := remote.Probe(t.Context(), p)
		took := time.Since(begin)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w := trace.Follow(r.Record)
		t.Logf("%s: %v, heard %+v, armed %+v, done %+v, errors %v", name, took, r.Heard, r.Armed, r.Done, r.Errors)
		if w.End.Class != trace.Delivered || len(w.Hops) != 2 || w.Hops[1].Node != "node-2" || w.Hops[1].After.Dst != endpoint || r.Heard.Injected != (name == "exec") {
			t.Errorf("%s: end %+v, hops %+v", name, w.End, w.Hops)
		}
	}
	u := undo{lab: l}
	if out := u.fairway("dump", "--node", "node-2", "--service", "default/web"); !strings.Contains(out, endpoint.String()+"(local)") {
		t.Errorf("dump --node node-2:\n%s", out)
	}
	if out, err := u.tryFairway("dump", "--node", "node-3"); err == nil || !strings.Contains(out, `there is no node "node-3"`) {
		t.Errorf("dump --node node-3: %v\n%s", err, out)
	}
	t.Run("top", func(t *testing.T) { testTop(t, l, endpoint.String()) })
	for _, node := range []string{"node-1", "node-2"} {
		if left := l.run("node", node, "--", "sh", "-c", "nft list tables; ip link"); strings.Contains(left, "fairway-path") || strings.Contains(left, "fwpath") {
			t.Errorf("%s has left:\n%s", node, left)
		}
	}
}
