package dns

import (
	"context"
	"math/rand/v2"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/etcd/msg"
	"github.com/coredns/coredns/plugin/kubernetes"
	kubeobject "github.com/coredns/coredns/plugin/kubernetes/object"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
)

// CoreDNS makes a record of each endpoint times each port of a Service, throws away those that the question does not
// mean, and cuts the answer to what a message can hold. A tenant may have a Service of 100,000 endpoints, or an
// EndpointSlice of 1,000 with 20,000 ports: one question about it took seconds and more memory than there is. So
// the kubernetes plugin is shown what fits into the answer, and no more.
//
//	question ──> serviceBackend ──> kubernetes ──> view: of this name, type and size ──> CoreDNS's stores

// An apiConn is what the kubernetes plugin reads: CoreDNS's interface dnsController, which has no name outside.
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

// smallestRecord is what a record takes at least: two bytes for the name, ten, and an address of IPv4.
const smallestRecord = 16

// limitLargeServices puts a serviceHandler in the place of each kubernetes plugin.
func limitLargeServices(c *caddy.Controller) {
	for _, config := range allConfigs(c) {
		for i, setup := range config.Plugin {
			config.Plugin[i] = func(next plugin.Handler) plugin.Handler {
				h := setup(next)
				if k, ok := h.(*kubernetes.Kubernetes); ok {
					return serviceHandler{k}
				}
				return h
			}
		}
	}
}

// A serviceHandler answers as the kubernetes plugin does. Other plugins find that plugin's other methods in it.
type serviceHandler struct{ *kubernetes.Kubernetes }

// ServeDNS is Kubernetes.ServeDNS with another backend.
func (h serviceHandler) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	k := h.Kubernetes
	state := request.Request{W: w, Req: r}
	qname := state.QName()
	zone := plugin.Zones(k.Zones).Matches(qname)
	if zone == "" {
		return plugin.NextOrFailure(k.Name(), k.Next, ctx, w, r)
	}
	zone = qname[len(qname)-len(zone):] // as the client wrote it
	state.Zone = zone
	labels := labelsOf(state)
	ofService := len(labels) >= 3 && labels[len(labels)-1] == kubernetes.Svc
	if t := state.QType(); !ofService && dnsutil.IsReverse(state.Name()) == 0 || t == dns.TypeAXFR || t == dns.TypeIXFR || t == dns.TypeSOA {
		return k.ServeDNS(ctx, w, r)
	}
	b := &serviceBackend{Kubernetes: k, size: state.Size()}
	a, err := b.answer(ctx, zone, state)
	switch {
	case k.IsNameError(err) && k.Fall.Through(state.Name()):
		return plugin.NextOrFailure(k.Name(), k.Next, ctx, w, r)
	case k.IsNameError(err) && !k.APIConn.HasSynced():
		return plugin.BackendError(ctx, b, zone, dns.RcodeServerFailure, state, nil, plugin.Options{})
	case k.IsNameError(err):
		return plugin.BackendError(ctx, b, zone, dns.RcodeNameError, state, nil, plugin.Options{})
	case err != nil:
		return dns.RcodeServerFailure, err
	case len(a.records) == 0:
		return plugin.BackendError(ctx, b, zone, dns.RcodeSuccess, state, nil, plugin.Options{})
	}
	m := new(dns.Msg).SetReply(r)
	m.Truncated = a.truncated || b.cut // which keeps it out of caches
	m.Authoritative = true
	m.Answer, m.Extra = a.records, a.extra
	_ = w.WriteMsg(m) // the client is gone
	return dns.RcodeSuccess, nil
}

// An answered is what the kubernetes plugin says.
type answered struct {
	records, extra []dns.RR
	truncated      bool
}

