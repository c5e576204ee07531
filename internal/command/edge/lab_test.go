package edge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/edge"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// edgeArgs is an environment variable. It makes a process of this test `fairway edge` with these arguments, a JSON list.
const edgeArgs = "FAIRWAY_TEST_EDGE_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(edgeArgs); args != "" {
		os.Exit(runEdge(args))
	}
	testnet.Main(m)
}

// runEdge runs `fairway edge` in this process and returns its exit status.
func runEdge(args string) int {
	var list []string
	if err := json.Unmarshal([]byte(args), &list); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := edge.New(command.Env{Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, Version: "v0.1.0-test"})
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(list)
	if err := c.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// patient is how long the tests wait for what must happen.
const patient = 60 * time.Second

// An edgeLab is a cluster of three nodes, each with our nftables for its NodePorts and its answers
// to health checks, and a machine outside of it with `fairway edge`.
type edgeLab struct {
	t     *testing.T
	net   *testnet.Net
	edge  *testnet.Host
	nodes []*edgeNode
	pods  map[string]*testnet.Host
	api   *edgeAPI
	dir   string
	cmd   *exec.Cmd
	log   *testnet.Log
}

// An edgeNode is a node, with what it answers to health checks.
type edgeNode struct {
	*testnet.Host
	object *corev1.Node
	pods   []*testnet.Host
	local  atomic.Int32 // ready endpoints of the Service shop/local
	status atomic.Int32 // of /healthz; 0: no answer
	asked  atomic.Int32
}

// The addresses and ports of the Services.
var (
	localVIP   = netip.MustParseAddrPort("192.0.2.10:80")
	clusterVIP = netip.MustParseAddrPort("192.0.2.11:80")
	podVIP     = netip.MustParseAddrPort("192.0.2.12:80")
)

const localCheckPort, proxyCheckPort = 32000, 10256

// newEdgeLab makes a cluster whose nodes have so many pods.
func newEdgeLab(t *testing.T, pods ...int) *edgeLab {
	l := &edgeLab{t: t, net: testnet.New(t), pods: map[string]*testnet.Host{}, api: &edgeAPI{}, dir: t.TempDir()}
	l.edge = l.net.Node("edge")
	l.must(l.net.Route(netip.MustParsePrefix("192.0.2.0/24"), l.edge))
	l.api.serve(t, l.listen(l.edge, "127.0.0.1:6443"))
	var slice discoveryv1.EndpointSlice
	for i, n := range pods {
		node := &edgeNode{Host: l.net.Node(fmt.Sprintf("node-%d", i+1))}
		node.status.Store(http.StatusOK)
		l.nodes = append(l.nodes, node)
		node.object = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i+1)}}}
		for _, a := range node.Addrs {
			node.object.Status.Addresses = append(node.object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		l.api.set(node.object)
		for k := range n {
			a := netip.AddrFrom4([4]byte{10, 244, byte(i + 1), byte(5 + k)})
			pod := l.net.Pod(node.Host, fmt.Sprintf("pod-%d-%d", i+1, k), a)
			pod.Serve("tcp", netip.AddrPortFrom(a, 8080))
			pod.Serve("udp", netip.AddrPortFrom(a, 8080))
			node.pods, l.pods[pod.Name] = append(node.pods, pod), pod
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &node.Name, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
		node.local.Store(int32(n))
		l.answerChecks(node)
	}
	slice.AddressType, slice.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Port: new(int32(8080)), Name: new("web"), Protocol: new(corev1.ProtocolTCP)}}
	services := []*corev1.Service{
		edgeService("local", localVIP, 30080, localCheckPort), edgeService("cluster", clusterVIP, 30081, 0), edgeService("pods", podVIP, 0, 0),
	}
	for _, svc := range services {
		l.api.set(svc)
		own := slice.DeepCopy()
		own.Name, own.Namespace, own.Labels = svc.Name+"-x", "shop", map[string]string{discoveryv1.LabelServiceName: svc.Name}
		l.api.set(own)
		for _, n := range l.nodes {
			n.program(t, services, slice)
		}
	}
	return l
}

