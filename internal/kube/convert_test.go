package kube

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func messages(ps []api.Problem) string {
	var out []string
	for _, p := range ps {
		out = append(out, p.Reason+": "+p.Message)
	}
	return strings.Join(out, "\n")
}

func TestConvertService(t *testing.T) {
	http := []service.Port{{Name: "http", Proto: api.TCP, Port: 80}}
	tests := map[string]struct {
		spec string
		want service.Service
	}{
		"dual stack": {
			"{clusterIPs: [10.96.0.1, 'fd00::1'], ports: [{name: http, port: 80}]}",
			service.Service{ClusterIPs: ips("10.96.0.1", "fd00::1"), Ports: http},
		},
		"the old field alone": {
			"{clusterIP: 10.96.0.1, ports: [{name: http, port: 80, protocol: TCP}]}",
			service.Service{ClusterIPs: ips("10.96.0.1"), Ports: http},
		},
		"ports and policies": {
			`{clusterIP: 10.96.0.1, type: NodePort, externalTrafficPolicy: Local, internalTrafficPolicy: Local,
			  ports: [{port: 53, protocol: UDP, nodePort: 30053}, {name: s, port: 99, protocol: SCTP}]}`,
			service.Service{
				ClusterIPs: ips("10.96.0.1"), InternalLocal: true, ExternalLocal: true,
				Ports: []service.Port{{Proto: api.UDP, Port: 53, NodePort: 30053}, {Name: "s", Proto: api.SCTP, Port: 99}},
			},
		},
		"headless":         {"{clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}", service.Service{}},
		"external name":    {"{type: ExternalName, externalName: a.b, clusterIP: 10.96.0.1, ports: [{port: 80}]}", service.Service{}},
		"not yet given":    {"{ports: [{port: 80}]}", service.Service{}},
		"as old as Docker": {"{clusterIP: 010.096.0.01}", service.Service{ClusterIPs: ips("10.96.0.1"), Ports: []service.Port{}}},
		"mapped":           {"{clusterIP: '::ffff:10.96.0.1'}", service.Service{ClusterIPs: ips("10.96.0.1"), Ports: []service.Port{}}},
		"bad addresses": {
			"{clusterIPs: [nowhere, 10.96.0.1, 127.0.0.1, 10.96.0.2, '::', 'ff02::1', 'fe80::1%eth0']}",
			service.Service{ClusterIPs: ips("10.96.0.1"), Ports: []service.Port{}, Problems: []api.Problem{
				{Reason: "InvalidAddress", Message: `clusterIP "nowhere" is not an IP address; it is left out`},
				{Reason: "InvalidAddress", Message: `clusterIP "127.0.0.1" cannot belong to a Service; it is left out`},
				{Reason: "InvalidAddress", Message: `clusterIP "10.96.0.2" is the second of its family; it is left out`},
				{Reason: "InvalidAddress", Message: `clusterIP "::" cannot belong to a Service; it is left out`},
				{Reason: "InvalidAddress", Message: `clusterIP "ff02::1" cannot belong to a Service; it is left out`},
				{Reason: "InvalidAddress", Message: `clusterIP "fe80::1%eth0" is not an IP address; it is left out`},
			}},
		},
		"bad ports": {
			`{clusterIP: 10.96.0.1, ports: [{name: a, port: 0}, {name: b, port: 65536}, {name: c, port: 1, protocol: ICMP},
			  {name: d, port: 2, nodePort: -1}, {name: http, port: 80}]}`,
			service.Service{
				ClusterIPs: ips("10.96.0.1"),
				Ports:      append([]service.Port{{Name: "d", Proto: api.TCP, Port: 2}}, http...),
				Problems: []api.Problem{
					{Reason: "InvalidPort", Message: `port "a" has the number 0, which is not in 1-65535; it is left out`},
					{Reason: "InvalidPort", Message: `port "b" has the number 65536, which is not in 1-65535; it is left out`},
					{Reason: "InvalidProtocol", Message: `port "c": protocol "ICMP" is not TCP, UDP or SCTP; it is left out`},
					{Reason: "InvalidPort", Message: `port "d" has the nodePort -1, which is not in 1-65535; the port gets no nodePort`},
				},
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", CreationTimestamp: metav1.NewTime(time.Unix(1234, 0))},
				Spec:       *parse[corev1.ServiceSpec](t, test.spec),
			}
			test.want.Name, test.want.Created = api.Name{Namespace: "ns", Name: "svc"}, 1234
			got := ConvertService(o)
			if !reflect.DeepEqual(got, &test.want) {
				t.Errorf("got  %+v\n%s\nwant %+v\n%s", got, messages(got.Problems), test.want, messages(test.want.Problems))
			}
		})
	}
}

