package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/test/peers/apiserver"
)

const (
	services             = 16 // of a seed
	pods                 = 8  // half of them on node-1
	services4, services6 = "10.96.0.0/12", "fd00:10:96::/108"
)

// objects has a cluster's objects by kind and name.
type objects map[string]apiserver.Object

func (o objects) add(x apiserver.Object) { o[fmt.Sprintf("%T %s", x, x.GetName())] = x }

// A generator makes objects that the API server would accept. It combines their fields far more freely than people do.
type generator struct {
	*rand.Rand
	zones    []string // "here" first
	nodePort int32
}

func newGenerator(seed uint64) *generator {
	return &generator{
		Rand:     rand.New(rand.NewPCG(seed, 0)),
		zones:    []string{fmt.Sprintf("here-%d", seed), fmt.Sprintf("there-%d", seed)},
		nodePort: 30000,
	}
}

func (g *generator) one(n int) bool        { return g.IntN(n) == 0 }
func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

// cluster returns all objects of a seed.
func (g *generator) cluster() objects {
	all := objects{}
	for i := range services {
		svc := g.service(i)
		all.add(svc)
		g.slices(svc, all)
	}
	return all
}

// change replaces some objects by new ones.
func (g *generator) change(all objects) objects {
	all = mapsClone(all)
	g.nodePort += 500 // no port that is still another's
	for range 5 {
		i := g.IntN(services)
		svc := g.service(i)
		if g.one(2) { // its endpoints change alone
			svc = all[fmt.Sprintf("%T %s", svc, svc.Name)].(*corev1.Service)
		}
		for k, o := range all {
			if o.GetLabels()[discoveryv1.LabelServiceName] == svc.Name {
				delete(all, k)
			}
		}
		all.add(svc)
		g.slices(svc, all)
	}
	return all
}

func mapsClone(m objects) objects {
	out := objects{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// servicePorts has the possible ports of Services. The slices have the ports of their endpoints.
var servicePorts = []corev1.ServicePort{
	{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80},
	{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
	{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53},
	{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443},
	{Name: "sig", Protocol: corev1.ProtocolSCTP, Port: 7000},
}

// targets has the ports of pods, two for each port name. No target is a Service's port: kube-proxy's filters see
// packets after translation. They would take packets to an endpoint on a node for packets to a load balancer with the
// node's address and that port.
var targets = map[string][2]int32{
	"http": {8080, 8081}, "dns": {5353, 5354}, "dns-tcp": {5353, 5354}, "https": {8443, 8444}, "sig": {7100, 7101}, "": {8080, 8081},
}

// cluster addresses of Service i.
func clusterIP(i int, is4 bool) string {
	if is4 {
		return fmt.Sprintf("10.96.0.%d", 10+i)
	}
	return fmt.Sprintf("fd00:10:96::%x", 10+i)
}

func (g *generator) service(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}}
	s := &svc.Spec
	s.Type = pick(g, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer)
	g.addresses(svc, i)
	s.Ports = g.ports(s.Type, i)
	s.InternalTrafficPolicy = pick(g, nil, new(corev1.ServiceInternalTrafficPolicyCluster), new(corev1.ServiceInternalTrafficPolicyLocal))
	if s.Type != corev1.ServiceTypeClusterIP || len(s.ExternalIPs) > 0 {
		s.ExternalTrafficPolicy = pick(g, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	}
	s.PublishNotReadyAddresses = g.one(8)
	if g.one(5) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(pick(g, int32(10800), int32(600)))}}
	}
	if s.Type == corev1.ServiceTypeLoadBalancer && s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		g.nodePort++
		s.HealthCheckNodePort = g.nodePort
	}
	switch g.IntN(20) {
	case 0: // headless
		*s = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}, Ports: s.Ports}
		for i := range s.Ports {
			s.Ports[i].NodePort = 0
		}
		svc.Status = corev1.ServiceStatus{}
	case 1:
		*s = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
		svc.Status = corev1.ServiceStatus{}
	case 2:
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	return svc
}

// ports gives two Services that share addresses different ports.
func (g *generator) ports(t corev1.ServiceType, i int) []corev1.ServicePort {
	all := slices.Clone(servicePorts)
	g.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:1+g.IntN(3)]
	if len(all) == 1 && g.one(3) && all[0].Protocol == corev1.ProtocolTCP {
		all[0].Name = ""
	}
	dns := int32(0) // one NodePort for UDP and TCP
	for k := range all {
		p := &all[k]
		p.Port += int32(i%2) * 1000
		if t != corev1.ServiceTypeNodePort && (t != corev1.ServiceTypeLoadBalancer || g.one(4)) {
			continue
		}
		g.nodePort++
		p.NodePort = g.nodePort
		if p.Port%1000 == 53 {
			if dns == 0 {
				dns = g.nodePort
			}
			p.NodePort = dns
		}
	}
	return all
}

