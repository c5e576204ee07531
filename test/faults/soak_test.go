package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A soak changes the cluster at random, under load.
type soak struct {
	*rig
	*rand.Rand
	modes    []string
	mode     int // of modes
	services map[string]*corev1.Service
	gone     map[string]bool // ClusterIPs of Services that were removed, and not given again
	ghosts   map[string]bool // Nodes that no machine is behind
	done     map[string]int  // how often each change was made
	next     int             // the number of the next object
}

// The most there is at a time.
const (
	maxServices = 60
	maxGhosts   = 8 // one digit
)

// ghostNet is what the podCIDRs of Nodes begin with that no machine is behind.
const ghostNet = "10.244.20"

// TestSoak changes Services, endpoints, nodes and modes and ends agents, at random, for as
// long as FOR says; in its last third agents are left alone. MODES are those that are switched
// between, the first of which is measured. SEED repeats the changes of an
// earlier run. In the end the kernel must be as the API asks, and nothing may have grown.
func TestSoak(t *testing.T) {
	if os.Getenv("FOR") == "" {
		t.Skip("FOR does not say how long to soak [make soak]")
	}
	d, err := time.ParseDuration(os.Getenv("FOR"))
	if err != nil {
		t.Fatalf("FOR: %v", err)
	}
	seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	modes := soakedModes(t)
	fmt.Printf("soak for %v in %s, SEED=%d\n", d, strings.Join(modes, ", "), seed)
	s := &soak{
		rig: &rig{lab: newLab(t, 2, "--proxy-mode", modes[len(modes)-1]), full: true}, Rand: rand.New(rand.NewPCG(seed, 0)), modes: modes, mode: len(modes) - 1,
		services: map[string]*corev1.Service{}, gone: map[string]bool{}, ghosts: map[string]bool{}, done: map[string]int{},
	}
	s.startPods(2)
	ways := s.ways(s.echoService("echo", corev1.ServiceTypeNodePort))
	s.carried(ways)
	s.load = s.startLoad(ways, 10*time.Second)
	total := s.load.now()
	start := time.Now()
	s.churn(start.Add(d*2/3), modes[0] != userspace)
	for s.mode != 0 {
		s.switchMode()
	}
	s.settle()
	before := s.measure()
	s.churn(start.Add(d), false)
	s.settle()
	after := s.measure()
	s.load.end()
	s.report(total, before, after)
}

// userspace is the mode in which connections end with the agent: in it no agent is ended.
const userspace = "userspace"

// soakedModes returns the modes in MODES.
func soakedModes(t *testing.T) []string {
	modes := strings.Fields(os.Getenv("MODES"))
	if len(modes) == 0 {
		modes = []string{"nftables", "iptables"}
	}
	if len(modes) > 1 && slices.Contains(modes, userspace) {
		t.Fatalf("MODES=%q: connections do not outlive a switch from %s; soak it by itself", modes, userspace)
	}
	return modes
}

// churn makes changes until end.
func (s *soak) churn(end time.Time, restarts bool) {
	for time.Now().Before(end) {
		switch n := s.IntN(1000); {
		case n < 300:
			s.addService()
		case n < 550:
			s.removeService()
		case n < 850:
			s.changeEndpoints()
		case n < 950:
			s.changeGhosts()
		case n < 985:
			s.use()
		case n < 997 && restarts:
			s.endAgent()
		case restarts && len(s.modes) > 1:
			s.switchMode()
		}
		time.Sleep(time.Duration(s.IntN(200)) * time.Millisecond)
	}
}

// must fails the test if a change was refused.
func (s *soak) must(what string, err error) {
	s.Helper()
	s.done[what]++
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// pick returns one of the keys, the same for the same seed.
func pick[V any](s *soak, m map[string]V) string {
	return slices.Sorted(maps.Keys(m))[s.IntN(len(m))]
}

// addService adds a Service of a random shape, with endpoints of its own.
func (s *soak) addService() {
	if len(s.services) >= maxServices {
		return
	}
	s.next++
	name := fmt.Sprintf("soak-%d", s.next)
	spec := corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: portTCP, TargetPort: intstr.FromInt32(portTCP)},
		{Name: "udp", Protocol: corev1.ProtocolUDP, Port: portUDP, TargetPort: intstr.FromInt32(portUDP)},
	}}
	if s.IntN(3) == 0 {
		spec.Type = corev1.ServiceTypeNodePort
		if s.IntN(2) == 0 {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	if s.IntN(4) == 0 {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	svc, err := s.api.CoreV1().Services(namespace).Create(context.Background(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	s.must("Services added", err)
	s.services[name] = svc
	delete(s.gone, svc.Spec.ClusterIP)
	_, err = s.api.DiscoveryV1().EndpointSlices(namespace).Create(context.Background(), s.slice(name), metav1.CreateOptions{})
	s.must("EndpointSlices added", err)
}

// slice returns endpoints of a Service: some of the pods that echo, in random states.
func (s *soak) slice(service string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(portTCP))},
			{Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(portUDP))},
		},
	}
	for _, n := range s.nodes {
		for i, pod := range n.pods {
			state := s.IntN(5)
			if state == 0 {
				continue
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{n.addrs[i].String()}, NodeName: new(n.Name),
				Conditions: discoveryv1.EndpointConditions{Ready: new(state > 2), Serving: new(state > 1), Terminating: new(state == 2)},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name},
			})
		}
	}
	return slice
}

