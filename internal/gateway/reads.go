package gateway

import (
	"slices"
	"strconv"

	"github.com/fairway-net/fairway/internal/api"
)

// reads records which objects a compiled object has read, and the inverse. Objects that do not exist are recorded too.
type reads struct {
	readers map[Ref]map[Ref]struct{}
	of      map[Ref]map[Ref]struct{}
}

func newReads() reads {
	return reads{map[Ref]map[Ref]struct{}{}, map[Ref]map[Ref]struct{}{}}
}

func (r *reads) add(reader, read Ref) {
	insert(r.readers, read, reader)
	insert(r.of, reader, read)
}

// forget removes the records of a reader before it is compiled again.
func (r *reads) forget(reader Ref) {
	for read := range r.of[reader] {
		remove(r.readers, read, reader)
	}
	delete(r.of, reader)
}

// names returns the sorted names of the objects of a kind that have a reader.
func (r *reads) names(kind Kind) (names []api.Name) {
	for ref := range r.readers {
		if ref.Kind == kind {
			names = append(names, ref.Name)
		}
	}
	slices.SortFunc(names, api.Name.Compare)
	return names
}

// insert adds a member to the set of a key.
func insert[K, V comparable](sets map[K]map[V]struct{}, key K, member V) {
	set := sets[key]
	if set == nil {
		set = map[V]struct{}{}
		sets[key] = set
	}
	set[member] = struct{}{}
}

// remove deletes a member of the set of a key, and the set with its last member.
func remove[K, V comparable](sets map[K]map[V]struct{}, key K, member V) {
	delete(sets[key], member)
	if len(sets[key]) == 0 {
		delete(sets, key)
	}
}

// The Refs of these kinds stand for a list or a result that an object reads. They are not kinds of the API.
const (
	grantsOf        Kind = "ReferenceGrants of a namespace"
	tlsPoliciesOf   Kind = "BackendTLSPolicies of a Service"
	routePoliciesOf Kind = "RoutePolicies of a target"
	ingressClasses  Kind = "the IngressClasses"
	listenerSetsOf  Kind = "ListenerSets of a Gateway"
	listenersOf     Kind = "listeners of "
	canariesOf      Kind = "canaries of a host"
	tlsIngressesOf  Kind = "Ingresses with TLS for a host"
	// ingressPortsKind stands for the Ingresses' ports, which read the default certificate.
	ingressPortsKind Kind = "the Ingresses' ports"
)

// listsOf returns the lists to which an object belongs.
func listsOf(o Object) (lists []Ref) {
	switch o := o.(type) {
	case *Grant:
		lists = append(lists, Ref{grantsOf, api.Name{Name: o.Namespace}})
	case *BackendTLSPolicy:
		for _, t := range o.Targets {
			lists = append(lists, Ref{tlsPoliciesOf, api.Name{Namespace: o.Namespace, Name: t.Name}})
		}
	case *RoutePolicy:
		for _, t := range o.Targets {
			lists = append(lists, policyList(t.Kind, api.Name{Namespace: o.Namespace, Name: t.Name}))
		}
	case *IngressClass:
		lists = append(lists, Ref{Kind: ingressClasses})
	case *Ingress:
		for _, r := range o.boundedRules() {
			host := lower(r.Host)
			if on, _ := strconv.ParseBool(o.Annotations[nginxPrefix+"canary"]); on {
				lists = append(lists, canaryList(o.Namespace, host))
			}
			if _, ok := o.SecretFor(host); ok {
				lists = append(lists, tlsList(o.Namespace, host))
			}
		}
	case *ListenerSet:
		lists = append(lists, Ref{listenerSetsOf, o.parent()})
	}
	return lists
}

// policyList is the list of the RoutePolicies of one object.
func policyList(kind string, name api.Name) Ref {
	return Ref{routePoliciesOf, api.Name{Namespace: name.Namespace, Name: kind + "/" + name.Name}}
}

// index has the members of the lists, and each list in order once it was asked for.
type index struct {
	members map[Ref]map[Ref]struct{}
	sorted  map[Ref]any // a slice of the list's type
}

func newIndex() index { return index{map[Ref]map[Ref]struct{}{}, map[Ref]any{}} }

// replace updates the lists after an object changed.
func (x index) replace(ref Ref, old, o Object) {
	if old != nil {
		for _, list := range listsOf(old) {
			remove(x.members, list, ref)
			delete(x.sorted, list)
		}
	}
	if o != nil {
		for _, list := range listsOf(o) {
			insert(x.members, list, ref)
			delete(x.sorted, list)
		}
	}
}

// list returns the objects of a list, the oldest first, and records that the reader depends on the list. The caller must not
// change the slice.
func list[T Object](c *Compiler, reader, list Ref) (all []T) {
	c.reads.add(reader, list)
	if sorted, ok := c.index.sorted[list].([]T); ok {
		return sorted
	}
	for ref := range c.index.members[list] {
		if o, ok := c.objects[ref].(T); ok {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b T) int { return older(a.meta(), b.meta()) })
	c.index.sorted[list] = all
	return all
}
