package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
)

// An Input is what Migrate reads.
type Input struct {
	Ingresses  []networkingv1.Ingress
	Services   map[api.Name]*corev1.Service   // for ports by name; others are Notes
	ConfigMaps map[api.Name]*corev1.ConfigMap // of custom-headers; others are Notes
	// Gateway is the name of the Gateway to make, and Class its GatewayClass.
	Gateway api.Name
	Class   string
}

// A Result is what Migrate made.
type Result struct {
	Objects []any // with TypeMeta, in the order to apply them
	Notes   []Note
}

// A Severity says what a Note means for the user.
type Severity string

// The severities.
const (
	Lost     Severity = "lost"     // nothing equals it: act before the switch
	Differs  Severity = "differs"  // the new objects do it in another way
	Needless Severity = "needless" // nothing to do: why is said
)

// A Note says what became of one part of an Ingress that was not translated word for word.
type Note struct {
	Ingress  string   `json:"ingress"` // namespace/name
	Part     string   `json:"part"`    // an annotation's name, or a field
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
}

// A migration collects what the Ingresses become.
type migration struct {
	Input
	result    Result
	listeners map[string]map[string]gatewayv1.ListenerEntry // namespace → listener's name
	// regexHosts are hosts on which ingress-nginx matches all paths as regular expressions, because one Ingress asks for
	// it.
	regexHosts map[string]string // host → the Ingress that asks
	// secrets has the certificate of each host of a namespace, whichever of its Ingresses names it.
	secrets    map[hostKey]string
	primaries  map[primaryKey]*primary
	routes     []*gatewayv1.HTTPRoute
	tlsRoutes  []*gatewayv1.TLSRoute
	policies   []*RoutePolicy
	backendTLS map[api.Name]*gatewayv1.BackendTLSPolicy
}

// Migrate translates Ingresses into objects of Gateway API. It never fails: what it cannot translate is a Note.
func Migrate(in Input) Result {
	m := &migration{
		Input: in, listeners: map[string]map[string]gatewayv1.ListenerEntry{}, regexHosts: map[string]string{},
		primaries: map[primaryKey]*primary{}, secrets: map[hostKey]string{}, backendTLS: map[api.Name]*gatewayv1.BackendTLSPolicy{},
	}
	m.Ingresses = slices.Clone(in.Ingresses)
	slices.SortFunc(m.Ingresses, func(a, b networkingv1.Ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	m.Ingresses = slices.DeleteFunc(m.Ingresses, m.isSolver)
	meanings := make([]*meaning, len(m.Ingresses))
	for i := range m.Ingresses {
		g := &m.Ingresses[i]
		meanings[i] = m.read(g)
		m.findHosts(g, meanings[i])
	}
	for i, meaning := range meanings {
		if meaning.Canary == nil {
			m.translate(&m.Ingresses[i], meaning)
		}
	}
	for i, meaning := range meanings {
		if meaning.Canary != nil {
			m.addCanary(&m.Ingresses[i], meaning)
		}
	}
	for i, meaning := range meanings {
		m.noteSharedTLS(&m.Ingresses[i], meaning)
	}
	m.finish()
	return m.result
}

// note adds a Note.
func (m *migration) note(g *networkingv1.Ingress, severity Severity, part, format string, args ...any) {
	m.result.Notes = append(m.result.Notes, Note{Ingress: g.Namespace + "/" + g.Name, Part: part, Severity: severity, Text: fmt.Sprintf(format, args...)})
}

// finish puts the objects into the order in which they are applied.
func (m *migration) finish() {
	add := func(o any) { m.result.Objects = append(m.result.Objects, o) }
	add(m.gateway())
	for _, namespace := range sortedKeys(m.listeners) {
		add(m.listenerSet(namespace))
	}
	for _, r := range m.routes {
		for _, part := range splitRoute(r) {
			if add(part); part.Name != r.Name {
				m.alsoTarget(r, part.Name)
			}
		}
	}
	for _, r := range m.tlsRoutes {
		add(r)
	}
	for _, p := range m.policies {
		add(p)
	}
	for _, name := range slices.SortedFunc(maps.Keys(m.backendTLS), api.Name.Compare) {
		add(m.backendTLS[name])
	}
	slices.SortStableFunc(m.result.Notes, func(a, b Note) int {
		return cmp.Or(strings.Compare(a.Ingress, b.Ingress), strings.Compare(a.Part, b.Part))
	})
}

// alsoTarget makes the policy of a route that was split target another part, too.
func (m *migration) alsoTarget(r *gatewayv1.HTTPRoute, part string) {
	for _, p := range m.policies {
		if p.Namespace == r.Namespace && p.Name == r.Name {
			p.Spec.TargetRefs = append(p.Spec.TargetRefs, PolicyTarget{Group: gatewayv1.GroupName, Kind: "HTTPRoute", Name: part})
		}
	}
}

// gateway returns the Gateway that all Ingresses share. Its HTTP listener takes routes of all namespaces, as the
// controller's port did. TLS listeners come by ListenerSets.
func (m *migration) gateway() *gatewayv1.Gateway {
	all := gatewayv1.NamespacesFromAll
	return &gatewayv1.Gateway{
		TypeMeta:   typeMeta("Gateway"),
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Gateway.Namespace, Name: m.Gateway.Name},
		Spec: gatewayv1.GatewaySpec{
			GatewayClassName: gatewayv1.ObjectName(m.Class),
			Listeners: []gatewayv1.Listener{{
				Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType,
				AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}},
			}},
			AllowedListeners: &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &all}},
		},
	}
}