// edgeService is a Service of type LoadBalancer; under Local if it has a port for health checks.
func edgeService(name string, vip netip.AddrPort, nodePort, check int32) *corev1.Service {
	proxied := corev1.LoadBalancerIPModeProxy
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0." + strconv.Itoa(int(vip.Addr().As4()[3]))}, HealthCheckNodePort: check,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			Ports:                 []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: int32(vip.Port()), NodePort: nodePort, TargetPort: intstr.FromInt32(8080)}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: vip.Addr().String(), IPMode: &proxied}}}},
	}
	if check != 0 {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	return svc
}

func (l *edgeLab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *edgeLab) listen(h *testnet.Host, at string) (listener net.Listener) {
	l.must(h.Do(func() (err error) {
		var lc net.ListenConfig
		listener, err = lc.Listen(context.Background(), "tcp", at)
		return err
	}))
	return listener
}

// program lets the node's kernel serve the Services' NodePorts.
func (n *edgeNode) program(t *testing.T, services []*corev1.Service, slice discoveryv1.EndpointSlice) {
	t.Helper()
	own := service.Facts{Node: service.Node{Name: n.Name, Settings: service.Settings{NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}}}
	b := service.NewBuilder()
	for _, svc := range services {
		s := slice.DeepCopy()
		s.Namespace, s.Labels = svc.Namespace, map[string]string{discoveryv1.LabelServiceName: svc.Name}
		b.Set(service.Compile(kube.ConvertService(svc), []*service.Slice{kube.ConvertSlice(s)}, own))
	}
	err := n.Do(func() error {
		dp, err := nftables.New(nftables.Config{})
		if err != nil {
			return err
		}
		defer dp.Close()
		_, err = dp.Sync(t.Context(), b.Table(own.Settings))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// answerChecks lets a node answer load balancers as a kube-proxy does.
func (l *edgeLab) answerChecks(n *edgeNode) {
	serve := func(port int, h http.HandlerFunc) {
		listener := l.listen(n.Host, netip.AddrPortFrom(n.Addr(true), uint16(port)).String())
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		var done sync.WaitGroup
		done.Go(func() { _ = s.Serve(listener) })
		l.t.Cleanup(func() { _ = s.Close(); done.Wait() })
	}
	answer := func(w http.ResponseWriter, r *http.Request, code int) {
		if n.asked.Add(1); n.status.Load() == 0 {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(code)
	}
	serve(localCheckPort, func(w http.ResponseWriter, r *http.Request) {
		local := int(n.local.Load())
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
		answer(w, r, map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable}[local > 0])
	})
	serve(proxyCheckPort, func(w http.ResponseWriter, r *http.Request) { answer(w, r, int(n.status.Load())) })
}

// config writes a configuration with these lines, and returns its path.
func (l *edgeLab) config(lines ...string) string {
	return l.configured("edge", append([]string{"addresses: [192.0.2.0/24]"}, lines...)...)
}

// configured writes the configuration of that name with these lines, and returns its path.
func (l *edgeLab) configured(name string, lines ...string) string {
	kubeconfig := filepath.Join(l.dir, "kubeconfig")
	l.must(os.WriteFile(kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:6443"}}],"users":[{"name":"u","user":{}}]}`), 0o600))
	text := "apiVersion: edge.fairway.net/v1alpha1\nkind: EdgeConfiguration\nkubeconfig: " + kubeconfig + "\n" +
		strings.Join(lines, "\n") + "\n"
	path := filepath.Join(l.dir, name+".yaml")
	l.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// start starts `fairway edge`.
func (l *edgeLab) start(args ...string) {
	l.cmd, l.log = l.process(args...)
	l.must(l.edge.Do(l.cmd.Start))
	cmd, log := l.cmd, l.log
	l.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	l.t.Cleanup(func() {
		if l.t.Failed() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			l.t.Logf("fairway edge:\n%s", log)
		}
	})
}

func (l *edgeLab) process(args ...string) (*exec.Cmd, *testnet.Log) {
	text, err := json.Marshal(args)
	l.must(err)
	// With no more than deploy/edge/fairway-edge.service gives it.
	cmd, log := exec.Command("setpriv", "--bounding-set", "-all,+net_admin,+net_raw", "--", os.Args[0]), &testnet.Log{}
	cmd.Env = append(os.Environ(), edgeArgs+"="+string(text))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, log
}

// kill ends it without a chance to say so.
func (l *edgeLab) kill() {
	l.must(l.cmd.Process.Kill())
	_ = l.cmd.Wait()
}

// cleanup runs `fairway edge --cleanup` and returns what is left in the kernel.
func (l *edgeLab) cleanup(path string) (tables, routes string) {
	cmd, log := l.process("--config", path, "--cleanup")
	if err := l.edge.Do(cmd.Run); err != nil {
		l.t.Fatalf("cleanup: %v\n%s", err, log)
	}
	return l.inEdge("nft", "list", "tables"), l.inEdge("ip", "route", "show", "proto", "70")
}

func (l *edgeLab) inEdge(name string, args ...string) string {
	var out []byte
	err := l.edge.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		l.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// ask asks an address from outside, and returns who answered and whose address that saw.
func (l *edgeLab) ask(at netip.AddrPort) testnet.Answer {
	return l.net.Outside.Ask("tcp", at, 2*time.Second)
}

// until waits until what an address answers is as wanted.
func (l *edgeLab) until(at netip.AddrPort, what string, wanted func(testnet.Answer) bool) testnet.Answer {
	l.t.Helper()
	var last testnet.Answer
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if last = l.ask(at); wanted(last) {
			return last
		}
	}
	l.t.Fatalf("%v: %v, want %s", at, last, what)
	return last
}

func answered(a testnet.Answer) bool { return a.Outcome == testnet.Answered }

// share asks n times and returns how often each pod answered. Every answer must be one.
func (l *edgeLab) share(at netip.AddrPort, n int) map[string]int {
	l.t.Helper()
	var mu sync.Mutex
	count := map[string]int{}
	var all sync.WaitGroup
	left := atomic.Int32{}
	left.Store(int32(n))
	for range 8 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				a := l.net.Outside.Ask("tcp", at, 30*time.Second)
				mu.Lock()
				if count[a.By]++; a.Outcome != testnet.Answered {
					l.t.Errorf("%v: %v", at, a)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return count
}

// nodeOf returns the index of the node that a pod is on.
func (l *edgeLab) nodeOf(pod string) int {
	var node, k int
	if _, err := fmt.Sscanf(pod, "pod-%d-%d", &node, &k); err != nil {
		return -1
	}
	return node - 1
}

// programmed waits until the edge that was started last has written its first rules. A packet that
// came before them is in conntrack, untranslated, and so is the next one from that port.
func (l *edgeLab) programmed() {
	l.t.Helper()
	l.must(l.log.Await("rules are up to date", patient))
}

// even fails the test if a pod answered more than 1.2 times as often as another.
func (l *edgeLab) even(at netip.AddrPort) {
	l.t.Helper()
	const connections = 10_000
	count := l.share(at, connections)
	least, most := connections, 0
	for pod := range l.pods {
		least, most = min(least, count[pod]), max(most, count[pod])
	}
	l.t.Logf("%d connections to 1, 1 and 4 pods: %v", connections, count)
	if float64(most) > 1.2*float64(least) { // a pod's share has a standard deviation of 2.2 %
		l.t.Errorf("a pod has %d connections and another %d", most, least)
	}
}

// Checks of nodes for a test that needs them soon, and for one that needs none to be late however
// busy the machine is.
const (
	soon   = "healthCheck: {interval: 200ms, timeout: 200ms, unhealthyThreshold: 2}"
	steady = "healthCheck: {interval: 30s, timeout: 30s}"
)
