package cluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fairway-net/fairway/internal/image"
	"github.com/fairway-net/fairway/lab/fabric"
)

// killer stands in PATH for a program that the cleanup starts. Instead of the program's N-th run, it kills the cleanup.
const killer = `#!/bin/bash
n=$(($(cat %[1]s/count) - 1)); echo $n >%[1]s/count
if [ $n = 0 ]; then kill -9 $PPID; exit 1; fi
exec %[2]s "$@"
`

// halfWay kills the cleanup before each program that it starts, one after the other, until the cleanup completes. The
// agent ran in mode iptables, because then the cleanup starts the most programs.
func (u *undo) halfWay() {
	u.overlay("deploy/agent", "pod-network", "iptables")
	u.shell(applied + "\nkubectl delete -k .\nkubectl -n kube-system wait --for=delete pod -l app.kubernetes.io/name=fairway-agent --timeout=60s")
	u.there("iptables")
	wrappers := filepath.Join(u.dir, "killers")
	if err := os.MkdirAll(wrappers, 0o755); err != nil {
		u.Fatal(err)
	}
	for _, p := range strings.Fields("nft iptables-nft iptables-nft-save iptables-nft-restore ip6tables-nft ip6tables-nft-save ip6tables-nft-restore") {
		at, err := image.Find(p)
		if err == nil {
			err = os.WriteFile(filepath.Join(wrappers, p), fmt.Appendf(nil, killer, wrappers, at), 0o755)
		}
		if err != nil {
			u.Fatal(err)
		}
	}
	u.followed["cleanup of a node"] = true
	commands := "PATH=" + wrappers + ":" + filepath.Dir(built.fairway) + ":$PATH\n" + u.docs["cleanup of a node"]
	kills := 0
	for ; ; kills++ {
		if err := os.WriteFile(filepath.Join(wrappers, "count"), fmt.Appendln(nil, kills+1), 0o644); err != nil {
			u.Fatal(err)
		}
		out, err := u.try("node", "1", "--", "bash", "-euc", commands)
		if err == nil {
			break
		}
		if kills > 50 || strings.Contains(out, "fairway:") {
			u.Fatalf("after %d kills: %v: %s", kills, err, out)
		}
	}
	if kills < 3 {
		u.Errorf("the cleanup was killed %d times, want several", kills)
	}
	u.Logf("the cleanup was killed %d times", kills)
	u.same()
	if out, err := u.try("node", "1", "--", "ls", "-d", "/run/fairway"); err == nil {
		u.Errorf("the cleanup leaves %s", out)
	}
}

// used are objects that use all components: an announced address with which a pod also leaves the cluster, a
// NetworkPolicy, a hostPort, a NodePort, weights.
const used = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: all, namespace: metallb-system}
spec: {addresses: [192.168.49.100-192.168.49.105]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: all, namespace: metallb-system}
---
apiVersion: v1
kind: Pod
metadata: {name: used, labels: {app: used}, annotations: {fairway.net/weight: "3"}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: used, image: httpd, ports: [{containerPort: 80, hostPort: 8087}]}]
---
apiVersion: v1
kind: Service
metadata: {name: used, annotations: {fairway.net/egress: pods, fairway.net/weights: "true"}}
spec: {type: LoadBalancer, selector: {app: used}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: used}
spec: {podSelector: {matchLabels: {app: used}}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}]}]}
`

// everything removes Fairway with all compatible components, while they are in use.
func (u *undo) everything() {
	u.overlay("deploy", "pod-network", "network-policy", "load-balancer", "egress", "pod-lookup", "auto")
	u.shell(applied + "\nkubectl wait --for=condition=Established crd --all --timeout=60s")
	u.shell("kubectl apply -k deploy/dns-service; kubectl -n kube-system rollout status deployment/fairway-dns --timeout=60s")
	u.input(used, "kubectl", "apply", "-f", "-")
	u.run("kubectl", "wait", "--for=condition=Ready", "pod/used", "--timeout=60s")
	address := strings.TrimSpace(u.eventually("192.168.49.10", "kubectl", "get", "service", "used", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"))
	asks := []string{"client", "--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "2", "http://" + address}
	u.eventually("200", asks...)
	u.refuses("refused: no other node may announce default/used ("+address+")", "drain", "node-1")
	u.eventually("200", asks...)
	u.says(u.fairway("drain", "node-1", "--force"), "node node-1 announces no Service")
	set := []string{"node", "1", "--", "nft", "list", "set", "netdev", "fairway-fence"}
	u.says(u.run(append(set, "guarded4")...), address)
	if out := u.run(append(set, "held4")...); strings.Contains(out, address) {
		u.Errorf("after drain, the node still announces the address:\n%s", out)
	}
	u.forget(address)
	if out, err := u.try(asks...); err == nil {
		u.Errorf("after drain, the only node's address still answers: %s", out)
	}
	u.fairway("drain", "node-1", "--undo")
	u.eventually("200", asks...)
	u.eventually("table inet fairway-policy", "node", "1", "--", "nft", "list", "tables")
	u.run("kubectl", "delete", "pod/used", "networkpolicy/used") // as the document says, drain nodes first
	u.follow("removal")
	u.follow("removal of load-balancer")
	u.run("kubectl", "delete", "service/used", "--timeout=30s")
	u.shell("kubectl delete -k deploy/dns-service --timeout=30s")
	u.same()
}

// forget makes the router forget the MAC address that it knows for an address. A node serves each packet that arrives, as
// with kube-proxy. The lab's router shares the kernel with the clients, whose TCP confirms what the router knows.
func (u *undo) forget(address string) {
	u.Helper()
	router := fabric.Fabric{Dir: filepath.Join(u.lab.dir(), "net")}
	err := visit(router, fabric.Switch, func() error { return exec.Command("ip", "neighbour", "flush", "to", address).Run() })
	if err != nil {
		u.Fatal(err)
	}
}

// answers checks that DNS answers at its Service's address.
func (u *undo) answers(who string) {
	u.Helper()
	dns := fabric.Plan{Family: fabric.IPv4}.DNS()[0].String()
	out := u.eventually("status: NOERROR", "node", "1", "--", "dig", "+time=1", "+tries=1", "@"+dns, "kubernetes.default.svc.cluster.local")
	if !strings.Contains(out, fabric.Plan{Family: fabric.IPv4}.APIService()[0].String()) {
		u.Errorf("%s answers\n%s", who, out)
	}
}
