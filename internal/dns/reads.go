package dns

import (
	"context"
	"errors"
	"slices"

	"github.com/coredns/coredns/plugin/kubernetes"
	kubeobject "github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"
)

// An answer of the kubernetes plugin follows from the objects that the plugin reads. CoreDNS's stores replace an object
// when it changes. So an answer is still right while the same reads return the same objects: nobody has to find the
// answers that a change makes wrong.

// reads are the objects that led to an answer.
type reads struct {
	namespaces []read[*kubeobject.Namespace] // nil: no such namespace
	services   []read[*kubeobject.Service]
	endpoints  []read[*kubeobject.Endpoints]
	serial     bool // the time of the last change, which is the serial number of negative answers
}

// A read is the result of one method with one argument.
type read[T comparable] struct {
	key string
	got []T
}

// same reports whether all reads return the same objects again.
func (r *reads) same(conn apiConn) bool {
	for _, n := range r.namespaces {
		if now, _ := conn.GetNamespaceByName(n.key); now != n.got[0] {
			return false
		}
	}
	for _, s := range r.services {
		if !sameSet(s.got, conn.SvcIndex(s.key)) {
			return false
		}
	}
	for _, e := range r.endpoints {
		if !sameSet(e.got, conn.EpIndex(e.key)) {
			return false
		}
	}
	return true
}

// sameSet reports whether two sets have the same elements. The stores return them in any order.
func sameSet[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && !slices.Contains(b, a[i]) {
			return false
		}
	}
	return true
}

// maxRead is the largest number of objects that a read may return. A comparison of two large sets would cost more than an
// answer.
const maxRead = 16

// A witness notes what the kubernetes plugin reads. other is true if the answer depends on something that a witness does
// not note.
type witness struct {
	apiConn
	reads
	other bool
}

func (w *witness) GetNamespaceByName(name string) (*kubeobject.Namespace, error) {
	ns, err := w.apiConn.GetNamespaceByName(name)
	w.other = !note(&w.namespaces, name, []*kubeobject.Namespace{ns}) || w.other
	return ns, err
}

// SvcIndex returns no ExternalName. CoreDNS would ask an upstream for it.
func (w *witness) SvcIndex(key string) []*kubeobject.Service {
	got := w.apiConn.SvcIndex(key)
	w.other = !note(&w.services, key, got) || w.other
	for _, s := range got {
		if s.Type == corev1.ServiceTypeExternalName {
			w.other = true
			return nil
		}
	}
	return got
}

func (w *witness) EpIndex(key string) []*kubeobject.Endpoints {
	got := w.apiConn.EpIndex(key)
	w.other = !note(&w.endpoints, key, got) || w.other
	return got
}

func (w *witness) Modified(mode kubernetes.ModifiedMode) int64 {
	w.serial = true
	w.other = w.other || mode != kubernetes.ModifiedInternal
	return w.apiConn.Modified(mode)
}

func (w *witness) ServiceList() []*kubeobject.Service                   { w.other = true; return nil }
func (w *witness) EndpointsList() []*kubeobject.Endpoints               { w.other = true; return nil }
func (w *witness) ServiceImportList() []*kubeobject.ServiceImport       { w.other = true; return nil }
func (w *witness) SvcIndexReverse(string) []*kubeobject.Service         { w.other = true; return nil }
func (w *witness) SvcExtIndexReverse(string) []*kubeobject.Service      { w.other = true; return nil }
func (w *witness) SvcImportIndex(string) []*kubeobject.ServiceImport    { w.other = true; return nil }
func (w *witness) PodIndex(string) []*kubeobject.Pod                    { w.other = true; return nil }
func (w *witness) EpIndexReverse(string) []*kubeobject.Endpoints        { w.other = true; return nil }
func (w *witness) McEpIndex(string) []*kubeobject.MultiClusterEndpoints { w.other = true; return nil }
func (w *witness) GetNodeByName(context.Context, string) (*corev1.Node, error) {
	w.other = true
	return nil, errNotRead
}

var errNotRead = errors.New("not read for a kept answer")

// note adds a read. It returns false if the read is too large, or if the same read returned other objects a moment ago.
func note[T comparable](all *[]read[T], key string, got []T) bool {
	for _, r := range *all {
		if r.key == key {
			return sameSet(r.got, got)
		}
	}
	*all = append(*all, read[T]{key, got})
	return len(got) <= maxRead
}