func (b *serviceBackend) answer(ctx context.Context, zone string, state request.Request) (a answered, err error) {
	var o plugin.Options
	switch state.QType() {
	case dns.TypeA:
		a.records, a.truncated, err = plugin.A(ctx, b, zone, state, nil, o)
	case dns.TypeAAAA:
		a.records, a.truncated, err = plugin.AAAA(ctx, b, zone, state, nil, o)
	case dns.TypeTXT:
		a.records, a.truncated, err = plugin.TXT(ctx, b, zone, state, nil, o)
	case dns.TypeCNAME:
		a.records, err = plugin.CNAME(ctx, b, zone, state, o)
	case dns.TypePTR:
		a.records, err = plugin.PTR(ctx, b, zone, state, o)
	case dns.TypeMX:
		a.records, a.extra, err = plugin.MX(ctx, b, zone, state, o)
	case dns.TypeSRV:
		a.records, a.extra, err = plugin.SRV(ctx, b, zone, state, o)
	default: // is there such a name?
		fake := state.NewWithQuestion(state.QName(), dns.TypeA)
		fake.Zone = state.Zone
		_, _, err = plugin.A(ctx, b, zone, fake, nil, o)
	}
	return a, err
}

// A serviceBackend is the kubernetes plugin for one question, with a view of the name that is looked up: the question's,
// or that to which an ExternalName leads.
type serviceBackend struct {
	*kubernetes.Kubernetes
	size int  // of the answer, at most
	cut  bool // something was not shown
}

// Services implements plugin.ServiceBackend.
func (b *serviceBackend) Services(ctx context.Context, state request.Request, exact bool, o plugin.Options) ([]msg.Service, error) {
	k := *b.Kubernetes
	k.APIConn = b.view(state)
	return k.Services(ctx, state, exact, o)
}

// Reverse implements plugin.ServiceBackend.
func (b *serviceBackend) Reverse(ctx context.Context, state request.Request, exact bool, o plugin.Options) ([]msg.Service, error) {
	k := *b.Kubernetes
	k.APIConn = b.view(state)
	return k.Reverse(ctx, state, exact, o)
}

// A view shows of a Service what the answer to a question can hold.
type view struct {
	apiConn
	b                     *serviceBackend
	port, proto, endpoint string // labels of the name; empty: any
	srv                   bool   // ports count
	six                   bool   // addresses of IPv6 are asked for, if !srv
	left                  int    // records
	zonal                 bool   // a name of topology zones, of which all is shown
}

// labelsOf are the labels before the zone.
func labelsOf(state request.Request) []string {
	name, err := dnsutil.TrimZone(state.Name(), state.Zone)
	if err != nil {
		return nil
	}
	return dns.SplitDomainName(name)
}

// view reads the question, [ENDPOINT.|_PORT._PROTO.]SERVICE.NAMESPACE.svc.ZONE.
func (b *serviceBackend) view(state request.Request) *view {
	v := &view{apiConn: b.APIConn, b: b, srv: state.QType() == dns.TypeSRV, six: state.QType() == dns.TypeAAAA, left: b.size/smallestRecord + 1}
	switch labels := labelsOf(state); len(labels) {
	case 4:
		v.endpoint = labels[0]
	case 5:
		v.port, v.proto = strings.TrimPrefix(labels[0], "_"), strings.TrimPrefix(labels[1], "_")
	default:
		v.zonal = len(labels) > 5
	}
	return v
}

// SvcIndex are the Services of a key, each with the ports that are asked for.
func (v *view) SvcIndex(key string) []*kubeobject.Service {
	all := v.apiConn.SvcIndex(key)
	shown := make([]*kubeobject.Service, len(all))
	for i, s := range all {
		shown[i] = s
		if len(s.Ports) > 1 {
			c := *s
			c.Ports = ports(v, s.Ports, func(p corev1.ServicePort) (string, string) { return p.Name, string(p.Protocol) })
			shown[i] = &c
		}
	}
	return shown
}