// listenerSet returns the TLS listeners of a namespace.
func (m *migration) listenerSet(namespace string) *gatewayv1.ListenerSet {
	parent := gatewayv1.Namespace(m.Gateway.Namespace)
	set := &gatewayv1.ListenerSet{
		TypeMeta:   typeMeta("ListenerSet"),
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: m.Gateway.Name},
		Spec:       gatewayv1.ListenerSetSpec{ParentRef: gatewayv1.ParentGatewayReference{Name: gatewayv1.ObjectName(m.Gateway.Name), Namespace: &parent}},
	}
	for _, name := range sortedKeys(m.listeners[namespace]) {
		set.Spec.Listeners = append(set.Spec.Listeners, m.listeners[namespace][name])
	}
	return set
}

// addListener adds a TLS listener for a host, and returns its name.
func (m *migration) addListener(namespace, host, secret string, mode gatewayv1.TLSModeType) gatewayv1.SectionName {
	name := listenerName(host)
	if m.listeners[namespace] == nil {
		m.listeners[namespace] = map[string]gatewayv1.ListenerEntry{}
	}
	l := gatewayv1.ListenerEntry{Name: gatewayv1.SectionName(name), Port: 443, Protocol: gatewayv1.HTTPSProtocolType, TLS: &gatewayv1.ListenerTLSConfig{Mode: &mode}}
	if host != "" {
		h := gatewayv1.Hostname(host)
		l.Hostname = &h
	}
	if mode == gatewayv1.TLSModePassthrough {
		l.Protocol = gatewayv1.TLSProtocolType
	} else {
		l.TLS.CertificateRefs = []gatewayv1.SecretObjectReference{{Name: gatewayv1.ObjectName(secret)}}
	}
	m.listeners[namespace][name] = l
	return l.Name
}

// listenerName returns a listener's name for a host: at most 63 letters, as a section name has to be.
func listenerName(host string) string {
	if host == "" {
		return "https"
	}
	return shortName("https-"+strings.ReplaceAll(host, "*", "wildcard"), 63)
}

// typeMeta returns the type of an object of Gateway API.
func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: gatewayv1.GroupVersion.String(), Kind: kind}
}