type sliceCase struct {
	text string
	want service.Slice
}

func sliceCases() map[string]sliceCase {
	ready := func(addr string) service.SliceEndpoint {
		return service.SliceEndpoint{Addr: netip.MustParseAddr(addr), Ready: true, Serving: true}
	}
	return map[string]sliceCase{
		"conditions": {
			`{addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [
			  {addresses: [10.0.0.1]},
			  {addresses: [10.0.0.2], conditions: {ready: false}},
			  {addresses: [10.0.0.3], conditions: {ready: false, serving: true, terminating: true}},
			  {addresses: [10.0.0.4], conditions: {ready: true, serving: false, terminating: false}}]}`,
			service.Slice{
				Ports: []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}},
				Endpoints: []service.SliceEndpoint{
					ready("10.0.0.1"),
					{Addr: netip.MustParseAddr("10.0.0.2"), Serving: true},
					{Addr: netip.MustParseAddr("10.0.0.3"), Serving: true, Terminating: true},
					{Addr: netip.MustParseAddr("10.0.0.4"), Ready: true},
				},
			},
		},
		"place and hints": {
			`{addressType: IPv6, endpoints: [{addresses: ['fd00::1', 'fd00::2'], nodeName: n1, zone: z1,
			  hints: {forZones: [{name: z1}, {name: z2}], forNodes: [{name: n1}]}}]}`,
			service.Slice{Ports: []service.SlicePort{}, Endpoints: []service.SliceEndpoint{{
				Addr: netip.MustParseAddr("fd00::1"), Node: "n1", Ready: true, Serving: true,
				ZoneHints: []string{"z1", "z2"}, NodeHints: []string{"n1"},
			}}},
		},
		"ports without number are all ports": {
			`{addressType: IPv4, ports: [{name: a}, {name: b, port: 0}, {port: 53, protocol: UDP}], endpoints: []}`,
			service.Slice{Ports: []service.SlicePort{{Proto: api.UDP, Port: 53}}, Endpoints: []service.SliceEndpoint{}},
		},
		"names": {
			`{addressType: FQDN, ports: [{port: 80}], endpoints: [{addresses: [example.com]}]}`, service.Slice{},
		},
		"old spellings": {
			`{addressType: IPv4, endpoints: [{addresses: ['::ffff:10.0.0.1']}, {addresses: [010.0.0.02]}]}`,
			service.Slice{Ports: []service.SlicePort{}, Endpoints: []service.SliceEndpoint{ready("10.0.0.1"), ready("10.0.0.2")}},
		},
		"nonsense": {
			`{addressType: IPv4, ports: [{name: a, port: 70000}, {name: b, port: 1, protocol: X}], endpoints: [
			  {addresses: []}, {addresses: [here, 10.0.0.9]}, {addresses: ['fd00::1']}, {addresses: [169.254.169.254]}, {addresses: [10.0.0.1]}]}`,
			service.Slice{
				Ports: []service.SlicePort{}, Endpoints: []service.SliceEndpoint{ready("10.0.0.1")},
				Problems: []api.Problem{
					{Reason: "InvalidPort", Message: `EndpointSlice s-1: port "a" has the number 70000, which is not in 1-65535; it is left out`},
					{Reason: "InvalidProtocol", Message: `EndpointSlice s-1: port "b": protocol "X" is not TCP, UDP or SCTP; it is left out`},
					{Reason: "InvalidAddress", Message: `EndpointSlice s-1: an endpoint has no address; it is left out`},
					{Reason: "InvalidAddress", Message: `EndpointSlice s-1: endpoint "here" is not an IP address; it is left out`},
					{Reason: "InvalidAddress", Message: `EndpointSlice s-1: endpoint "fd00::1" is not of the addressType IPv4; it is left out`},
					{Reason: "InvalidAddress", Message: `EndpointSlice s-1: endpoint "169.254.169.254" cannot belong to a pod; it is left out`},
				},
			},
		},
		"no type": {
			`{addressType: IPX, endpoints: [{addresses: [10.0.0.1]}]}`,
			service.Slice{Ports: []service.SlicePort{}, Endpoints: []service.SliceEndpoint{}, Problems: []api.Problem{
				{Reason: "InvalidAddress", Message: `EndpointSlice s-1: endpoint "10.0.0.1": the addressType "IPX" is none of IPv4, IPv6, FQDN; it is left out`},
			}},
		},
	}
}

