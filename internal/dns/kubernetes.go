package dns

import (
	"context"
	"math/rand/v2"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
	kubeobject "github.com/coredns/coredns/plugin/kubernetes/object"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
)

// CoreDNS makes one record of each endpoint and port of a Service. It then discards the records that the question does not
// mean, and cuts the answer to the size of a message. An EndpointSlice may have 1,000 endpoints and 20,000 ports: one
// question about such a Service needs seconds, and more memory than the pod has. So the kubernetes plugin sees a view: the
// endpoints and ports that the question means, as many as fit into the answer. The view shows one record more than fits,
// so CoreDNS sets the bit TC.
//
//	question ──> kubernetesHandler ──> kubernetes ──> view: of this name, type and size ──> CoreDNS's stores

// apiConn is the interface dnsController of CoreDNS, which is not exported.
type apiConn interface {
	ServiceList() []*kubeobject.Service
	EndpointsList() []*kubeobject.Endpoints
	ServiceImportList() []*kubeobject.ServiceImport
	SvcIndex(string) []*kubeobject.Service
	SvcIndexReverse(string) []*kubeobject.Service
	SvcExtIndexReverse(string) []*kubeobject.Service
	SvcImportIndex(string) []*kubeobject.ServiceImport
	PodIndex(string) []*kubeobject.Pod
	EpIndex(string) []*kubeobject.Endpoints
	EpIndexReverse(string) []*kubeobject.Endpoints
	McEpIndex(string) []*kubeobject.MultiClusterEndpoints
	GetNodeByName(context.Context, string) (*corev1.Node, error)
	GetNamespaceByName(string) (*kubeobject.Namespace, error)
	Run()
	HasSynced() bool
	Stop() error
	Modified(kubernetes.ModifiedMode) int64
}

// smallestRecord is the size of the smallest record in bytes: two for the name, ten, and an IPv4 address.
const smallestRecord = 16

// limitServices puts a kubernetesHandler in the place of each kubernetes plugin.
func limitServices(c *caddy.Controller) {
	for _, config := range allConfigs(c) {
		for i, setup := range config.Plugin {
			config.Plugin[i] = func(next plugin.Handler) plugin.Handler {
				h := setup(next)
				if k, ok := h.(*kubernetes.Kubernetes); ok {
					return kubernetesHandler{k}
				}
				return h
			}
		}
	}
}

// A kubernetesHandler is the kubernetes plugin, with a view of the cluster for each question. It has the plugin's other
// methods, which other plugins call.
type kubernetesHandler struct{ *kubernetes.Kubernetes }

// ServeDNS answers a question as the kubernetes plugin does.
func (h kubernetesHandler) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	zone := plugin.Zones(h.Zones).Matches(state.Name())
	if zone == "" {
		return h.Kubernetes.ServeDNS(ctx, w, r)
	}
	v := &view{
		apiConn: h.APIConn, zone: zone, limit: state.Size()/smallestRecord + 1,
		srv: state.QType() == dns.TypeSRV, ipv6: state.QType() == dns.TypeAAAA,
	}
	v.left = v.limit
	v.read(state.Name())
	k := *h.Kubernetes
	k.APIConn = v
	return k.ServeDNS(ctx, w, r)
}

// A view shows the part of a Service that the answer to one question can hold.
type view struct {
	apiConn
	zone                  string
	port, proto, endpoint string // labels of the name; empty: any
	srv                   bool   // the answer has ports
	ipv6                  bool   // the answer has IPv6 addresses, if !srv
	zonal                 bool   // a name of topology zones, for which the view shows everything
	limit, left           int    // records that the answer can hold: at most, and still
}

// read sets the labels of the view from a name, [ENDPOINT.|_PORT._PROTO.]SERVICE.NAMESPACE.svc.ZONE.
func (v *view) read(name string) {
	v.port, v.proto, v.endpoint, v.zonal = "", "", "", false
	rest, err := dnsutil.TrimZone(name, v.zone)
	if err != nil {
		return // outside the zone
	}
	switch labels := dns.SplitDomainName(rest); len(labels) {
	case 4:
		v.endpoint = labels[0]
	case 5:
		v.port, v.proto = strings.TrimPrefix(labels[0], "_"), strings.TrimPrefix(labels[1], "_")
	default:
		v.zonal = len(labels) > 5
	}
}