// addresses sets the ClusterIPs of a Service and its addresses for outside clients. Two Services may share the latter,
// with different ports. If both claim an address and port, the programs may choose differently, as documented.
func (g *generator) addresses(svc *corev1.Service, i int) {
	four, six := clusterIP(i, true), clusterIP(i, false)
	svc.Spec.ClusterIPs = pick(g, []string{four}, []string{six}, []string{four, six}, []string{six, four})
	svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	for _, ip := range svc.Spec.ClusterIPs { // kube-proxy goes by these
		family := corev1.IPv6Protocol
		if ip == four {
			family = corev1.IPv4Protocol
		}
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, family)
	}
	ext := func(n int, is4 bool) string {
		if is4 {
			return fmt.Sprintf("203.0.113.%d", 10*(i/2)+n)
		}
		return fmt.Sprintf("2001:db8:9::%x", 10*(i/2)+n)
	}
	w := &scenario.World
	if g.one(6) && i < 2 { // addresses of the node itself
		svc.Spec.ExternalIPs = []string{w.Extra.Addr(g.one(2)).String()}
	}
	if g.one(3) {
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, pick(g, []string{ext(1, true)}, []string{ext(1, false)}, []string{ext(1, true), ext(5, true), ext(1, false)})...)
	}
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	for n := range g.IntN(3) {
		in := corev1.LoadBalancerIngress{IP: ext(5+n, g.one(2))}
		if i < 2 && g.one(2) { // of the node, which its Node object does not name: those are refused
			in.IP = w.Extra.Addr(g.one(2)).String()
		}
		in.IPMode = pick(g, nil, new(corev1.LoadBalancerIPModeVIP), new(corev1.LoadBalancerIPModeProxy))
		if g.one(8) {
			in = corev1.LoadBalancerIngress{Hostname: "lb.example.com"}
		}
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, in)
	}
	if g.one(2) {
		ranges := []string{
			"198.51.100.0/24", " 198.51.100.10/32", "172.18.0.0/16", "172.18.0.12/32", "10.244.0.0/16", "10.244.1.200/32", "192.0.2.0/24",
			"2001:db8:51::/64", "2001:db8:51::10/128 ", "fd00:172:18::/64", "fd00:10:244::/48", "203.0.113.0/24",
		}
		for range 1 + g.IntN(3) {
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, pick(g, ranges...))
		}
		if g.one(10) {
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, pick(g, "0.0.0.0/0", "::/0"))
		}
	}
}

// slices adds a Service's EndpointSlices, usually of both families.
func (g *generator) slices(svc *corev1.Service, all objects) {
	used := map[string]bool{} // not terminating: two of those are undefined in kube-proxy
	hints := g.IntN(3)        // whether endpoints have none, some, or all of them
	for n := range g.IntN(5) {
		is4 := n%2 == 0
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%d", svc.Name, n),
				Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv6,
		}
		if is4 {
			s.AddressType = discoveryv1.AddressTypeIPv4
		}
		if svc.Spec.ClusterIP == corev1.ClusterIPNone {
			s.Labels[corev1.IsHeadlessService] = ""
		}
		for _, p := range svc.Spec.Ports {
			if g.one(12) {
				continue
			}
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(targets[p.Name][n/2])})
		}
		for range g.IntN(6) {
			g.endpoint(s, n/2, is4, hints, used)
		}
		all.add(s)
	}
}

// place is a pod or a node that may be an endpoint.
func endpointAddr(i int, is4 bool) (netip.Addr, string) {
	w := &scenario.World
	switch i {
	case pods:
		return w.Node.Addr(is4), "node-1"
	case pods + 1:
		return w.Peer.Addr(is4), "node-2"
	}
	return scenario.PodAddr(i, is4)
}

func (g *generator) endpoint(s *discoveryv1.EndpointSlice, variant int, is4 bool, hints int, used map[string]bool) {
	i := g.IntN(pods)
	if g.one(12) {
		i = pods + g.IntN(2) // on the host's network
	}
	addr, node := endpointAddr(i, is4)
	e := discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &node, Zone: new(pick(g, g.zones...))}
	if node == "node-2" && g.one(6) {
		e.NodeName = pick(g, nil, new("node-9"))
	}
	condition := func() *bool { return pick(g, nil, new(true), new(true), new(false)) }
	e.Conditions.Ready, e.Conditions.Serving = condition(), condition()
	if g.one(3) {
		e.Conditions.Terminating = new(true)
		if !g.one(5) { // ready and terminating only with publishNotReadyAddresses
			e.Conditions.Ready = new(false)
		}
	}
	// Of two endpoints with one address and equal ports, the one that is not terminating wins.
	key := fmt.Sprint(addr, variant)
	if e.Conditions.Terminating == nil {
		if used[key] {
			return
		}
		used[key] = true
	} else if used[key+"t"] {
		return
	} else {
		used[key+"t"] = true
	}
	if hints == 2 || hints == 1 && g.one(2) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: pick(g, g.zones...)}}}
		if g.one(2) {
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: pick(g, "node-1", "node-2")}}
		}
	}
	s.Endpoints = append(s.Endpoints, e)
}