func TestConvertSlice(t *testing.T) {
	for name, test := range sliceCases() {
		t.Run(name, func(t *testing.T) {
			o := parse[discoveryv1.EndpointSlice](t, test.text)
			o.Namespace, o.Name, o.Labels = "ns", "s-1", map[string]string{discoveryv1.LabelServiceName: "svc"}
			test.want.Name = api.Name{Namespace: "ns", Name: "s-1"}
			test.want.Service = api.Name{Namespace: "ns", Name: "svc"}
			got := ConvertSlice(o)
			if !reflect.DeepEqual(got, &test.want) {
				t.Errorf("got  %+v\n%s\nwant %+v\n%s", got, messages(got.Problems), test.want, messages(test.want.Problems))
			}
		})
	}
}

func TestConvertNode(t *testing.T) {
	o := parse[corev1.Node](t, `
metadata: {name: n1, creationTimestamp: '2026-01-02T03:04:05Z', labels: {topology.kubernetes.io/zone: z1}}
spec: {podCIDRs: [10.244.1.7/24, 'fd00:1::/64', nonsense]}
status:
  addresses:
  - {type: Hostname, address: n1}
  - {type: ExternalIP, address: 203.0.113.7}
  - {type: InternalIP, address: 192.168.1.7}
  - {type: InternalIP, address: 'fd00::7'}
  - {type: InternalIP, address: '?'}
`)
	want := Node{
		Name: "n1", Zone: "z1", Eligible: true, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Addrs:    ips("192.168.1.7", "fd00::7", "203.0.113.7"),
		Internal: 2,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		Problems: []api.Problem{
			{Reason: "InvalidAddress", Message: `InternalIP "?" is not an IP address; it is left out`},
			{Reason: "InvalidAddress", Message: `podCIDR "nonsense" is not an address range; it is left out`},
		},
	}
	if got := ConvertNode(o); !got.Equal(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := want.Primary(); !slices.Equal(got, ips("192.168.1.7", "fd00::7")) {
		t.Errorf("Primary() = %v", got)
	}

	o.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
	if ConvertNode(o).Eligible {
		t.Error("a node that the autoscaler will delete is eligible")
	}
	o.Spec.Taints, o.DeletionTimestamp = nil, new(metav1.Now())
	if ConvertNode(o).Eligible {
		t.Error("a node that is being deleted is eligible")
	}
	if got := ConvertNode(&corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24"}}); len(got.PodCIDRs) != 1 {
		t.Errorf("the old field podCIDR is not read: %+v", got)
	}
}

// checkService checks the properties that every consumer relies on, for any object.
func checkService(t *testing.T, svc *service.Service) {
	t.Helper()
	for i, ip := range svc.ClusterIPs {
		if !ip.IsValid() || ip.Is4In6() || ip.IsUnspecified() || ip.Zone() != "" || i > 0 && ip.Is4() == svc.ClusterIPs[0].Is4() || i > 1 {
			t.Errorf("clusterIPs %v", svc.ClusterIPs)
		}
	}
	for _, p := range svc.Ports {
		if p.Port == 0 || p.Proto == 0 {
			t.Errorf("port %+v", p)
		}
	}
	checkProblems(t, svc.Problems)
	service.Compile(svc, nil, service.Facts{})
}

func checkSlice(t *testing.T, s *service.Slice) {
	t.Helper()
	for _, e := range s.Endpoints {
		if !e.Addr.IsValid() || e.Addr.Is4In6() || e.Addr.IsLoopback() || e.Addr.Zone() != "" {
			t.Errorf("endpoint %+v", e)
		}
	}
	for _, p := range s.Ports {
		if p.Port == 0 || p.Proto == 0 {
			t.Errorf("port %+v", p)
		}
	}
	checkProblems(t, s.Problems)
}

func checkNode(t *testing.T, n Node) {
	t.Helper()
	for _, a := range n.Addrs {
		if !a.IsValid() || a.Is4In6() {
			t.Errorf("address %v", a)
		}
	}
	for _, p := range n.PodCIDRs {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			t.Errorf("podCIDR %v", p)
		}
	}
	checkProblems(t, n.Problems)
}

