package loadbalancer

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

// MetalLB's annotations of Services, with the current and the old prefix.
const (
	metallbPrefix           = "metallb.io/"
	metallbDeprecatedPrefix = "metallb.universe.tf/"
	annotationPool          = "address-pool"
	annotationAddrs         = "loadBalancerIPs"
	annotationShare         = "allow-shared-ip"
	annotationFrom          = "ip-allocated-from-pool"
	reasonDeprecated        = "deprecatedAnnotation"
	balancerOwner           = "fairway-addresses" // the field manager of the controller
	requestLimit            = 256                 // bytes of an annotation that are read
	maxRequestedAddresses   = 2
)

// serviceAnnotations are the keys with MetalLB's prefix that have an effect on a Service.
var serviceAnnotations = []string{metallbPrefix + annotationPool, metallbPrefix + annotationAddrs, metallbPrefix + annotationShare, metallbPrefix + annotationFrom}

// The ipModes of a load balancer's addresses (KEP-1860): packets reach nodes unchanged, or the load balancer has
// replaced their destination before they reach the cluster.
const (
	IPModeVIP   = corev1.LoadBalancerIPModeVIP
	IPModeProxy = corev1.LoadBalancerIPModeProxy
)

// A Balancer is a Service of type LoadBalancer, or a Service that had this type, with the parts that the controller
// needs.
type Balancer struct {
	ipam.Service
	status     balancerStatus
	deprecated []string // the annotations with MetalLB's old prefix
	unknown    []string // a message for each annotation with MetalLB's prefix that has no effect
	local      bool     // externalTrafficPolicy Local
}

// A balancerStatus is the controller's part of a Service: status, annotation and finalizer. It is compared by
// reflection.
type balancerStatus struct {
	Addrs []netip.Addr
	Mode  corev1.LoadBalancerIPMode // of all Addrs; empty: no addresses, or several modes
	Ports []service.CheckedPort     // the checked ports, equal for all addresses; with pools only if a node claims an address
	Pool  string
	Held  bool // by our finalizer
	// Leaving are nodes' addresses that still serve, although clients are no longer told about them (ServiceLB).
	Leaving []netip.Addr
	Missing string // why the Service lacks an address; a condition of the Service
	OnNodes bool   // the addresses are nodes' own (ServiceLB)
}

// balancersKind reads all Services, because a Service of our class may belong to another proxy.
func balancersKind(c kubernetes.Interface, class string) kube.Kind[*corev1.Service, Balancer] {
	return kube.Kind[*corev1.Service, Balancer]{
		Name: "services", Object: &corev1.Service{}, Client: kube.From(c.CoreV1().Services(metav1.NamespaceAll)),
		Trim: func(o *corev1.Service) *Balancer { return ConvertBalancer(o, class) },
	}
}

// ConvertBalancer returns the parts of a Service that decide about its addresses; nil: the Service is not of our class,
// or never was of type LoadBalancer.
func ConvertBalancer(o *corev1.Service, class string) *Balancer {
	if ptr.Deref(o.Spec.LoadBalancerClass, "") != class {
		return nil
	}
	b := &Balancer{Service: ipam.Service{
		Name: api.Name{Namespace: o.Namespace, Name: o.Name}, Created: kube.Created(o.CreationTimestamp), Labels: o.Labels,
		Wanted: o.Spec.Type == corev1.ServiceTypeLoadBalancer && o.DeletionTimestamp == nil,
	}}
	b.readStatus(o)
	if !b.Wanted {
		if o.Spec.Type != corev1.ServiceTypeLoadBalancer && !b.status.Held {
			return nil
		}
		return b
	}
	b.readFamilies(o)
	for _, p := range o.Spec.Ports {
		if proto, err := api.ParseProto(string(p.Protocol)); err == nil && kube.ValidPort(p.Port) {
			b.Ports = append(b.Ports, ipam.Port{Proto: proto, Port: uint16(p.Port)})
		}
	}
	if o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		b.local = true
		// Equal selectors in two namespaces select different pods. A Service without a selector shares no pods with
		// another Service.
		b.Backing = o.Namespace + "/" + labels.Set(o.Spec.Selector).String()
		if len(o.Spec.Selector) == 0 {
			b.Backing += " of " + o.Name
		}
	}
	b.readRequest(o)
	b.unknown = kube.UnknownAnnotations(metallbPrefix, "Service", o.Annotations, serviceAnnotations)
	return b
}

