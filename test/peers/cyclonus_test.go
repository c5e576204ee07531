package peers

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cyclonus "github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	policynft "github.com/fairway-net/fairway/internal/networkpolicy/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// policyCluster is the cluster of cyclonus: pods a, b and c in the namespaces x, y and z, each with
// an address of both families, a Service, and the ports 80 and 81.
type policyCluster struct {
	compilers  []*networkpolicy.Compiler // of the nodes
	namespaces map[string]map[string]string
	pods       map[api.Name]map[string]string // their labels
	policies   map[api.Name]*networkingv1.NetworkPolicy
}

var policyNodes = []string{"node-1", "node-2"}

func newPolicyCluster() *policyCluster {
	c := &policyCluster{namespaces: map[string]map[string]string{}, pods: map[api.Name]map[string]string{}, policies: map[api.Name]*networkingv1.NetworkPolicy{}}
	for _, n := range policyNodes {
		c.compilers = append(c.compilers, networkpolicy.New(n))
	}
	c.reset()
	return c
}

// reset makes the cluster as each case begins with it.
func (c *policyCluster) reset() {
	for n := range maps.Clone(c.policies) {
		c.setPolicy(n, nil)
	}
	for n := range maps.Clone(c.pods) {
		if !slices.Contains(policyPods, n) {
			c.setPod(n, nil)
		}
	}
	for space := range maps.Clone(c.namespaces) {
		if !slices.Contains(policySpaces, space) {
			c.setNamespace(space, nil)
		}
	}
	for _, space := range policySpaces {
		c.setNamespace(space, map[string]string{"ns": space})
	}
	for _, n := range policyPods {
		c.setPod(n, map[string]string{"pod": n.Name})
	}
}

var policySpaces = []string{"x", "y", "z"}

// policyPods are those that each case begins with.
var policyPods = func() (all []api.Name) {
	for _, space := range policySpaces {
		for _, pod := range []string{"a", "b", "c"} {
			all = append(all, api.Name{Namespace: space, Name: pod})
		}
	}
	return all
}()

// seen are the pods that were ever asked about, in that order: their places.
var seen struct {
	sync.Mutex
	pods []api.Name
}

// podOf is where a pod is, in all clusters.
func podOf(n api.Name) (node string, addrs, services [2]netip.Addr) {
	seen.Lock()
	defer seen.Unlock()
	at := slices.Index(seen.pods, n)
	if at < 0 {
		at = len(seen.pods)
		seen.pods = append(seen.pods, n)
	}
	i := byte(at)
	node = policyNodes[i%2]
	addrs = [2]netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1 + i%2, 10 + i}), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", 1+i%2, 10+i))}
	services = [2]netip.Addr{netip.AddrFrom4([4]byte{10, 96, 2, 10 + i}), netip.MustParseAddr(fmt.Sprintf("fd00:10:96::2:%d", 10+i))}
	return node, addrs, services
}

func (c *policyCluster) setNamespace(name string, labels map[string]string) {
	if c.namespaces[name] = labels; labels == nil {
		delete(c.namespaces, name)
	}
	for _, compiler := range c.compilers {
		compiler.SetNamespace(name, nil)
		if labels != nil {
			compiler.SetNamespace(name, &api.Namespace{Name: name, Labels: labels})
		}
	}
}

func (c *policyCluster) setPod(n api.Name, labels map[string]string) {
	node, addrs, _ := podOf(n)
	p := &api.Pod{Name: n, UID: n.String(), Node: node, Labels: labels, Addrs: addrs[:]}
	for _, port := range []uint16{80, 81} {
		for _, proto := range []api.Proto{api.TCP, api.UDP, api.SCTP} {
			p.Ports = append(p.Ports, api.NamedPort{Name: portName(port, proto), Proto: proto, Number: port})
		}
	}
	if c.pods[n] = labels; labels == nil {
		delete(c.pods, n)
		p = nil
	}
	for _, compiler := range c.compilers {
		compiler.SetPod(n, p)
	}
}