func checkProblems(t *testing.T, ps []api.Problem) {
	t.Helper()
	for _, p := range ps {
		if p.Reason == "" || p.Message == "" {
			t.Errorf("problem %+v says nothing", p)
		}
	}
}

// FuzzConvert reads any JSON as each kind.
func FuzzConvert(f *testing.F) {
	whole := realSlice(3)
	whole.ManagedFields = nil // the benchmark's managed fields are not valid JSON
	for _, o := range []any{apiService("web", "10.96.0.1"), apiSlice("s", "web", "10.0.0.1"), apiNode("n", "z"), whole} {
		text, err := json.Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"spec":{"clusterIPs":["::ffff:1.2.3.4","1.2.3.4"],"podCIDRs":["::ffff:10.0.0.0/104","10.0.0.0/33","::/129"]}}`))
	f.Add([]byte(`{"addressType":"IPv4","ports":[{"port":null},{"port":-1}],"endpoints":[{"addresses":null,"hints":{}},{"addresses":["1.2.3.4/5"]}]}`))
	f.Add([]byte(`{"metadata":{"creationTimestamp":"0001-01-01T00:00:00Z"},"status":{"addresses":[{"type":"InternalIP","address":"fe80::1%eth0"}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		svc, slice, node := new(corev1.Service), new(discoveryv1.EndpointSlice), new(corev1.Node)
		if json.Unmarshal(text, svc) == nil {
			checkService(t, ConvertService(svc))
			_ = convertEdgeService(svc, "")
		}
		if json.Unmarshal(text, slice) == nil {
			checkSlice(t, ConvertSlice(slice))
		}
		if json.Unmarshal(text, node) == nil {
			checkNode(t, ConvertNode(node))
			_ = convertEdgeNode(node)
		}
	})
}

// whole contains all objects of one Service.
type whole struct {
	Service     corev1.Service
	Slices      []discoveryv1.EndpointSlice
	Pods        []corev1.Pod
	Unsupported service.Algorithms
}

// checkWhole converts objects from the wire into a table and reads the table back. It checks the properties that every
// datapath relies on.
func checkWhole(t *testing.T, w *whole) *service.Table {
	t.Helper()
	svc := ConvertService(&w.Service)
	checkService(t, svc)
	find := weightsOfPods(t, w.Pods)
	var eps []*service.Slice
	for i := range w.Slices {
		s := ConvertSlice(&w.Slices[i])
		ReadWeights(&w.Slices[i], s)
		checkSlice(t, s)
		s, bad := withWeights(s, find, maxWeightProblems)
		checkProblems(t, bad)
		checkProblems(t, s.Problems)
		checkWeights(t, w.Slices[i], s)
		eps = append(eps, s)
	}
	b := service.NewBuilder()
	b.Set(service.Compile(svc, eps, service.Facts{Node: service.Node{Name: "n", Zone: "z", Unsupported: w.Unsupported &^ 1}}))
	table := b.Table(service.Settings{})
	for f := range table.Frontends() {
		checkFrontend(t, f)
		if f.Balance != service.Random && w.Unsupported.Has(f.Balance) {
			t.Errorf("%v is balanced by %v, which the node lacks", f.Key(), f.Balance)
		}
	}
	for e := range table.Entries() {
		checkProblems(t, e.Problems)
	}
	for _, flow := range slices.Concat(flow.Stale(&service.Table{}, table), flow.Stale(table, &service.Table{})) {
		if flow.Proto != api.UDP && (flow.Proto != api.TCP || !flow.Endpoint.IsValid() && !flow.OnlyUnanswered) {
			t.Errorf("flow %+v", flow)
		}
	}
	b.Delete(svc.Name)
	if services, _ := b.Table(service.Settings{}).Len(); services != 0 {
		t.Errorf("%d Services are left", services)
	}
	return table
}

func checkFrontend(t *testing.T, f *service.Frontend) {
	t.Helper()
	for _, r := range []*service.Route{f.Internal, f.External} {
		if (r.Action == service.Forward) != (len(r.Endpoints) > 0) {
			t.Errorf("%v: %v with %d endpoints", f.Key(), r.Action, len(r.Endpoints))
		}
		unequal := false
		for i, e := range r.Endpoints {
			if i > 0 && r.Endpoints[i-1].Addr.Compare(e.Addr) >= 0 || e.Addr.Addr().Is4() != f.Addr.Addr().Is4() || e.Addr.Port() == 0 || e.Weight > maxWeight {
				t.Errorf("%v: endpoints %v", f.Key(), r.Endpoints)
			}
			if (e.Weight == 0) != (r.Endpoints[0].Weight == 0) {
				t.Errorf("%v: some have weights: %v", f.Key(), r.Endpoints)
			}
			unequal = unequal || e.Weight != r.Endpoints[0].Weight
		}
		if !unequal && len(r.Endpoints) > 0 && r.Endpoints[0].Weight != 0 {
			t.Errorf("%v: equal weights %v", f.Key(), r.Endpoints)
		}
	}
}

// FuzzWhole reads any JSON as a Service with all its objects.
func FuzzWhole(f *testing.F) {
	for _, w := range []whole{
		{Service: *weighted("web", "10.96.0.1", "web"), Slices: []discoveryv1.EndpointSlice{*apiSlice("a", "web", "10.0.0.1", "10.0.0.2")}, Pods: []corev1.Pod{*apiPod("p", "web", "10.0.0.1", "7")}},
		{Service: *apiService("web", "10.96.0.1"), Slices: []discoveryv1.EndpointSlice{*apiSlice("a", "web", "10.0.0.1"), *apiSlice("b", "web", "10.0.0.1")}, Unsupported: 6},
	} {
		w.Service.Annotations = map[string]string{annotationBalance: "rr", AnnotationWeights: "true", annotationClose: "unready"}
		text, err := json.Marshal(w)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var w whole
		if json.Unmarshal(text, &w) == nil {
			checkWhole(t, &w)
		}
	})
}