// readStatus reads the status, and our part of it.
func (b *Balancer) readStatus(o *corev1.Service) {
	mixed := false
	for _, i := range o.Status.LoadBalancer.Ingress {
		a, err := kube.ParseAddr(i.IP)
		if err != nil {
			continue // a hostname comes from another load balancer
		}
		switch m := ptr.Deref(i.IPMode, IPModeVIP); {
		case len(b.status.Addrs) == 0:
			b.status.Mode = m
		case m != b.status.Mode:
			mixed = true // our statuses have one mode
			continue
		}
		b.status.Addrs = append(b.status.Addrs, a)
	}
	if mixed {
		b.status.Mode = ""
	}
	b.status.Ports, b.status.Leaving = kube.CheckedPorts(o.Status.LoadBalancer.Ingress), kube.LeavingAddrs(o.Status.Conditions)
	b.status.Missing = missingAddress(o.Status.Conditions)
	b.status.OnNodes = kube.OnNodes(o.Status.Conditions)
	b.status.Pool = o.Annotations[metallbPrefix+annotationFrom]
	b.Assigned, b.AssignedFrom = b.status.Addrs, b.status.Pool
	if b.AssignedFrom == "" {
		b.AssignedFrom = o.Annotations[metallbDeprecatedPrefix+annotationFrom]
	}
	b.status.Held = HeldByBalancer(o)
}

// BalancerFinalizer is the finalizer of each Service with an address from the controller. Other load balancers use it
// too.
const BalancerFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// HeldByBalancer reports whether our controller holds a Service. A held Service cannot be deleted before the controller
// releases it.
func HeldByBalancer(o metav1.Object) bool {
	return slices.Contains(o.GetFinalizers(), BalancerFinalizer) && slices.ContainsFunc(o.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == balancerOwner && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), BalancerFinalizer)
	})
}

// readFamilies reads the address families of the ClusterIPs. The load balancer's addresses get equal families.
func (b *Balancer) readFamilies(o *corev1.Service) {
	var bad kube.Problems
	for _, a := range kube.ClusterIPs(o, &bad) {
		b.Families = append(b.Families, ipam.FamilyOf(a))
	}
	policy := ptr.Deref(o.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	b.PreferDual = policy == corev1.IPFamilyPolicyPreferDualStack
	switch {
	case len(b.Families) == 0:
		b.Refused = "the Service has no ClusterIP, by which its address families are known"
	case policy == corev1.IPFamilyPolicyRequireDualStack && len(b.Families) < 2:
		b.Refused = "the Service requires dual stack but has one ClusterIP"
	}
}

// readRequest reads the pool, the addresses and the sharing key that the Service asks for.
func (b *Balancer) readRequest(o *corev1.Service) {
	read := func(key string) string {
		text, ok := o.Annotations[metallbPrefix+key]
		if old, isOld := o.Annotations[metallbDeprecatedPrefix+key]; isOld {
			b.deprecated = append(b.deprecated, metallbDeprecatedPrefix+key)
			if !ok {
				text = old
			}
		}
		return api.Cut(strings.TrimSpace(text), requestLimit)
	}
	b.Pool, b.SharingKey = read(annotationPool), read(annotationShare)
	texts := strings.FieldsFunc(read(annotationAddrs), func(r rune) bool { return r == ',' })
	if o.Spec.LoadBalancerIP != "" {
		if len(texts) > 0 {
			b.Refused = "the Service asks for addresses by spec.loadBalancerIP and by the annotation " + metallbPrefix + annotationAddrs + "; one of them is enough"
			return
		}
		texts = []string{o.Spec.LoadBalancerIP}
	}
	if len(texts) > maxRequestedAddresses {
		b.Refused = "the Service asks for more than two addresses"
		return
	}
	for _, text := range texts {
		a, err := kube.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			b.Refused = "invalid requested addresses: " + err.Error()
			return
		}
		b.Addrs = append(b.Addrs, a)
	}
}