// SvcIndex returns the Services of a key, each with the ports that the question means. CoreDNS calls it first for each
// name, so an ExternalName sets the labels for the name to which CoreDNS follows it.
func (v *view) SvcIndex(key string) []*kubeobject.Service {
	all := v.apiConn.SvcIndex(key)
	v.left = v.limit
	shown := make([]*kubeobject.Service, len(all))
	for i, s := range all {
		shown[i] = s
		if s.Type == corev1.ServiceTypeExternalName {
			v.read(dns.Fqdn(strings.ToLower(s.ExternalName)))
		} else if len(s.Ports) > 1 {
			c := *s
			c.Ports = ports(v, s.Ports, func(p corev1.ServicePort) (string, string) { return p.Name, string(p.Protocol) })
			shown[i] = &c
		}
	}
	return shown
}

// ports returns the ports that the question means, as many as the answer can hold; one if the answer has no ports.
func ports[P any](v *view, all []P, key func(P) (name, proto string)) (shown []P) {
	limit := 1
	if v.srv {
		limit = v.left
	}
	for _, p := range all {
		if len(shown) >= limit {
			break
		}
		if name, proto := key(p); (v.port == "" || strings.EqualFold(v.port, name)) && (v.proto == "" || strings.EqualFold(v.proto, proto)) {
			shown = append(shown, p)
		}
	}
	return shown
}

// EpIndex returns the endpoints of a Service that the question means, as many as the answer can hold, from a random one
// on. If the Service has endpoints of the other IP family only, EpIndex returns one endpoint, because the name exists.
func (v *view) EpIndex(key string) []*kubeobject.Endpoints {
	all := v.apiConn.EpIndex(key)
	if v.zonal {
		return all
	}
	var shown, other []*kubeobject.Endpoints
	for i, start := 0, random(len(all)); i < len(all) && v.left > 0; i++ {
		e := all[(start+i)%len(all)]
		for _, s := range e.Subsets {
			p := ports(v, s.Ports, func(p kubeobject.EndpointPort) (string, string) { return p.Name, p.Protocol })
			if len(p) == 0 {
				continue
			}
			wanted, wrongFamily := v.addresses(s.Addresses, len(p))
			if len(wanted) > 0 {
				shown = append(shown, withSubset(e, wanted, p))
			} else if len(wrongFamily) > 0 {
				other = []*kubeobject.Endpoints{withSubset(e, wrongFamily, p)}
			}
		}
	}
	if len(shown) == 0 {
		return other
	}
	return shown
}

// addresses returns the addresses that the question means, and one of the other IP family. ports is the number of
// records of an address.
func (v *view) addresses(all []kubeobject.EndpointAddress, ports int) (wanted, wrongFamily []kubeobject.EndpointAddress) {
	for i, start := 0, random(len(all)); i < len(all) && v.left > 0; i++ {
		a := all[(start+i)%len(all)]
		switch {
		case v.endpoint != "" && !isHostname(a.IP, v.endpoint) && !strings.EqualFold(a.Hostname, v.endpoint) && !strings.EqualFold(a.TargetRefName, v.endpoint):
		case !v.srv && strings.Contains(a.IP, ":") != v.ipv6:
			wrongFamily = []kubeobject.EndpointAddress{a}
		default:
			wanted = append(wanted, a)
			v.left -= ports
		}
	}
	return wanted, wrongFamily
}

// isHostname reports whether label names an endpoint without a host name: its address with dashes.
func isHostname(address, label string) bool {
	if strings.HasSuffix(address, ":") {
		label = strings.TrimSuffix(label, "0") // CoreDNS appends it, because a name may not end with a dash
	}
	if len(address) != len(label) {
		return false
	}
	for i := range len(address) {
		if c := address[i]; c != label[i] && !(label[i] == '-' && (c == '.' || c == ':')) {
			return false
		}
	}
	return true
}

// EpIndexReverse returns the endpoints with an address, as many as the answer can hold.
func (v *view) EpIndexReverse(ip string) (shown []*kubeobject.Endpoints) {
	for _, e := range v.apiConn.EpIndexReverse(ip) {
		var same []kubeobject.EndpointAddress
		for _, s := range e.Subsets {
			for _, a := range s.Addresses {
				if a.IP == ip && v.left > 0 {
					same = append(same, a)
					v.left--
				}
			}
		}
		if len(same) > 0 {
			shown = append(shown, withSubset(e, same, nil))
		}
	}
	return shown
}

// withSubset returns a copy of e with other endpoints.
func withSubset(e *kubeobject.Endpoints, addresses []kubeobject.EndpointAddress, ports []kubeobject.EndpointPort) *kubeobject.Endpoints {
	c := *e
	c.Subsets = []kubeobject.EndpointSubset{{Addresses: addresses, Ports: ports}}
	return &c
}

func random(n int) int { return rand.IntN(max(n, 1)) }
