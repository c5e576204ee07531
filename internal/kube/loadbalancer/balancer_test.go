package loadbalancer

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// TestConvertBalancer converts each YAML file of testdata/balancer.txtar. The next file in the archive has the expected
// result.
func TestConvertBalancer(t *testing.T) {
	golden(t, "balancer.txtar", func(name, doc string) string {
		class := ""
		if name == "example.com-ours.yaml" {
			class = "example.com/ours"
		}
		var o corev1.Service
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b := ConvertBalancer(&o, class)
		if b == nil {
			return o.Name + ": nobody's\n"
		}
		s := b.Service
		return fmt.Sprintf("%s: created=%d labels=%v wanted=%v families=%v prefer=%v ports=%v key=%q backing=%q pool=%q addrs=%v refused=%q assigned=%v of %q\n  status %+v, old names %v\n",
			s.Name, s.Created, s.Labels, s.Wanted, s.Families, s.PreferDual, s.Ports, s.SharingKey, s.Backing, s.Pool, s.Addrs, s.Refused, s.Assigned, s.AssignedFrom, b.status, b.deprecated)
	})
}

// TestMisspelt: an annotation with MetalLB's prefix and without an effect is named. The keys with an effect are not.
func TestMisspelt(t *testing.T) {
	o := corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.5"}}}
	o.Annotations = map[string]string{
		"metallb.io/adress-pool": "front", "metallb.io/address-pool": "front", "metallb.io/loadBalancerIPs": "192.0.2.1",
		"metallb.io/allow-shared-ip": "x", "metallb.io/ip-allocated-from-pool": "front", "example.com/adress-pool": "",
	}
	const want = "annotation metallb.io/adress-pool has no effect on a Service [did you mean metallb.io/address-pool?]"
	if b := ConvertBalancer(&o, ""); !slices.Equal(b.unknown, []string{want}) {
		t.Errorf("got %q, want %q", b.unknown, want)
	}
}

// TestSharedPods: under externalTrafficPolicy Local, two Services share an address only if they have the same pods.
// Equal labels in another namespace do not count, and neither does a Service without a selector. Otherwise a tenant
// could take the address from all nodes where it has no endpoint.
func TestSharedPods(t *testing.T) {
	backing := func(namespace, name string, selector map[string]string, policy corev1.ServiceExternalTrafficPolicy) string {
		o := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.5"}, Selector: selector, ExternalTrafficPolicy: policy,
		}}
		return ConvertBalancer(&o, "").Backing
	}
	const local = corev1.ServiceExternalTrafficPolicyLocal
	web := map[string]string{"app": "web"}
	mine := backing("shop", "web", web, local)
	if backing("shop", "api", web, local) != mine {
		t.Error("two Services of the same pods cannot share")
	}
	for what, other := range map[string]string{
		"of another namespace": backing("evil", "web", web, local), "of other pods": backing("shop", "web", map[string]string{"app": "api"}, local),
		"under Cluster": backing("shop", "web", web, corev1.ServiceExternalTrafficPolicyCluster), "without a selector": backing("shop", "web", nil, local),
	} {
		if other == mine {
			t.Errorf("a Service %s can share", what)
		}
	}
	if none := backing("shop", "web", nil, local); none == backing("shop", "api", nil, local) || none == backing("shop", "api", nil, "") {
		t.Error("a Service without a selector, which may have any endpoints, can share under Local")
	}
}

// TestReadRequestIsBounded: even a long text costs an event little.
func TestReadRequestIsBounded(t *testing.T) {
	o := corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.5"}}}
	o.Annotations = map[string]string{"metallb.io/loadBalancerIPs": strings.Repeat("x", 1<<18), "metallb.io/address-pool": strings.Repeat("y", 1<<18)}
	if b := ConvertBalancer(&o, ""); len(b.Refused) > 2*requestLimit || len(b.Pool) > requestLimit {
		t.Errorf("%d bytes of what is wrong, a pool's name of %d", len(b.Refused), len(b.Pool))
	}
}

// TestHosts: ServiceLB uses the ready nodes that speakers may use.
func TestHosts(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		usable bool
	}{
		"ready":            {func(*corev1.Node) {}, true},
		"not ready":        {func(o *corev1.Node) { o.Status.Conditions = nil }, false},
		"label":            {func(o *corev1.Node) { o.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""} }, false},
		"label, false":     {func(o *corev1.Node) { o.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "0"} }, true},
		"being deleted":    {func(o *corev1.Node) { o.DeletionTimestamp = &metav1.Time{} }, false},
		"about to be gone": {func(o *corev1.Node) { o.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }, false},
		"without a network": {func(o *corev1.Node) {
			o.Status.Conditions = append(o.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue})
		}, false},
	} {
		o := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}}
		test.change(o)
		if got := convertHost(o).usable; got != test.usable {
			t.Errorf("%s: usable: %v, want %v", name, got, test.usable)
		}
	}
}

// TestIngress: a written status has the mode of its balancer, and is read back unchanged.
func TestIngress(t *testing.T) {
	for _, mode := range []corev1.LoadBalancerIPMode{IPModeVIP, IPModeProxy} {
		want := balancerStatus{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, Mode: mode, Pool: "front"}
		o := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
		o.Status.LoadBalancer.Ingress = want.ingress()
		o.Annotations = map[string]string{"metallb.io/ip-allocated-from-pool": "front"}
		if got := ConvertBalancer(o, "").status; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v is read as %+v", mode, want, got)
		}
		o.Status.LoadBalancer.Ingress[1].IPMode = nil
		if got := ConvertBalancer(o, "").status; mode == IPModeProxy && got.Mode == mode {
			t.Errorf("%+v: an address of another mode is there, which is to go", got)
		}
	}
}

// TestCheckedPorts: a balancer's port counts only if all addresses have it without an error. A Service with several
// protocols gets no error from Fairway.
func TestCheckedPorts(t *testing.T) {
	port := func(n int32, proto corev1.Protocol, failed ...string) corev1.PortStatus {
		p := corev1.PortStatus{Port: n, Protocol: proto}
		if len(failed) > 0 {
			p.Error = &failed[0]
		}
		return p
	}
	for name, test := range map[string]struct {
		addrs [][]corev1.PortStatus
		want  string
	}{
		"none":             {nil, "[]"},
		"two protocols":    {[][]corev1.PortStatus{{port(80, "TCP"), port(80, "UDP")}}, "[{TCP 80} {UDP 80}]"},
		"one has an error": {[][]corev1.PortStatus{{port(80, "TCP"), port(80, "UDP", corev1.LoadBalancerPortsErrorReason)}}, "[{TCP 80}]"},
		"on one address":   {[][]corev1.PortStatus{{port(80, "TCP"), port(81, "TCP")}, {port(81, "TCP", "PortTaken"), port(80, "TCP")}}, "[{TCP 80}]"},
		"no such protocol": {[][]corev1.PortStatus{{port(80, "QUIC"), port(0, "TCP"), port(80, "SCTP")}}, "[{SCTP 80}]"},
	} {
		var ingress []corev1.LoadBalancerIngress
		for _, ports := range test.addrs {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: "192.0.2.1", Ports: ports})
		}
		if got := fmt.Sprint(kube.CheckedPorts(ingress)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	three := balancerStatus{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Mode: IPModeVIP, Ports: []service.CheckedPort{{Proto: api.TCP, Port: 53}, {Proto: api.UDP, Port: 53}, {Proto: api.SCTP, Port: 53}}}
	for _, p := range three.ingress()[0].Ports {
		if p.Error != nil {
			t.Errorf("%v", p)
		}
	}
}
