package loadbalancer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// The labels of a ServiceL2Status and a ServiceBGPStatus, with MetalLB's names.
const (
	labelAnnouncer        = "metallb.io/node"
	labelServiceName      = "metallb.io/service-name"
	labelServiceNamespace = "metallb.io/service-namespace"
	labelLimit            = 63
)

// maxBGPStatuses is the largest number of ServiceBGPStatuses in a cluster. Every node announces every Service, and so
// many objects would be too much for the API server.
const maxBGPStatuses = 10000

// An announceKind describes ServiceL2Statuses or ServiceBGPStatuses.
type announceKind struct {
	resource, kind, prefix, protocol string
	field                            string // the list in the status
	item                             func(string) any
	text                             func(any) string
	limit                            int // objects of all nodes together; 0: no limit
}

var (
	l2Statuses = announceKind{resource: "servicel2statuses", kind: "ServiceL2Status", prefix: "l2", protocol: "layer2", field: "interfaces",
		item: func(name string) any { return map[string]any{"name": name} },
		text: func(item any) string {
			m, _ := item.(map[string]any)
			name, _ := m["name"].(string)
			return name
		}}
	bgpStatuses = announceKind{resource: "servicebgpstatuses", kind: "ServiceBGPStatus", prefix: "bgp", protocol: "bgp", field: "peers",
		item:  func(name string) any { return name },
		text:  func(item any) string { name, _ := item.(string); return name },
		limit: maxBGPStatuses,
	}
)

// An announceStatus is the content of a ServiceL2Status or ServiceBGPStatus.
type announceStatus struct {
	api.Name
	node string
	by   []string // interfaces, or BGPPeers
	// addrs are the addresses, separated by commas. They are in an annotation that MetalLB does not have: two addresses
	// of a Service may be announced by two nodes.
	addrs string
}

// An AnnouncedService is a Service that the node announces: on these interfaces, or to these BGPPeers.
type AnnouncedService struct {
	By    []string
	Addrs []netip.Addr // sorted
}

// AnnounceStatuses keeps one object for each Service that this node announces, as MetalLB does. The owner of each
// object is the Node, so the objects disappear with the Node.
type AnnounceStatuses struct {
	kind   announceKind
	log    *slog.Logger
	store  *kube.Store
	nodes  *kube.Feed[announce.Node]
	feed   *kube.Feed[announceStatus]
	writer *kube.StatusWriter[announceStatus]
	inform func(name api.Name, reason, message string)

	mu        sync.Mutex
	notified  map[api.Name]bool // by object: the Service has had its event
	unwritten int               // the number of Services without an object, at the last Set
}

// L2Statuses returns the writer of ServiceL2Statuses. It calls inform when the node begins to announce a Service.
func (v *Speaker) L2Statuses(log *slog.Logger, inform func(name api.Name, reason, message string)) *AnnounceStatuses {
	return v.statuses(l2Statuses, log, inform)
}

// BGPStatuses returns the writer of ServiceBGPStatuses.
func (v *Speaker) BGPStatuses(log *slog.Logger, inform func(name api.Name, reason, message string)) *AnnounceStatuses {
	return v.statuses(bgpStatuses, log, inform)
}

func (v *Speaker) statuses(k announceKind, log *slog.Logger, inform func(name api.Name, reason, message string)) *AnnounceStatuses {
	s := v.store
	a := &AnnounceStatuses{kind: k, log: log, store: s, nodes: v.nodes, inform: inform, notified: map[api.Name]bool{}}
	objects := metallbKind(s, k.resource, k.read)
	objects.Only.LabelSelector = announcedBy(s.Config().NodeName).LabelSelector
	a.feed = kube.Open(s, objects)
	a.writer = kube.NewStatusWriter(kube.StatusConfig[announceStatus]{Log: log, Owner: speakerOwner, Kind: k.resource,
		Have: func(name api.Name) (announceStatus, bool) {
			o, ok := a.feed.Get(name)
			return ptr.Deref(o, announceStatus{}), ok
		},
		Make:  func() bool { return a.feed.Input().Listed() },
		Share: func(want announceStatus) string { return want.Namespace },
		Apply: a.apply, Delete: a.remove, Names: a.feed.Names,
	})
	a.feed.Follow(func(name api.Name, _, _ *announceStatus, _ int64) { a.writer.Changed(name) })
	a.feed.OnSettle(a.writer.ChangedAll)
	return a
}

// client returns a client for the objects of a namespace.
func (k announceKind) client(custom dynamic.Interface, namespace string) dynamic.ResourceInterface {
	return custom.Resource(metallbResource(k.resource)).Namespace(namespace)
}

// announcedBy selects the objects of a node.
func announcedBy(node string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labelAnnouncer + "=" + labelValue(node)}
}