func (s *soak) removeService() {
	if len(s.services) > 0 {
		s.remove(pick(s, s.services))
	}
}

func (s *soak) remove(name string) {
	ctx := context.Background()
	s.must("EndpointSlices removed", s.api.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	s.must("Services removed", s.api.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	s.gone[s.services[name].Spec.ClusterIP] = true
	delete(s.services, name)
}

func (s *soak) changeEndpoints() {
	if len(s.services) == 0 {
		return
	}
	_, err := s.api.DiscoveryV1().EndpointSlices(namespace).Update(context.Background(), s.slice(pick(s, s.services)), metav1.UpdateOptions{})
	s.must("EndpointSlices changed", err)
}

// changeGhosts adds or removes a Node, and with it routes to its pods.
func (s *soak) changeGhosts() {
	ctx, nodes := context.Background(), s.api.CoreV1().Nodes()
	if len(s.ghosts) == maxGhosts || len(s.ghosts) > 0 && s.IntN(2) == 0 {
		s.removeGhost(pick(s, s.ghosts))
		return
	}
	i := s.IntN(maxGhosts)
	name, cidr := fmt.Sprintf("ghost-%d", i), fmt.Sprintf("%s%d.0/24", ghostNet, i)
	if s.ghosts[name] {
		return
	}
	n, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}, Unschedulable: true},
	}, metav1.CreateOptions{})
	s.must("Nodes added", err)
	s.ghosts[name] = true
	patch := fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":"192.168.49.%d"}]}}`, 150+i)
	_, err = nodes.Patch(ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	s.must("Nodes changed", err)
}

func (s *soak) removeGhost(name string) {
	s.must("Nodes removed", s.api.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}))
	delete(s.ghosts, name)
}

// use sends to a Service whatever becomes of it: so flows are there when it goes.
func (s *soak) use() {
	if len(s.services) == 0 {
		return
	}
	to := netip.MustParseAddr(s.services[pick(s, s.services)].Spec.ClusterIP)
	for _, n := range s.nodes {
		n.pods[0].Ask("udp", netip.AddrPortFrom(to, portUDP), testnet.Patience)
		n.pods[0].Ask("tcp", netip.AddrPortFrom(to, portTCP), testnet.Patience)
	}
	s.done["Services used"]++
}

// endAgent kills an agent in the middle of whatever it does.
func (s *soak) endAgent() {
	n := s.nodes[s.IntN(len(s.nodes))]
	if s.IntN(2) == 0 {
		s.kill(s.agent(n), unix.SIGKILL)
	}
	s.replaceAgent(n)
	s.done["agents ended"]++
}

