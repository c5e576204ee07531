package cluster_test

import (
	"fmt"
	"os"
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

// coreDNSDeployment is a Deployment coredns as kubeadm makes it, with the cluster's Service. Its program is from
// Fairway's image, and is CoreDNS.
const coreDNSDeployment = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      containers:
      - name: coredns
        image: ghcr.io/fairway-net/fairway:TAG
        command: [fairway, dns]
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data: {Corefile: ".:53 {\n errors\n health\n ready\n kubernetes cluster.local in-addr.arpa ip6.arpa\n prometheus :9153\n reload\n}\n"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
`

// coreDNS replaces the cluster's CoreDNS by Fairway's DNS, and goes back. The Service does not change.
func (u *undo) coreDNS() {
	u.overlay("deploy", "pod-network")
	u.input(strings.ReplaceAll(coreDNSDeployment, "TAG", u.image), "kubectl", "apply", "-f", "-")
	u.shell("kubectl apply -k deploy/dns-service")
	const uid = "kubectl -n kube-system get service kube-dns -o jsonpath={.metadata.uid}"
	before := u.shell(uid)
	u.follow("from CoreDNS")
	u.answers("ours")
	u.inItsDeployment()
	u.follow("to CoreDNS")
	u.answers("CoreDNS")
	if after := u.shell(uid); after != before {
		u.Errorf("the Service kube-dns was %s and is %s", before, after)
	}
}

// inItsDeployment puts Fairway's program into the Deployment coredns and goes back, as docs/dns.md describes.
func (u *undo) inItsDeployment() {
	const scale, args = "kubectl -n kube-system scale deployment coredns --replicas ", "kubectl -n kube-system get deployment coredns -o jsonpath={.spec.template.spec.containers[0].args}"
	before := u.shell(args)
	u.shell(scale + "1")
	u.follow("Deployment coredns")
	u.says(u.shell(args), "/etc/coredns/Corefile")
	u.answers("our program in the Deployment coredns")
	u.follow("Deployment coredns, back")
	if now := u.shell(args); now != before {
		u.Errorf("the Deployment coredns had the arguments %q, and has %q", before, now)
	}
	u.answers("CoreDNS")
	u.shell("kubectl -n kube-system scale deployment fairway-dns --replicas 2; " + scale + "0")
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

// kubeProxyDaemonSet is a DaemonSet kube-proxy as kubeadm makes it.
const kubeProxyDaemonSet = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-proxy, namespace: kube-system}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      serviceAccountName: kube-proxy
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers:
      - name: kube-proxy
        image: registry.k8s.io/kube-proxy:test
        command: [kube-proxy, --config=/var/lib/kube-proxy/config.conf, --hostname-override=$(NODE_NAME)]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts: [{name: config, mountPath: /var/lib/kube-proxy}]
      volumes: [{name: config, configMap: {name: kube-proxy}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  config.conf: |
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    mode: nftables
    clusterCIDR: CLUSTER_CIDR
    clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}
    conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
  kubeconfig.conf: |
    apiVersion: v1
    kind: Config
    clusters: [{name: default, cluster: {server: API_SERVER, certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}}]
    users: [{name: default, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]
    contexts: [{name: default, context: {cluster: default, user: default}}]
    current-context: default
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kubeadm:node-proxier}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-proxier}
subjects: [{kind: ServiceAccount, name: kube-proxy, namespace: kube-system}]
`

// kubeProxy replaces real kube-proxy by Fairway's agent and goes back, while CoreDNS runs.
func (u *undo) kubeProxy() {
	u.loadKubeProxy()
	plan := fabric.Plan{Family: fabric.IPv4}
	u.input(strings.NewReplacer("CLUSTER_CIDR", plan.Pods()[0].String(), "API_SERVER", plan.APIServer()).Replace(kubeProxyDaemonSet), "kubectl", "apply", "-f", "-")
	u.shell("kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=60s")
	u.eventually("table ip kube-proxy", "node", "1", "--", "nft", "list", "tables")
	u.overlay("deploy/agent", "pod-network", "replace-kube-proxy")
	u.follow("from kube-proxy")
	u.shell("kubectl -n kube-system wait --for=delete pod -l k8s-app=kube-proxy --timeout=60s")
	u.answers("by the agent")
	u.follow("to kube-proxy")
	u.answers("by kube-proxy")
	out := u.run("node", "1", "--", "nft", "list", "tables")
	if strings.Contains(out, "fairway") || !strings.Contains(out, "table ip kube-proxy") {
		u.Errorf("the node has\n%s", out)
	}
}

// loadKubeProxy makes an image of kube-proxy and loads it into the node.
func (u *undo) loadKubeProxy() {
	u.Helper()
	var tree image.Tree
	nft, err := image.Find("nft")
	if err != nil {
		u.Fatal(err)
	}
	tree.Program(nft)
	tree.Copy("/usr/local/bin/kube-proxy", built.kubeProxy)
	tree.Dir("/run", 0o755)
	tree.Dir("/tmp", 0o777|os.ModeSticky)
	layer, err := tree.Layer()
	if err != nil {
		u.Fatal(err)
	}
	archive := filepath.Join(u.dir, "kube-proxy.tar")
	img := image.Image{Names: []string{"registry.k8s.io/kube-proxy:test"}, Layers: []*image.Layer{layer}}
	img.Config.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if err := image.WriteFile(archive, img); err != nil {
		u.Fatal(err)
	}
	u.run("load", archive)
}