// read converts an object. A malformed object is overwritten later.
func (k announceKind) read(o *unstructured.Unstructured) *announceStatus {
	text := func(field string) string { v, _, _ := unstructured.NestedString(o.Object, "status", field); return v }
	s := &announceStatus{Name: api.Name{Namespace: text("serviceNamespace"), Name: text("serviceName")}, node: text("node"), addrs: o.GetAnnotations()[kube.AnnotationAddresses]}
	all, _, _ := unstructured.NestedSlice(o.Object, "status", k.field)
	for _, one := range all {
		s.by = append(s.by, k.text(one))
	}
	return s
}

// Set replaces the Services that the node announces.
func (a *AnnounceStatuses) Set(by map[api.Name]AnnouncedService) {
	all := a.bounded(slices.Collect(maps.Keys(by)))
	wants := make(map[api.Name]announceStatus, len(all))
	for _, name := range all {
		var addrs []string
		for _, addr := range by[name].Addrs {
			addrs = append(addrs, addr.String())
		}
		wants[a.nameOf(name)] = announceStatus{name, a.store.Config().NodeName, append([]string(nil), by[name].By...), strings.Join(addrs, ",")}
	}
	a.mu.Lock()
	for object := range a.notified {
		if _, ok := wants[object]; !ok {
			delete(a.notified, object)
		}
	}
	a.mu.Unlock()
	a.writer.SetAll(wants)
}

// bounded returns the Services that get an object. It logs the first time that Services have no object.
func (a *AnnounceStatuses) bounded(all []api.Name) []api.Name {
	if a.kind.limit == 0 {
		return all
	}
	most := a.kind.limit / max(1, a.nodes.Len())
	slices.SortFunc(all, api.Name.Compare) // so that all nodes leave out equal Services
	left := len(all) - most
	a.mu.Lock()
	was := a.unwritten
	a.unwritten = max(0, left)
	a.mu.Unlock()
	if left > 0 && was == 0 {
		a.log.Warn("too many Services: some have no status object", "kind", a.kind.kind, "have", most, "without", left)
	}
	return all[:min(len(all), max(1, most))]
}

// Run writes until ctx ends. Then it removes the objects, for a short time. The next speaker finds the remaining
// objects.
func (a *AnnounceStatuses) Run(ctx context.Context) error { return a.writer.Run(ctx) }

// apply makes an object, or changes its status.
func (a *AnnounceStatuses) apply(ctx context.Context, object api.Name, want announceStatus, how metav1.ApplyOptions) error {
	node := a.store.Config().NodeName
	n, _ := a.nodes.Get(api.Name{Name: node})
	if n == nil || n.UID == "" {
		return fmt.Errorf("there is no Node %s yet", node)
	}
	by := []any{}
	for _, one := range want.by {
		by = append(by, a.kind.item(one))
	}
	meta := map[string]any{
		"labels":          map[string]any{labelAnnouncer: labelValue(node), labelServiceName: labelValue(want.Name.Name), labelServiceNamespace: want.Namespace},
		"annotations":     map[string]any{kube.AnnotationAddresses: want.addrs},
		"ownerReferences": ownedByNode(node, n.UID),
	}
	status := map[string]any{"node": node, "serviceName": want.Name.Name, "serviceNamespace": want.Namespace, a.kind.field: by}
	_, was := a.feed.Get(object)
	if err := applyMetallb(ctx, a.store, a.kind.resource, a.kind.kind, object, how, meta, status); err != nil {
		return err
	}
	a.mu.Lock()
	first := !was && !a.notified[object]
	a.notified[object] = true
	a.mu.Unlock()
	if first {
		a.inform(want.Name, "nodeAssigned", fmt.Sprintf("announcing from node %q with protocol %q", node, a.kind.protocol))
	}
	return nil
}

// ownedByNode returns ownerReferences that delete an object together with a Node.
func ownedByNode(node, uid string) []any {
	return []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}}
}

// ownUID returns the UID of this node's object; empty: unknown.
func (v *Speaker) ownUID() string {
	n, _ := v.nodes.Get(api.Name{Name: v.store.Config().NodeName})
	return ptr.Deref(n, announce.Node{}).UID
}

func (a *AnnounceStatuses) remove(ctx context.Context, object api.Name) error {
	return a.kind.client(a.store.Config().Custom, object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{})
}

// nameOf returns the name of a Service's object. It begins like the names of MetalLB's objects.
func (a *AnnounceStatuses) nameOf(name api.Name) api.Name {
	sum := sha256.Sum256([]byte(strings.Join([]string{a.store.Config().NodeName, name.Namespace, name.Name}, "/")))
	return api.Name{Namespace: a.store.Config().LoadBalancerNamespace, Name: fmt.Sprintf("%s-%x", a.kind.prefix, sum[:5])}
}

// labelValue returns a text as a label's value. A text that is too long ends with its hash.
func labelValue(text string) string {
	if len(text) <= labelLimit {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return strings.TrimRight(text[:labelLimit-11], ".-_") + fmt.Sprintf("-%x", sum[:5])
}