// switchMode starts all agents in the next mode.
func (s *soak) switchMode() {
	s.mode = (s.mode + 1) % len(s.modes)
	patch := fmt.Sprintf(`{"data":{"PROXY_MODE":%q}}`, s.modes[s.mode])
	_, err := s.api.CoreV1().ConfigMaps("kube-system").Patch(context.Background(), "fairway-agent", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must("modes switched", err)
	for _, n := range s.nodes {
		s.replaceAgent(n)
	}
}

// settle removes what was added, and waits until `fairway diff` finds no difference on any
// node between what the kernel does and what the API asks for.
func (s *soak) settle() {
	s.Helper()
	for len(s.services) > 0 {
		s.remove(pick(s, s.services))
	}
	for len(s.ghosts) > 0 {
		s.removeGhost(pick(s, s.ghosts))
	}
	for _, n := range s.nodes {
		s.await("no difference on "+n.Name, func() error {
			pods, err := s.api.CoreV1().Pods("kube-system").List(context.Background(),
				metav1.ListOptions{LabelSelector: "k8s-app=fairway-agent", FieldSelector: "spec.nodeName=" + n.Name})
			if err != nil || len(pods.Items) != 1 {
				return fmt.Errorf("%d agents: %w", len(pods.Items), err)
			}
			out, err := exec.Command(s.program, "--name", s.name, "kubectl", "-n", "kube-system", "exec", pods.Items[0].Name, "--", "fairway", "diff").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	for _, n := range s.nodes { // a node whose object is gone keeps its pods' routes for a minute
		err := within(2*long, func() error {
			if all := s.on(n, "ip", "route"); strings.Contains(all, ghostNet) {
				return fmt.Errorf("there are\n%s", all)
			}
			return nil
		})
		if err != nil {
			s.Fatalf("routes of %s to Nodes that are gone: %v", n.Name, err)
		}
	}
}

// spareChains is how many chains that are not used the agent keeps in the kernel.
const spareChains = 64

// elements counts the elements of a table's sets and maps, as nft lists them; but not of the
// map that leads to the chains, which has as many as there are chains, nor of the sets that remember
// for some seconds which pods have sent.
func elements(table string) (n int) {
	counts, inside := false, false
	for line := range strings.Lines(table) {
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(text, "set "), strings.HasPrefix(text, "map "):
			counts = text != "map dispatch {" && !strings.HasPrefix(text, "set checked")
		case strings.HasPrefix(text, "chain "):
			counts = false
		case strings.HasPrefix(text, "elements = {"):
			inside = true
		}
		if counts && inside {
			n += strings.Count(line, ", ") + strings.Count(line, ",\n") + strings.Count(line, " }\n")
		}
		if strings.HasSuffix(line, "}\n") {
			inside = false
		}
	}
	return n
}

// figures are what may not grow, of one node.
type figures struct {
	rss, descriptors, goroutines, elements, chains, routes, flows, marks int

	rules string // all of the kernel's
}

// measure reads the figures of all nodes.
func (s *soak) measure() (all []figures) {
	s.Helper()
	count := func(text string, match func(string) bool) (n int) {
		for line := range strings.Lines(text) {
			if match(line) {
				n++
			}
		}
		return n
	}
	for _, n := range s.nodes {
		pid := s.agent(n)
		var f figures
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(status)) {
			_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &f.rss)
		}
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			s.Fatal(err)
		}
		f.descriptors = len(open)
		text, err := s.get(n, "http://127.0.0.1:10249/metrics")
		if err != nil {
			s.Fatal(err)
		}
		for line := range strings.Lines(text) {
			_, _ = fmt.Sscanf(line, "go_goroutines %d", &f.goroutines)
		}
		rules := s.on(n, "nft", "list", "ruleset")
		f.rules = rules
		f.elements, f.chains = elements(rules), count(rules, func(line string) bool { return strings.HasPrefix(line, "\tchain ") })
		f.routes = strings.Count(s.on(n, "ip", "route"), "\n")
		flows := s.on(n, "conntrack", "-L")
		f.flows = count(flows, func(line string) bool {
			for field := range strings.FieldsSeq(line) {
				if to, ok := strings.CutPrefix(field, "dst="); ok {
					return strings.HasPrefix(line, "udp") && s.gone[to] // the first is the client's
				}
			}
			return false
		})
		f.marks = count(flows, func(line string) bool { return strings.Contains(line, " mark=") && !strings.Contains(line, " mark=0 ") })
		all = append(all, f)
	}
	return all
}

// report prints what was done and found, and fails the test for what has grown.
func (s *soak) report(total *tally, before, after []figures) {
	for _, what := range slices.Sorted(maps.Keys(s.done)) {
		fmt.Printf("%6d %s\n", s.done[what], what)
	}
	fmt.Printf("%d connections, %d lost, %d answers on them; %d requests, %d failed\n", s.load.conns, total.lost, total.answers, total.requests, total.failed)
	if total.lost > 0 || total.failed > 0 {
		s.Errorf("connections were lost or requests failed, the last at %v:\n%v", total.last.Format(time.TimeOnly), total)
	}
	fmt.Println("| node | | resident kB | descriptors | goroutines | elements | chains | routes | flows to Services that are gone | flows with a mark |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
	for i, n := range s.nodes {
		b, a := before[i], after[i]
		for _, f := range []struct {
			when string
			figures
		}{{"before", b}, {"after", a}} {
			fmt.Printf("| %s | %s | %d | %d | %d | %d | %d | %d | %d | %d |\n", n.Name, f.when, f.rss, f.descriptors, f.goroutines, f.elements, f.chains, f.routes, f.flows, f.marks)
		}
		if a.rss > b.rss*3/2 || a.descriptors > b.descriptors+5 || a.goroutines > b.goroutines+10 || a.elements > b.elements || a.chains > b.chains+spareChains || a.routes > b.routes || a.flows > 0 || a.marks > b.marks {
			s.Errorf("%s: something has grown; new lines of the table:\n%s", n.Name, newLines(b.rules, a.rules))
		}
	}
}

// newLines returns the lines of now that are not in was.
func newLines(was, now string) string {
	had := map[string]bool{}
	for line := range strings.Lines(was) {
		had[line] = true
	}
	var b strings.Builder
	for line := range strings.Lines(now) {
		if !had[line] {
			b.WriteString(line)
		}
	}
	return b.String()
}
