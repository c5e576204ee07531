//go:build versions

package versions

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// Programs and the version that is expected, from make test-versions.
var (
	apiserver = os.Getenv("FAIRWAY_APISERVER")
	etcd      = os.Getenv("FAIRWAY_ETCD")
	fairway   = os.Getenv("FAIRWAY_BIN")
	minor     = os.Getenv("FAIRWAY_MINOR")
)

const (
	server = "https://127.0.0.1:6443"
	node   = "192.168.49.2"
)

// TestMain runs the test in a network namespace of its own.
func TestMain(m *testing.M) {
	const inside = "FAIRWAY_VERSIONS_INSIDE"
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestVersion: Services, changes, events, an API server that starts again, explain and DNS.
func TestVersion(t *testing.T) {
	network(t)
	c := newCluster(t)
	c.start(t)
	if v := c.version(t); !strings.Contains(v, `"minor": "`+minor+`"`) {
		t.Fatalf("the API server is %s, want 1.%s", v, minor)
	}
	c.fill(t)
	agentLog := c.run(t, fairway, "agent", "--kubeconfig", c.kubeconfig, "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16",
		"--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s", "--oom-score-adj", "0")
	c.dumps(t, "10.96.0.50:80/TCP", "10.244.0.5:8080")
	c.dumps(t, node+":30080/TCP", "10.244.0.5:8080")

	c.put(t, "PUT", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1", slice("10.244.0.6"))
	c.dumps(t, "10.96.0.50:80/TCP", "10.244.0.6:8080")
	eventually(t, "the event about a bad annotation", func() error {
		return contains(c.get(t, "/api/v1/namespaces/default/events"), "fastest")
	})

	c.stopAPI(t)
	c.startAPI(t)
	c.put(t, "PUT", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1", slice("10.244.0.7"))
	c.dumps(t, "10.96.0.50:80/TCP", "10.244.0.7:8080")

	out, err := exec.Command(fairway, "explain", "default/web", "--kubeconfig", c.kubeconfig, "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10.244.0.7:8080  -    node-1  yes") {
		t.Errorf("explain: %v\n%s", err, out)
	}
	c.run(t, fairway, "dns", "--kubeconfig", c.kubeconfig, "--dns-port", "1053")
	eventually(t, "DNS", func() error {
		m, err := dns.Exchange(new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA), "127.0.0.1:1053")
		if err != nil {
			return err
		}
		return contains(fmt.Sprint(m.Answer), "10.96.0.50")
	})
	c.installs(t)
	for _, bad := range []string{"level=ERROR", "could not find the requested resource", "forbidden"} {
		if strings.Contains(agentLog.String(), bad) {
			t.Errorf("the agent's log has %q", bad)
		}
	}
	t.Logf("1.%s: agent, explain, DNS and the objects of install work", minor)
}

// installs has fairway install apply its objects, with every component that brings kinds of its own. No kubelet is there:
// what it waits for afterwards does not come.
func (c *cluster) installs(t *testing.T) {
	t.Helper()
	argv := []string{"install", "--kubeconfig", c.kubeconfig, "--api-server", "https://" + node + ":6443", "--cluster-cidr", "10.244.0.0/16", "--pod-network", "none",
		"--dns", "fairway", "--timeout", "1s"}
	for _, component := range []string{"load-balancer", "network-policy"} {
		argv = append(argv, "--component", component)
	}
	out, err := exec.Command(fairway, argv...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not ready after 1s") {
		t.Errorf("install: %v, want that it waits\n%s", err, out)
	}
	out, err = exec.Command(fairway, append(argv, "--dry-run")...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\ndry run: 0 objects would change") {
		t.Errorf("install once more: %v, want that nothing is to do\n%s", err, out)
	}
}

// network gives the namespace loopback and the node's address.
func network(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(node + "/32")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = netlink.AddrAdd(lo, addr)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A cluster is an API server with its store.
type cluster struct {
	dir, kubeconfig string
	client          *http.Client
	api             *exec.Cmd
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir(), client: &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // its certificate is made at its start
	}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.kubeconfig = c.file(t, "kubeconfig", `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"`+server+`","insecure-skip-tls-verify":true}}],
		"users":[{"name":"u","user":{"token":"secret"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`)
	c.file(t, "tokens", "secret,admin,1,system:masters\n")
	c.file(t, "key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) file(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.path(name)
}

// run starts a program that ends with the test, and returns its log.
func (c *cluster) run(t *testing.T, name string, args ...string) *testnet.Log {
	t.Helper()
	_, log := c.command(t, name, args...)
	return log
}

func (c *cluster) command(t *testing.T, name string, args ...string) (*exec.Cmd, *testnet.Log) {
	t.Helper()
	log := new(testnet.Log)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			text := log.String()
			t.Logf("%s:\n%s", filepath.Base(name), text[max(0, len(text)-4000):])
		}
	})
	return cmd, log
}

