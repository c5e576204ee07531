package kube

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

// The annotations by which Services ask for addresses, and what is written back: MetalLB's,
// by their names of today and of yesterday.
const (
	metallbPrefix         = "metallb.io/"
	metallbOldPrefix      = "metallb.universe.tf/"
	annotationPool        = "address-pool"
	annotationAddrs       = "loadBalancerIPs"
	annotationShare       = "allow-shared-ip"
	annotationFrom        = "ip-allocated-from-pool"
	reasonOldPrefix       = "deprecatedAnnotation"
	balancerOwner         = "fairway-addresses" // of what is written, in the API server's eyes
	requestLimit          = 256                 // bytes of an annotation that are read
	maxRequestedAddresses = 2
)

// What becomes of packets to a load balancer's addresses (KEP-1860): they reach nodes unchanged, or
// a balancer before the cluster gives them another destination.
const (
	IPModeVIP   = corev1.LoadBalancerIPModeVIP
	IPModeProxy = corev1.LoadBalancerIPModeProxy
)

// A Balancer is what the controller needs to know of a Service of type LoadBalancer, or of one
// that was.
type Balancer struct {
	ipam.Service
	status balancerStatus
	old    []string // the annotations that it has by their names of yesterday
	local  bool     // externalTrafficPolicy Local
}

// A balancerStatus is the controller's part of a Service: the status, an annotation and the
// finalizer. It is compared by reflection.
type balancerStatus struct {
	Addrs []netip.Addr
	Mode  corev1.LoadBalancerIPMode // of all Addrs; empty: there are none, or others of another mode
	Ports []service.CheckedPort     // those that were checked, of all addresses alike; of pools where a node claims one
	Pool  string
	Held  bool // by our finalizer
	// Leaving are nodes' addresses that are served, and not named to new clients any more (ServiceLB).
	Leaving []netip.Addr
}

// balancersKind reads all Services, since a Service may be another proxy's and still of our
// class.
func balancersKind(c kubernetes.Interface, class string) kind[*corev1.Service, Balancer] {
	return kind[*corev1.Service, Balancer]{
		name: "services", object: &corev1.Service{}, client: from(c.CoreV1().Services(metav1.NamespaceAll)),
		trim: func(o *corev1.Service) *Balancer { return ConvertBalancer(o, class) },
	}
}

// ConvertBalancer cuts a Service to what decides about its addresses; nil: it is not of our
// class, or never was of type LoadBalancer.
func ConvertBalancer(o *corev1.Service, class string) *Balancer {
	if deref(o.Spec.LoadBalancerClass, "") != class {
		return nil
	}
	b := &Balancer{Service: ipam.Service{
		Name: api.Name{Namespace: o.Namespace, Name: o.Name}, Created: created(o.CreationTimestamp), Labels: o.Labels,
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
		if proto, err := api.ParseProto(string(p.Protocol)); err == nil && validPort(p.Port) {
			b.Ports = append(b.Ports, ipam.Port{Proto: proto, Port: uint16(p.Port)})
		}
	}
	if o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		b.local = true
		// The pods of another namespace are others, whatever the selector says; and what has no selector has no pods to share.
		b.Backing = o.Namespace + "/" + labels.Set(o.Spec.Selector).String()
		if len(o.Spec.Selector) == 0 {
			b.Backing += " of " + o.Name
		}
	}
	b.readRequest(o)
	return b
}

// readStatus reads what the status says, and what of it is ours.
func (b *Balancer) readStatus(o *corev1.Service) {
	mixed := false
	for _, i := range o.Status.LoadBalancer.Ingress {
		a, err := parseAddr(i.IP)
		if err != nil {
			continue // a hostname is another balancer's
		}
		switch m := deref(i.IPMode, IPModeVIP); {
		case len(b.status.Addrs) == 0:
			b.status.Mode = m
		case m != b.status.Mode:
			mixed = true // what we write has one mode
			continue
		}
		b.status.Addrs = append(b.status.Addrs, a)
	}
	if mixed {
		b.status.Mode = ""
	}
	b.status.Ports, b.status.Leaving = checkedPorts(o.Status.LoadBalancer.Ingress), leavingAddrs(o.Status.Conditions)
	b.status.Pool = o.Annotations[metallbPrefix+annotationFrom]
	b.Assigned, b.AssignedFrom = b.status.Addrs, b.status.Pool
	if b.AssignedFrom == "" {
		b.AssignedFrom = o.Annotations[metallbOldPrefix+annotationFrom]
	}
	b.status.Held = HeldByBalancer(o)
}

// BalancerFinalizer is what the controller holds each Service by that it gave an address to. Other load balancers use it too.
const BalancerFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// HeldByBalancer reports whether our controller holds a Service, which cannot be deleted then before the controller lets go of it.
func HeldByBalancer(o metav1.Object) bool {
	return slices.Contains(o.GetFinalizers(), BalancerFinalizer) && slices.ContainsFunc(o.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == balancerOwner && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), BalancerFinalizer)
	})
}

// readFamilies reads the address families of the ClusterIPs: the load balancer's are the same.
func (b *Balancer) readFamilies(o *corev1.Service) {
	var bad problems
	for _, a := range clusterIPs(o, &bad) {
		b.Families = append(b.Families, ipam.FamilyOf(a))
	}
	policy := deref(o.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	b.PreferDual = policy == corev1.IPFamilyPolicyPreferDualStack
	switch {
	case len(b.Families) == 0:
		b.Refused = "the Service has no ClusterIP, by which its address families are known"
	case policy == corev1.IPFamilyPolicyRequireDualStack && len(b.Families) < 2:
		b.Refused = "the Service requires dual stack but has one ClusterIP"
	}
}

// readRequest reads what the Service asks for.
func (b *Balancer) readRequest(o *corev1.Service) {
	read := func(key string) string {
		text, ok := o.Annotations[metallbPrefix+key]
		if old, isOld := o.Annotations[metallbOldPrefix+key]; isOld {
			b.old = append(b.old, metallbOldPrefix+key)
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
		a, err := parseAddr(strings.TrimSpace(text))
		if err != nil {
			b.Refused = "invalid requested addresses: " + err.Error()
			return
		}
		b.Addrs = append(b.Addrs, a)
	}
}