// ports are those that are asked for, as many as the answer can hold; one if only addresses are.
func ports[P any](v *view, all []P, of func(P) (name, proto string)) []P {
	most := 1
	if v.srv {
		most = v.left
	}
	var shown []P
	for _, p := range all {
		name, proto := of(p)
		if (v.port != "" && !strings.EqualFold(v.port, name)) || (v.proto != "" && !strings.EqualFold(v.proto, proto)) {
			continue
		}
		if len(shown) == most {
			v.b.cut = v.b.cut || v.srv
			break
		}
		shown = append(shown, p)
	}
	return shown
}

// EpIndex are the endpoints of a Service that are asked for, as many as the answer can hold, from a random one on.
func (v *view) EpIndex(key string) []*kubeobject.Endpoints {
	all := v.apiConn.EpIndex(key)
	if v.zonal {
		return all
	}
	var wanted, other []*kubeobject.Endpoints // other: without it a name of the other family would not exist
	for i, from := 0, random(len(all)); i < len(all); i++ {
		if v.left <= 0 && len(wanted) > 0 {
			v.b.cut = true
			break
		}
		e := all[(from+i)%len(all)]
		subsets := make([]kubeobject.EndpointSubset, 0, len(e.Subsets))
		for _, s := range e.Subsets {
			of := ports(v, s.Ports, func(p kubeobject.EndpointPort) (string, string) { return p.Name, p.Protocol })
			addresses, strange := v.addresses(s.Addresses, len(of))
			if len(addresses) > 0 {
				subsets = append(subsets, kubeobject.EndpointSubset{Addresses: addresses, Ports: of})
			} else if other == nil && strange != nil {
				other = []*kubeobject.Endpoints{with(e, []kubeobject.EndpointSubset{{Addresses: strange, Ports: of}})}
			}
		}
		if len(subsets) > 0 {
			wanted = append(wanted, with(e, subsets))
		}
	}
	if len(wanted) == 0 {
		return other
	}
	return wanted
}

// addresses are those that are asked for, and one that is not of the family asked for; ports is how many each has.
func (v *view) addresses(all []kubeobject.EndpointAddress, ports int) (shown, strange []kubeobject.EndpointAddress) {
	for i, from := 0, random(len(all)); i < len(all); i++ {
		a := all[(from+i)%len(all)]
		named := v.endpoint == "" || isHostname(a.IP, v.endpoint) || strings.EqualFold(a.Hostname, v.endpoint) || strings.EqualFold(a.TargetRefName, v.endpoint)
		switch {
		case !named:
		case !v.srv && strings.Contains(a.IP, ":") != v.six:
			strange = []kubeobject.EndpointAddress{a}
		case v.left <= 0:
			v.b.cut = true
			return shown, strange
		default:
			shown = append(shown, a)
			v.left -= max(1, ports)
		}
	}
	return shown, strange
}

// isHostname reports whether an endpoint without a host name has the name label: its address, with dashes.
func isHostname(address, label string) bool {
	if strings.HasSuffix(address, ":") {
		label = strings.TrimSuffix(label, "0") // CoreDNS lets no name end with a dash
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

// EpIndexReverse are the endpoints with an address, as many as the answer can hold.
func (v *view) EpIndexReverse(ip string) []*kubeobject.Endpoints {
	all := v.apiConn.EpIndexReverse(ip)
	shown := make([]*kubeobject.Endpoints, 0, min(len(all), v.left))
	for _, e := range all {
		var same []kubeobject.EndpointAddress
		for _, s := range e.Subsets {
			for _, a := range s.Addresses {
				if a.IP == ip && v.left > 0 {
					same = append(same, a)
					v.left--
				}
			}
		}
		if len(same) == 0 {
			v.b.cut = true
			break
		}
		shown = append(shown, with(e, []kubeobject.EndpointSubset{{Addresses: same}}))
	}
	return shown
}

// with is e with other subsets.
func with(e *kubeobject.Endpoints, subsets []kubeobject.EndpointSubset) *kubeobject.Endpoints {
	c := *e
	c.Subsets = subsets
	return &c
}

func random(n int) int {
	if n == 0 {
		return 0
	}
	return rand.IntN(n)
}