func (c *cluster) start(t *testing.T) {
	t.Helper()
	c.run(t, etcd, "--data-dir", c.path("etcd"), "--unsafe-no-fsync")
	c.startAPI(t)
}

func (c *cluster) startAPI(t *testing.T) {
	t.Helper()
	c.api, _ = c.command(t, apiserver, "--etcd-servers=http://127.0.0.1:2379", "--cert-dir="+c.path("certs"), "--bind-address=127.0.0.1",
		"--advertise-address="+node, "--service-cluster-ip-range=10.96.0.0/12", "--service-account-issuer=https://test", "--service-account-key-file="+c.path("key"),
		"--service-account-signing-key-file="+c.path("key"), "--token-auth-file="+c.path("tokens"), "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount")
	eventually(t, "the API server", func() error {
		r, err := c.do("GET", "/readyz", "")
		if err == nil && r != "ok" {
			err = fmt.Errorf("%.200s", r)
		}
		return err
	})
}

func (c *cluster) stopAPI(t *testing.T) {
	t.Helper()
	if err := c.api.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.api.Wait()
}

// do sends a request and returns the body of the answer.
func (c *cluster) do(method, path, body string) (string, error) {
	q, err := http.NewRequest(method, server+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	q.Header.Set("Authorization", "Bearer secret")
	q.Header.Set("Content-Type", "application/json")
	r, err := c.client.Do(q)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, r.Status, text)
	}
	return string(text), err
}

func (c *cluster) put(t *testing.T, method, path, body string) {
	t.Helper()
	eventually(t, method+" "+path, func() error { // a server that has just started refuses some
		_, err := c.do(method, path, body)
		return err
	})
}

func (c *cluster) get(t *testing.T, path string) string {
	t.Helper()
	text, err := c.do("GET", path, "")
	if err != nil {
		t.Log(err)
	}
	return text
}

func (c *cluster) version(t *testing.T) string { return c.get(t, "/version") }

// fill makes a node, a Service with an endpoint, and one with a mistake.
func (c *cluster) fill(t *testing.T) {
	t.Helper()
	const n = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1"},"status":{"addresses":[{"type":"InternalIP","address":"` + node + `"}]}}`
	c.put(t, "POST", "/api/v1/nodes", n)
	c.put(t, "PUT", "/api/v1/nodes/node-1/status", n)
	service := func(name, ip string, port int, annotations string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"annotations":{%s}},
			"spec":{"type":"NodePort","clusterIP":%q,"ports":[{"port":80,"targetPort":8080,"nodePort":%d}]}}`, name, annotations, ip, port)
	}
	c.put(t, "POST", "/api/v1/namespaces/default/services", service("web", "10.96.0.50", 30080, ""))
	c.put(t, "POST", "/api/v1/namespaces/default/services", service("bad", "10.96.0.51", 30081, `"fairway.net/balance":"fastest"`))
	c.put(t, "POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice("10.244.0.5"))
}

// slice is the EndpointSlice of the Service web.
func slice(ip string) string {
	text, _ := json.Marshal(map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  map[string]any{"name": "web-1", "labels": map[string]string{"kubernetes.io/service-name": "web"}},
		"ports":     []any{map[string]any{"port": 8080, "protocol": "TCP", "name": ""}},
		"endpoints": []any{map[string]any{"addresses": []string{ip}, "nodeName": "node-1", "conditions": map[string]bool{"ready": true}}},
	})
	return string(text)
}

// dumps waits until the kernel has an endpoint at an address.
func (c *cluster) dumps(t *testing.T, addr, endpoint string) {
	t.Helper()
	eventually(t, addr+" to "+endpoint, func() error {
		out, err := exec.Command(fairway, "dump", "--service", "default/web").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, addr) && strings.Contains(line, endpoint) {
				return nil
			}
		}
		return fmt.Errorf("%s", out)
	})
}

func contains(text, want string) error {
	if !strings.Contains(text, want) {
		return fmt.Errorf("%q is not in %.300q", want, text)
	}
	return nil
}

func eventually(t *testing.T, what string, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
