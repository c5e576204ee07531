package names

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kube"
)

// The annotations of k8s_gateway and of ExternalDNS.
const (
	annotationCoreDNS  = "coredns.io/hostname"
	externalDNS        = "external-dns.alpha.kubernetes.io/"
	annotationHostname = externalDNS + "hostname" // several with commas between them
	annotationTTL      = externalDNS + "ttl"      // seconds, or a duration
)

// maxTTL is the longest TTL that an object gets, in seconds: a day.
const maxTTL = 86400

// object returns the parts of an object that all kinds have.
func object(kind string, o metav1.Object) names.Object {
	annotations := o.GetAnnotations()
	return names.Object{
		Ref: names.Ref{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, UID: string(o.GetUID()), Created: kube.Created(o.GetCreationTimestamp()),
		Hostnames: list(annotations[annotationHostname]), TTL: ttl(annotations[annotationTTL]),
	}
}

// list splits a value with commas.
func list(text string) (all []string) {
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, strings.Clone(one))
		}
	}
	return all
}

// ttl reads a number of seconds or a duration; 0: neither.
func ttl(text string) uint32 {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0
		}
		seconds = int64(d.Seconds())
	}
	return uint32(min(max(seconds, 0), maxTTL))
}

// convertService keeps Services of type LoadBalancer.
func convertService(s *corev1.Service) *names.Object {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	o := object("Service", s)
	o.Own = true
	if own := list(s.Annotations[annotationCoreDNS]); len(own) > 0 {
		o.Hostnames = own // as k8s_gateway, which then ignores the other annotation
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		o.Addresses, o.Targets = target(o.Addresses, o.Targets, cmp.Or(i.IP, i.Hostname))
	}
	return &o
}

func convertIngress(i *networkingv1.Ingress) *names.Object {
	o := object("Ingress", i)
	for _, r := range i.Spec.Rules {
		if r.Host != "" && !slices.Contains(o.Hostnames, r.Host) {
			o.Hostnames = append(o.Hostnames, r.Host)
		}
	}
	for _, in := range i.Status.LoadBalancer.Ingress {
		o.Addresses, o.Targets = target(o.Addresses, o.Targets, cmp.Or(in.IP, in.Hostname))
	}
	return &o
}

// target adds an address or a host name.
func target(addresses []netip.Addr, targets []string, text string) ([]netip.Addr, []string) {
	if a, err := kube.ParseAddr(text); err == nil {
		return append(addresses, a), targets
	}
	if name, ok := names.Hostname(text); ok && !strings.HasPrefix(name, "*.") {
		targets = append(targets, name)
	}
	return addresses, targets
}

// A route has the fields that all kinds of routes with host names share.
type route struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Hostnames []string `json:"hostnames"`
	} `json:"spec"`
	Status gatewayv1.RouteStatus `json:"status"`
}

// convertRoute keeps the parents that accept the route.
func convertRoute(u *unstructured.Unstructured, kind string) *names.Object {
	r := read[route](u)
	if r == nil {
		return nil
	}
	o := object(kind, r)
	o.Hostnames = append(o.Hostnames, r.Spec.Hostnames...)
	for _, p := range r.Status.Parents {
		if accepted(p) && isGateway(p.ParentRef) {
			o.Parents = append(o.Parents, parent(p.ParentRef, r.Namespace))
		}
	}
	if len(o.Parents) == 0 {
		o.Hostnames = nil // the route is nowhere: it does not hold a name either
	}
	return &o
}

func accepted(p gatewayv1.RouteParentStatus) bool {
	return slices.ContainsFunc(p.Conditions, func(c metav1.Condition) bool {
		return c.Type == string(gatewayv1.RouteConditionAccepted) && c.Status == metav1.ConditionTrue
	})
}

func isGateway(p gatewayv1.ParentReference) bool {
	return (p.Kind == nil || *p.Kind == "Gateway") && (p.Group == nil || *p.Group == gatewayv1.GroupName)
}

func parent(p gatewayv1.ParentReference, namespace string) names.Parent {
	out := names.Parent{Namespace: namespace, Name: string(p.Name)}
	if p.Namespace != nil {
		out.Namespace = string(*p.Namespace)
	}
	if p.SectionName != nil {
		out.Listener = string(*p.SectionName)
	}
	if p.Port != nil {
		out.Port = *p.Port
	}
	return out
}

func convertGateway(u *unstructured.Unstructured) *names.Gateway {
	typed := read[gatewayv1.Gateway](u)
	if typed == nil {
		return nil
	}
	g := &names.Gateway{Namespace: typed.Namespace, Name: typed.Name}
	for _, a := range typed.Status.Addresses {
		g.Addresses, g.Targets = target(g.Addresses, g.Targets, a.Value)
	}
	for _, l := range typed.Spec.Listeners {
		one := names.Listener{Name: string(l.Name), Port: l.Port}
		if l.Hostname != nil {
			one.Hostname = string(*l.Hostname)
		}
		g.Listeners = append(g.Listeners, one)
	}
	return g
}
