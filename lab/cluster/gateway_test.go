package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/lab/fabric"
)

// gatewayAPIURL is the file with Gateway API's CustomResourceDefinitions on pages. The lab has no network, so it applies
// those of the module.
const gatewayAPIURL = "https://github.com/kubernetes-sigs/gateway-api/releases/download/v1.6.3/standard-install.yaml"

// installGateways installs the gateways as the page says.
func (w *walk) installGateways(blocks map[string][]shown) {
	dir, err := exec.Command("go", "list", "-C", "../..", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		w.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard/*.yaml"))
	if err != nil || len(files) == 0 {
		w.Fatalf("%d files, %v", len(files), err)
	}
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			w.Fatal(err)
		}
		all = append(all, string(text))
	}
	install := filepath.Join(w.dir, "standard-install.yaml")
	if err := os.WriteFile(install, []byte(strings.Join(all, "\n---\n")), 0o644); err != nil {
		w.Fatal(err)
	}
	for i, s := range blocks["install"] {
		blocks["install"][i].command = strings.ReplaceAll(s.command, gatewayAPIURL, install)
	}
	w.block(blocks, "install")
}

// gateways walks the example behind a Gateway and an Ingress. No request fails while the pods of the back end and of the
// gateways are replaced.
func (w *walk) gateways(blocks map[string][]shown) {
	examples, err := filepath.Abs("../../examples")
	if err == nil {
		err = os.Symlink(examples, filepath.Join(w.dir, "examples"))
	}
	if err != nil {
		w.Fatal(err)
	}
	w.block(blocks, "gateway")
	w.block(blocks, "why")
	w.block(blocks, "ingress")
	gateway := w.run("kubectl", "get", "gateway", "shop", "-o", "jsonpath={.status.addresses[0].value}")
	ingress := w.run("kubectl", "get", "ingress", "shop", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
	w.run("kubectl", "scale", "deployment/backend-deployment", "--replicas=2")
	w.run("kubectl", "rollout", "status", "deployment/backend-deployment", "--timeout=60s")
	for _, workload := range []string{"default deployment/backend-deployment", "kube-system daemonset/fairway-gateway"} {
		namespace, name, _ := strings.Cut(workload, " ")
		v := w.visitors("http://"+gateway+"/jobs", "http://"+ingress+"/jobs/")
		w.run("kubectl", "-n", namespace, "rollout", "restart", name)
		w.run("kubectl", "-n", namespace, "rollout", "status", name, "--timeout=120s")
		v.end(name)
	}
	w.hostileTenants(gateway, ingress)
	w.block(blocks, "clean")
}

// effectLine is the second line of a file of test/tenants/gateway: the event or the reason in a status that its author gets.
var effectLine = regexp.MustCompile(`(?m)^# (event|status): (\S+)$`)

// hostileTenants applies each file of test/tenants/gateway in a namespace of its own, next to clients of another tenant. No
// request of theirs fails.
func (w *walk) hostileTenants(gateway, ingress string) {
	files, err := filepath.Glob("../../test/tenants/gateway/*.yaml")
	if err != nil || len(files) < 10 {
		w.Fatalf("%d files: %v", len(files), err)
	}
	v := w.visitors("http://"+gateway+"/jobs", "http://"+ingress+"/jobs/")
	for _, file := range files {
		text, err := os.ReadFile(file)
		effect := effectLine.FindStringSubmatch(string(text))
		if err != nil || effect == nil || !strings.HasPrefix(string(text), "# ") {
			w.Fatalf("%s does not begin with its promise and its effect: %v", file, err)
		}
		namespace := "tenant-" + strings.TrimSuffix(filepath.Base(file), ".yaml")
		w.run("kubectl", "create", "namespace", namespace)
		w.run("kubectl", "-n", namespace, "create", "-f", file)
		switch {
		case effect[1] == "status":
			w.eventually(`"reason":"`+effect[2]+`"`, "kubectl", "-n", namespace, "get", "gateways,httproutes,listenersets,routepolicies", "-o", "jsonpath={.items[*].status}")
		case effect[2] != "-":
			w.eventually(effect[2], "kubectl", "-n", namespace, "get", "events", "-o", "custom-columns=REASON:.reason")
		}
		w.run("kubectl", "delete", "namespace", namespace, "--wait=false")
	}
	v.end("tenants")
}

// nginxIngress is an Ingress of ingress-nginx. The gateways stand in for that controller, which no image of the lab has.
const nginxIngress = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: nginx}
spec: {controller: fairway.net/ingress}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: jobs
  annotations:
    nginx.ingress.kubernetes.io/rewrite-target: /$2
    nginx.ingress.kubernetes.io/proxy-body-size: 8m
    nginx.ingress.kubernetes.io/configuration-snippet: 'more_set_headers "X-Shop: 1";'
spec:
  ingressClassName: nginx
  rules:
  - host: jobs.example
    http:
      paths:
      - {path: /jobs(/|$)(.*), pathType: ImplementationSpecific, backend: {service: {name: backend-service, port: {number: 3000}}}}
      - {path: /, pathType: Prefix, backend: {service: {name: frontend-service, port: {number: 80}}}}
`

// fromIngressNginx walks the way of an Ingress to Gateway API and back, and that to the class of Fairway.
func (w *walk) fromIngressNginx(blocks map[string][]shown) {
	w.input(nginxIngress, "kubectl", "apply", "-f", "../../examples/two-tier", "-f", "-")
	w.run("kubectl", "rollout", "status", "deployment/frontend-deployment", "--timeout=60s")
	w.run("kubectl", "rollout", "status", "deployment/backend-deployment", "--timeout=60s")
	ingress := w.run("kubectl", "-n", "kube-system", "get", "service", "fairway-ingress", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
	w.eventually(`"job"`, "client", "--", "curl", "-sS", "-m", "2", "-H", "Host: jobs.example", "http://"+ingress+"/jobs")
	w.block(blocks, "migrate")
	kubeconfig, err := os.ReadFile(filepath.Join(w.lab.dir(), "kubeconfig"))
	if err != nil {
		w.Fatal(err)
	}
	inside := filepath.Join(w.dir, "kubeconfig-inside")
	server := "https://192.168.49.254:6443" // the client outside does not reach the listener on 127.0.0.1
	if err := os.WriteFile(inside, []byte(strings.ReplaceAll(string(kubeconfig), fmt.Sprintf("https://127.0.0.1:%d", w.port), server)), 0o600); err != nil {
		w.Fatal(err)
	}
	w.eventually(`"job"`, "client", "--", "curl", "-sS", "-m", "2", "-H", "Host: jobs.example", "http://192.168.49.202/jobs")
	for i, s := range blocks["check"] {
		blocks["check"][i].command = strings.Replace(s.command, "fairway ingress check", built.fairway+" ingress check --kubeconfig "+inside, 1)
	}
	for _, name := range []string{"check", "try", "back", "copy"} {
		w.block(blocks, name)
	}
	w.eventually(`"job"`, "client", "--", "curl", "-sS", "-m", "2", "-H", "Host: jobs.example", "http://"+ingress+"/jobs")
	w.run("kubectl", "delete", "ingress", "jobs", "jobs-fairway")
	w.run("kubectl", "delete", "-f", "../../examples/two-tier")
}

// visitors are clients outside that send requests for shop.example. Half of them keep their connections.
type visitors struct {
	w       *walk
	stop    context.CancelFunc
	clients sync.WaitGroup

	mu     sync.Mutex
	sent   int
	slow   time.Duration // of the slowest request
	failed []string
}

func (w *walk) visitors(urls ...string) *visitors {
	ctx, cancel := context.WithCancel(w.Context())
	v := &visitors{w: w, stop: cancel}
	f := fabric.Fabric{Dir: filepath.Join(w.lab.dir(), "net")}
	for _, url := range urls {
		for i := range 4 {
			c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: i%2 == 0,
				DialContext: func(_ context.Context, network, address string) (c net.Conn, err error) {
					err = visit(f, fabric.Client, func() (err error) {
						c, err = net.DialTimeout(network, address, 10*time.Second)
						return err
					})
					return c, err
				}}}
			v.clients.Go(func() { v.run(ctx, c, url) })
		}
	}
	return v
}

func (v *visitors) run(ctx context.Context, c *http.Client, url string) {
	defer c.CloseIdleConnections()
	for tick := time.Tick(pulse); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		began := time.Now()
		err := visitShop(c, url)
		v.mu.Lock()
		v.sent++
		v.slow = max(v.slow, time.Since(began))
		if err != nil {
			v.failed = append(v.failed, time.Now().Format("05.000 ")+err.Error())
		}
		v.mu.Unlock()
	}
}

// visitShop sends one request, which gets a job.
func visitShop(c *http.Client, url string) error {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Host = "shop.example"
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(text), `"job"`)) {
		err = fmt.Errorf("%s: %s %.100s", url, resp.Status, text)
	}
	return err
}

// end ends the clients, and fails the test for each failed request.
func (v *visitors) end(what string) {
	v.w.Helper()
	v.stop()
	v.clients.Wait()
	v.w.Logf("%s: %d requests, %d failed, the slowest took %v", what, v.sent, len(v.failed), v.slow.Round(time.Millisecond))
	if len(v.failed) > 0 || v.sent == 0 {
		v.w.Errorf("%s: %d of %d requests failed: %q", what, len(v.failed), v.sent, v.failed[:min(len(v.failed), 20)])
	}
}