// TestRandomObjects fills whole objects with random values. Some texts are an address or an annotation.
func TestRandomObjects(t *testing.T) {
	seed := testnet.Seed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	words := []string{
		"10.0.0.1", "10.0.0.2", "fd00::1", "::ffff:1.2.3.4", "None", "", "0.0.0.0", "10.0.0.0/8", "fd00::/200", "TCP", "UDP", "IPv4", "IPv6", "x",
		annotationBalance, AnnotationWeights, annotationWeight, annotationClose, kubeRouterBalance, "rr", "true", "true", "3", "0", "never", "unready",
	}
	word := func() string { return words[rnd.IntN(len(words))] }
	fill := randfill.NewWithSeed(int64(seed)).NilChance(0.2).NumElements(0, 4).Funcs(
		func(s *string, _ randfill.Continue) { *s = word() },
		func(s *discoveryv1.AddressType, _ randfill.Continue) { *s = discoveryv1.AddressType(word()) },
		func(s *corev1.Protocol, _ randfill.Continue) { *s = corev1.Protocol(word()) },
		func(s *corev1.ServiceType, _ randfill.Continue) { *s = corev1.ServiceType(word()) },
		func(n *int32, _ randfill.Continue) { *n = []int32{80, 80, 8080, 30080, 0, -1, 70000}[rnd.IntN(7)] },
		func(s *corev1.NodeAddressType, _ randfill.Continue) { *s = corev1.NodeInternalIP },
		func(f *metav1.FieldsV1, _ randfill.Continue) {},
		func(p *corev1.PodSpec, _ randfill.Continue) {}, // large, and not read
	)
	var seen seen
	for range 2000 {
		w, node := new(whole), new(corev1.Node)
		fill.Fill(w)
		fill.Fill(node)
		if rnd.IntN(2) == 0 {
			mend(w, rnd)
		}
		seen.add(checkWhole(t, w))
		checkNode(t, ConvertNode(node))
	}
	if seen.endpoints == 0 || seen.weights == 0 || seen.balanced == 0 || seen.closing == 0 {
		t.Errorf("the objects were too senseless to prove anything: %+v", seen)
	}
	t.Logf("%+v", seen)
}