func portName(port uint16, proto api.Proto) string {
	return fmt.Sprintf("serve-%d-%s", port, strings.ToLower(proto.String()))
}

func (c *policyCluster) setPolicy(n api.Name, o *networkingv1.NetworkPolicy) {
	if c.policies[n] = o; o == nil {
		delete(c.policies, n)
	}
	for _, compiler := range c.compilers {
		if o == nil {
			compiler.SetPolicy(n, nil)
		} else {
			compiler.SetPolicy(n, kubepolicy.ConvertPolicy(o))
		}
	}
}

// do does what a step of a case does.
func (c *policyCluster) do(a *cyclonus.Action) {
	switch {
	case a.CreatePolicy != nil:
		c.setPolicy(api.Name{Namespace: a.CreatePolicy.Policy.Namespace, Name: a.CreatePolicy.Policy.Name}, a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		c.setPolicy(api.Name{Namespace: a.UpdatePolicy.Policy.Namespace, Name: a.UpdatePolicy.Policy.Name}, a.UpdatePolicy.Policy)
	case a.DeletePolicy != nil:
		c.setPolicy(api.Name{Namespace: a.DeletePolicy.Namespace, Name: a.DeletePolicy.Name}, nil)
	case a.CreateNamespace != nil:
		c.setNamespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels)
	case a.SetNamespaceLabels != nil:
		c.setNamespace(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.DeleteNamespace != nil:
		for n := range maps.Clone(c.pods) {
			if n.Namespace == a.DeleteNamespace.Namespace {
				c.setPod(n, nil)
			}
		}
		for n := range maps.Clone(c.policies) {
			if n.Namespace == a.DeleteNamespace.Namespace {
				c.setPolicy(n, nil)
			}
		}
		c.setNamespace(a.DeleteNamespace.Namespace, nil)
	case a.CreatePod != nil:
		c.setPod(api.Name{Namespace: a.CreatePod.Namespace, Name: a.CreatePod.Pod}, a.CreatePod.Labels)
	case a.SetPodLabels != nil:
		c.setPod(api.Name{Namespace: a.SetPodLabels.Namespace, Name: a.SetPodLabels.Pod}, a.SetPodLabels.Labels)
	case a.DeletePod != nil:
		c.setPod(api.Name{Namespace: a.DeletePod.Namespace, Name: a.DeletePod.Pod}, nil)
	}
}

// A policyProbe is a connection that a step asks about, and whether it is allowed.
type policyProbe struct {
	from, to api.Name
	proto    api.Proto
	port     uint16
	want     bool
}

// complete asks for all probes of all cases, as packets too: minutes.
var complete = os.Getenv("CYCLONUS") == "all"

// sampled is how many probes of a step are made otherwise.
const sampled = 40

// probes are those of a step in one family, or some of them, with what cyclonus says.
func (c *policyCluster) probes(r *rand.Rand, step *cyclonus.TestStep, family int, protos ...api.Proto) (all []policyProbe) {
	for from := range c.pods {
		for to := range c.pods {
			for _, port := range []uint16{80, 81} {
				for _, proto := range protos {
					if one := step.Probe.PortProtocol; one != nil && (one.Protocol != corev1.Protocol(proto.String()) ||
						one.Port != intstr.FromInt32(int32(port)) && one.Port != intstr.FromString(portName(port, proto))) {
						continue
					}
					if from != to { // itself is always allowed here
						all = append(all, policyProbe{from, to, proto, port, false})
					}
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b policyProbe) int {
		return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto))
	})
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if !complete && len(all) > sampled {
		all = all[:sampled]
	}
	oracle := matcher.BuildNetworkPolicies(false, slices.Collect(maps.Values(c.policies)))
	peer := func(n api.Name) *matcher.TrafficPeer {
		_, addrs, _ := podOf(n)
		return &matcher.TrafficPeer{IP: addrs[family].String(), Internal: &matcher.InternalPeer{PodLabels: c.pods[n], Namespace: n.Namespace, NamespaceLabels: c.namespaces[n.Namespace]}}
	}
	for i := range all {
		p := &all[i]
		traffic := &matcher.Traffic{Source: peer(p.from), Destination: peer(p.to), ResolvedPort: int(p.port), ResolvedPortName: portName(p.port, p.proto), Protocol: corev1.Protocol(p.proto.String())}
		p.want = oracle.IsTrafficAllowed(traffic).IsAllowed()
	}
	return all
}

// casesOf are all cases of cyclonus for a family: also those that it leaves out by default.
func casesOf(family int) []*cyclonus.TestCase {
	_, addrs, _ := podOf(api.Name{Namespace: "z", Name: "c"})
	return cyclonus.NewTestCaseGenerator(false, addrs[family].String(), []string{"x", "y", "z"}, nil, nil).GenerateAllTestCases()
}

// All cases that cyclonus generates, in both families: the tables of both nodes say what it says, of
// some probes of each step; with CYCLONUS=all of all.
func TestCyclonusCases(t *testing.T) {
	count, probes, r := 0, 0, testnet.Random(t)
	for family := range 2 {
		for _, one := range casesOf(family) {
			c := newPolicyCluster()
			count++
			for i, step := range one.Steps {
				for _, a := range step.Actions {
					c.do(a)
				}
				for _, p := range c.probes(r, step, family, api.TCP, api.UDP, api.SCTP) {
					probes++
					_, from, _ := podOf(p.from)
					_, to, _ := podOf(p.to)
					got := true
					for _, compiler := range c.compilers {
						table, _ := compiler.Compile()
						got = got && networkpolicy.Lookup(table, networkpolicy.Packet{Src: from[family], Dst: to[family], Proto: p.proto, Port: p.port}).Allowed()
					}
					if got != p.want {
						t.Errorf("%s, step %d: %+v: we say %v", one.Description, i+1, p, got)
					}
				}
			}
		}
	}
	if t.Logf("%d cases, %d probes", count, probes); count < 460 {
		t.Error("cyclonus has fewer cases than it had")
	}
}

// TestCyclonusPackets sends the probes of a tenth of the cases as packets, some of each step; with
// CYCLONUS=all those of all cases, to pods and to Services, in both families. Most of the time is
// waiting for what is denied, so rigs share the cases then.
func TestCyclonusPackets(t *testing.T) {
	rigs := 1
	if complete {
		rigs = 6
	}
	for mode, open := range map[string]func() (datapath.Datapath, error){
		datapath.NFTables: func() (datapath.Datapath, error) { return nftables.New(nftables.Config{}) },
		datapath.IPTables: func() (datapath.Datapath, error) { return iptables.New(iptables.Config{Variant: iptables.NFT}) },
	} {
		for n := range rigs {
			t.Run(fmt.Sprint(mode, " ", n+1), func(t *testing.T) {
				t.Parallel()
				r := newPolicyRig(t, open)
				cases := 0
				for family := range 2 {
					for i, one := range casesOf(family) {
						if complete && i%rigs == n || !complete && i%20 == 10*family {
							cases++
							r.run(one, family)
						}
					}
				}
				t.Logf("%d cases, %d packets allowed, %d denied", cases, r.allowed, r.denied)
				if min(r.allowed, r.denied) < 100 {
					t.Error("the probes are one-sided")
				}
			})
		}
	}
}

// A policyRig is the cluster in namespaces, with a datapath and a table of policies on each node.
type policyRig struct {
	*testing.T
	*rand.Rand
	net             *testnet.Net
	cluster         *policyCluster // one for all cases: what differs between two is written
	nodes           []*testnet.Host
	kernels         []*policynft.Table
	hosts           map[api.Name]*testnet.Host
	allowed, denied int
}

func newPolicyRig(t *testing.T, open func() (datapath.Datapath, error)) *policyRig {
	r := &policyRig{T: t, Rand: testnet.Random(t), net: testnet.New(t), cluster: newPolicyCluster(), hosts: map[api.Name]*testnet.Host{}}
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	for _, name := range policyNodes {
		n := r.net.Node(name)
		r.nodes, r.kernels = append(r.nodes, n), append(r.kernels, policynft.New())
		t.Cleanup(r.kernels[len(r.kernels)-1].Close)
		var frontends []*service.Frontend
		for _, pod := range policyPods {
			frontends = append(frontends, serviceOf(pod, name)...)
		}
		err := n.Do(func() error {
			dp, err := open()
			if err != nil {
				return err
			}
			t.Cleanup(dp.Close)
			_, err = dp.Sync(t.Context(), service.NewTable(service.Settings{Pods: pods}, frontends))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// serviceOf is a pod's Service as a node has it.
func serviceOf(pod api.Name, node string) (all []*service.Frontend) {
	at, addrs, services := podOf(pod)
	for family := range 2 {
		for _, port := range []uint16{80, 81} {
			for _, proto := range []api.Proto{api.TCP, api.UDP} {
				route := &service.Route{Masquerade: service.MasqueradeOffCluster, Endpoints: []service.Endpoint{{Addr: netip.AddrPortFrom(addrs[family], port), Local: at == node}}}
				all = append(all, &service.Frontend{Addr: netip.AddrPortFrom(services[family], port), Proto: proto, Internal: route, External: route,
					Service: api.PortName{Name: pod, Port: portName(port, proto)}})
			}
		}
	}
	return all
}

// run replays a case.
func (r *policyRig) run(one *cyclonus.TestCase, family int) {
	r.Helper()
	c := r.cluster
	c.reset()
	for i, step := range one.Steps {
		for _, a := range step.Actions {
			c.do(a)
		}
		for n := range c.pods {
			r.host(n)
		}
		for i, n := range r.nodes {
			err := n.Do(func() error {
				table, changes := c.compilers[i].Compile()
				_, err := r.kernels[i].Sync(r.Context(), table, changes)
				c.compilers[i].Take()
				return err
			})
			if err != nil {
				r.Fatal(err)
			}
		}
		r.probe(fmt.Sprintf("%s, step %d", one.Description, i+1), c.probes(r.Rand, step, family, api.TCP, api.UDP), family) // the kernel here has no sockets of SCTP
	}
}

// host is a pod's.
func (r *policyRig) host(n api.Name) {
	if r.hosts[n] != nil {
		return
	}
	node, addrs, _ := podOf(n)
	h := r.net.Pod(r.nodes[slices.Index(policyNodes, node)], n.Namespace+"-"+n.Name, addrs[:]...)
	for _, a := range addrs {
		for _, port := range []uint16{80, 81} {
			h.Serve("tcp", netip.AddrPortFrom(a, port))
			h.Serve("udp", netip.AddrPortFrom(a, port))
		}
	}
	r.hosts[n] = h
}

// probe sends the packets of all hosts at once.
func (r *policyRig) probe(what string, all []policyProbe, family int) {
	r.Helper()
	asked, questions := map[api.Name][]policyProbe{}, map[api.Name][]testnet.Question{}
	for i, p := range all {
		_, addrs, services := podOf(p.to)
		targets := []netip.Addr{addrs[family], services[family]}
		if !slices.Contains(policyPods, p.to) {
			targets = targets[:1] // a pod that a case adds has no Service
		} else if !complete {
			targets = targets[i%2:][:1]
		}
		for _, to := range targets {
			q := testnet.Question{Network: "tcp", To: netip.AddrPortFrom(to, p.port), Patience: 20 * time.Second}
			if p.proto == api.UDP {
				q.Network = "udp"
			}
			if r.allowed++; !p.want {
				q.Patience = testnet.Patience
				r.allowed, r.denied = r.allowed-1, r.denied+1
			}
			asked[p.from], questions[p.from] = append(asked[p.from], p), append(questions[p.from], q)
		}
	}
	var wg sync.WaitGroup
	for from, many := range questions {
		wg.Go(func() {
			for i, got := range r.hosts[from].AskMany(many) {
				if p := asked[from][i]; (got.Outcome == testnet.Answered) != p.want {
					r.Errorf("%s: %+v at %v: %v", what, p, many[i].To, got)
				}
			}
		})
	}
	wg.Wait()
}
