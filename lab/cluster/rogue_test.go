package cluster_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// rogueObjects are two namespaces with a policy, and a Service of type LoadBalancer.
const rogueObjects = `
{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "office"}},
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}},
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}}
]}`

// roguePod is a mirror pod of node-3 that claims another pod's address, with the labels that a policy allows.
const roguePod = `
{"apiVersion": "v1", "kind": "Pod",
 "metadata": {"name": "client-node-3", "namespace": "shop", "labels": {"app": "client"},
  "annotations": {"kubernetes.io/config.mirror": "1", "kubernetes.io/config.hash": "1", "kubernetes.io/config.source": "file"},
  "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-3", "uid": "UID", "controller": true}]},
 "spec": {"nodeName": "node-3", "containers": [{"name": "c", "image": "busybox"}], "tolerations": [{"operator": "Exists"}]}}`

// TestRogueNode: a node that somebody has taken over writes with its kubelet's credentials whatever the API server
// lets it write. No other node's policy, Service or address changes.
func TestRogueNode(t *testing.T) {
	beside(t, 3)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "3", "--network-policy", "--load-balancer", "servicelb")...)
	l.input(rogueObjects, "kubectl", "apply", "-f", "-")
	pod := func(namespace, name, node, labels, image string, command ...string) {
		args := []string{"kubectl", "-n", namespace, "run", name, "--image=" + image, "--labels=" + labels, "--port=80", `--overrides={"spec": {"nodeName": "` + node + `"}}`}
		l.run(append(args, command...)...)
	}
	pod("shop", "web", "node-1", "app=web", "httpd")
	pod("shop", "client", "node-2", "app=client", "busybox", "--command", "--", "sleep", "3600")
	pod("office", "bad", "node-2", "app=bad", "busybox", "--command", "--", "sleep", "3600")
	for _, namespace := range []string{"shop", "office"} {
		l.run("kubectl", "wait", "--for=condition=Ready", "pod", "--all", "-n", namespace, "--timeout=60s")
	}
	get := func(namespace, kind, name, path string) string {
		return strings.TrimSpace(l.run("kubectl", "-n", namespace, "get", kind, name, "-o", "jsonpath={"+path+"}"))
	}
	web, bad := get("shop", "pod", "web", ".status.podIP"), get("office", "pod", "bad", ".status.podIP")
	ask := func(namespace, name string) []string {
		return []string{"kubectl", "-n", namespace, "exec", name, "--", "curl", "-sS", "-m", "2", "http://" + web}
	}
	l.eventually("It works!", ask("shop", "client")...)
	l.eventually("192.168.49.4", "kubectl", "-n", "shop", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
	former := l.served()

	l.run("fault", "node-3", "pause") // its own kubelet must not correct what is written in its name
	rogue := l.asNode("node-3")
	claims, err := json.Marshal([]map[string]string{
		{"type": "Hostname", "address": "node-3"}, {"type": "InternalIP", "address": "192.168.49.4"},
		{"type": "InternalIP", "address": bad}, {"type": "InternalIP", "address": "10.96.0.10"}, {"type": "InternalIP", "address": "192.168.49.2"},
		{"type": "ExternalIP", "address": "8.8.8.8"}, {"type": "ExternalIP", "address": "203.0.113.10"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var pod3 corev1.Pod
	if err := json.Unmarshal([]byte(strings.ReplaceAll(roguePod, "UID", get("", "node", "node-3", ".metadata.uid"))), &pod3); err != nil {
		t.Fatal(err)
	}
	podStatus := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %q}], "conditions": [{"type": "Ready", "status": "True"}]}}`, bad, bad)
	_, err = rogue.Nodes().Patch(t.Context(), "node-3", types.MergePatchType, fmt.Appendf(nil, `{"status": {"addresses": %s}}`, claims), metav1.PatchOptions{}, "status")
	if err == nil {
		_, err = rogue.Pods("shop").Create(t.Context(), &pod3, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = rogue.Pods("shop").Patch(t.Context(), pod3.Name, types.MergePatchType, []byte(podStatus), metav1.PatchOptions{}, "status")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := get("shop", "pod", "client-node-3", ".status.podIP"); got != bad {
		t.Fatalf("the rogue's pod has the address %q, want %s", got, bad)
	}

	l.eventually("It works!", ask("shop", "client")...)
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		if out, err := l.try(ask("office", "bad")...); err == nil {
			t.Fatalf("a pod that the policy denies was answered: %s", out)
		}
	}
	if out, err := l.try(ask("shop", "client")...); err != nil {
		t.Errorf("a pod that the policy allows was not answered: %v: %s", err, out)
	}
	if now := l.served(); now != former {
		t.Errorf("the addresses of the Service, and the addresses that node-1 and node-2 serve, were\n%s\nand are\n%s", former, now)
	}
}

// served returns the addresses of the load balancer, and the load balancers' frontends in the kernels of two nodes.
func (l *lab) served() string {
	l.Helper()
	out := l.run("kubectl", "-n", "shop", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}") + "\n"
	for _, n := range []string{"1", "2"} {
		for line := range strings.Lines(l.run("node", n, "--", built.fairway, "dump", "-n", "shop")) {
			if strings.Contains(line, "shop") {
				out += "node-" + n + " " + strings.Join(strings.Fields(line), " ") + "\n"
			}
		}
	}
	return out
}

// asNode returns a client with the credentials of a node's kubelet.
func (l *lab) asNode(name string) corev1client.CoreV1Interface {
	l.Helper()
	config, err := clientcmd.BuildConfigFromFlags(fmt.Sprintf("https://127.0.0.1:%d", l.port), filepath.Join(l.dir(), "pki", name+".conf"))
	if err != nil {
		l.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		l.Fatal(err)
	}
	return client.CoreV1()
}