// mend adds the fields without which a random Service has no endpoints.
func mend(w *whole, rnd *rand.Rand) {
	pick := func(words ...string) string { return words[rnd.IntN(len(words))] }
	addr := func() string { return pick("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.04") }
	w.Service.Spec.Type, w.Service.Spec.ClusterIPs = corev1.ServiceTypeNodePort, []string{"10.96.0.1", "fd00::1"}
	w.Service.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80, NodePort: 30080}, {Name: "b", Port: 53, Protocol: "UDP"}}
	w.Service.Annotations = map[string]string{
		annotationBalance: pick("rr", "maglev", "lc", "?"), AnnotationWeights: pick("true", "false"), annotationClose: pick("gone", "unready", "never", "?"),
	}
	for i := range w.Slices {
		s := &w.Slices[i]
		s.AddressType = discoveryv1.AddressTypeIPv4
		s.Ports = []discoveryv1.EndpointPort{{Name: new("a"), Port: new(int32(8080))}, {Name: new("b"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(53))}}
		for j := range s.Endpoints {
			s.Endpoints[j].Addresses = []string{addr()}
			s.Endpoints[j].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pick("p", "q", "")}
		}
	}
	for i := range w.Pods {
		w.Pods[i].Name = pick("p", "q")
		w.Pods[i].Annotations = map[string]string{annotationWeight: pick("0", "1", "2", "6", "300", "?")}
	}
}

// seen counts the results of random objects.
type seen struct{ frontends, endpoints, weights, balanced, closing int }

func (s *seen) add(t *service.Table) {
	for f := range t.Frontends() {
		s.frontends++
		s.endpoints += len(f.External.Endpoints)
		for _, e := range f.External.Endpoints {
			s.weights += int(min(e.Weight, 1))
		}
		s.balanced += min(int(f.Balance), 1)
		s.closing += min(int(f.Termination), 1)
	}
}
