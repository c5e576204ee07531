package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// The annotations of Services and Pods for settings that the API has no field for. The annotations of other proxies are
// read too, so that a cluster can change its proxy without editing Services.
const (
	annotationBalance   = "fairway.net/balance"
	AnnotationWeights   = "fairway.net/weights"           // of a Service: "true" applies the weights of its pods
	annotationWeight    = "fairway.net/weight"            // of a Pod
	annotationClose     = "fairway.net/close-connections" // of a Service: which TCP connections end with their endpoint
	annotationEjection  = "fairway.net/ejection"          // of a Service: how long an endpoint that fails connections gets no new ones at first
	AnnotationEgress    = "fairway.net/egress"            // of a Service: which pods leave the cluster with its address
	AnnotationLink      = "fairway.net/link-bandwidth"    // of a BGPAdvertisement: "endpoints" announces the node's number of endpoints to routers
	AnnotationAddresses = "fairway.net/addresses"         // of a ServiceL2Status or ServiceBGPStatus: the addresses that the node announces
	AnnotationGateway   = "fairway.net/gateway"           // of a Gateway's Service: which version of the Gateway's wishes it has
	kubeRouterBalance   = "kube-router.io/service.scheduler"
	ciliumBalance       = "service.cilium.io/lb-algorithm"
)

// The reasons of problems in the values and keys of annotations.
const (
	ReasonAnnotation        = "InvalidAnnotation"
	ReasonUnknownAnnotation = "UnknownAnnotation"
)

// ownPrefix begins the keys of all our annotations.
const ownPrefix = "fairway.net/"

// ownAnnotations are the keys with ownPrefix that have an effect on a Service, in any part of Fairway. A test finds
// missing keys.
var ownAnnotations = []string{annotationBalance, AnnotationWeights, annotationClose, annotationEjection, AnnotationEgress, AnnotationGateway}

// podAnnotations are the keys with ownPrefix that have an effect on a Pod.
var podAnnotations = []string{annotationWeight, "fairway.net/settings-hash"}

// otherAnnotations are the keys with ownPrefix that have an effect on other objects.
var otherAnnotations = []string{AnnotationLink, AnnotationEndpointWeights, AnnotationAddresses}

// maxUnknown is the largest number of unknown keys that are reported for one object.
const maxUnknown = 3

// UnknownAnnotations returns a message for each key with the prefix that has no effect on an object of this kind. own
// are the keys with an effect. Without the message a misspelt key would silently do nothing.
func UnknownAnnotations(prefix, kind string, annotations map[string]string, own []string) (texts []string) {
	var unknown []string
	for key := range annotations {
		if strings.HasPrefix(key, prefix) && !slices.Contains(own, key) {
			unknown = append(unknown, key)
		}
	}
	slices.Sort(unknown)
	for _, key := range unknown[:min(len(unknown), maxUnknown)] {
		message := fmt.Sprintf("annotation %s has no effect on a %s", ReadAnnotation(key), kind)
		near := text.Closest(strings.TrimPrefix(key, prefix), trimPrefixes(prefix, own))
		switch object := objectOf(key); {
		case object != "" && near != "":
			message += fmt.Sprintf(": it belongs on %s; on a %s there is %s%s", object, kind, prefix, near)
		case object != "":
			message += ": it belongs on " + object
		case near != "":
			message += fmt.Sprintf(" [did you mean %s%s?]", prefix, near)
		}
		texts = append(texts, message)
	}
	return texts
}

// objectOf returns the kind of object that has our annotation, as text; empty: we have no annotation of this key.
func objectOf(key string) string {
	switch {
	case slices.Contains(ownAnnotations, key):
		return "a Service"
	case slices.Contains(podAnnotations, key):
		return "a Pod"
	case slices.Contains(otherAnnotations, key):
		return "another object"
	}
	return ""
}

// bandwidthAnnotations are the annotations of a Pod that the container runtime passes to the CNI plugin.
var bandwidthAnnotations = []string{"kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"}

// misspeltBandwidth returns a message for each key that looks like a bandwidth limit and has no effect.
func misspeltBandwidth(annotations map[string]string) (texts []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		prefix, name, _ := strings.Cut(key, "/")
		ours := prefix == "kubernetes.io" || prefix+"/" == ownPrefix
		if !ours || !strings.Contains(name, "band") || slices.Contains(bandwidthAnnotations, key) {
			continue
		}
		if near := text.Closest("kubernetes.io/"+name, bandwidthAnnotations); near != "" {
			texts = append(texts, fmt.Sprintf("annotation %s limits no bandwidth [did you mean %s?]", ReadAnnotation(key), near))
		}
	}
	return texts[:min(len(texts), maxUnknown)]
}

func trimPrefixes(prefix string, keys []string) (names []string) {
	for _, k := range keys {
		names = append(names, strings.TrimPrefix(k, prefix))
	}
	return names
}

// annotations reads a Service's annotations into svc. An invalid value is ignored and reported.
func annotations(o *corev1.Service, svc *service.Service, bad *Problems) {
	read := func(key string) (string, bool) {
		value, ok := o.Annotations[key]
		return ReadAnnotation(value), ok
	}
	for _, key := range [...]string{annotationBalance, kubeRouterBalance, ciliumBalance} {
		value, ok := read(key)
		if !ok {
			continue
		}
		a, err := service.ParseAlgorithm(value)
		if err != nil {
			bad.Add(ReasonAnnotation, "annotation %s: %v; using the node's default", key, err)
		} else {
			svc.Balance, svc.Balanced = a, true
		}
		break // our annotation comes before the others
	}
	if value, ok := read(AnnotationWeights); ok {
		switch value {
		case "true":
			svc.Weighted = true
		case "false":
		default:
			bad.Add(ReasonAnnotation, "annotation %s: %q is neither true nor false; its pods' weights do not count", AnnotationWeights, value)
		}
	}
	if value, ok := read(annotationClose); ok {
		c, err := service.ParseTerminationPolicy(value)
		if err != nil {
			bad.Add(ReasonAnnotation, "annotation %s: %v; using %v", annotationClose, err, c)
		}
		svc.Termination = c
	}
	if value, ok := read(annotationEjection); ok {
		d, err := service.ParseEjection(value)
		if err != nil {
			bad.Add(ReasonAnnotation, "annotation %s: %v; using the node's default", annotationEjection, err)
		}
		svc.Ejection = d
	}
	if value, ok := read(AnnotationEgress); ok {
		svc.Egress = egressOf(o, value, bad)
	}
	for _, message := range UnknownAnnotations(ownPrefix, "Service", o.Annotations, ownAnnotations) {
		bad.Add(ReasonUnknownAnnotation, "%s", message)
	}
}

// egressOf reads the annotation that lets pods leave the cluster with a Service's address.
func egressOf(o *corev1.Service, value string, bad *Problems) *service.Egress {
	switch {
	case o.Spec.Type != corev1.ServiceTypeLoadBalancer:
		bad.Add(ReasonAnnotation, "annotation %s has no effect: the Service is not of type LoadBalancer", AnnotationEgress)
	case value == "namespace":
		return &service.Egress{All: true}
	case value != "pods":
		bad.Add(ReasonAnnotation, "annotation %s: %q is neither pods nor namespace; no pod leaves with the Service's address", AnnotationEgress, value)
	case len(o.Spec.Selector) == 0:
		bad.Add(ReasonAnnotation, "annotation %s has no effect: the Service has no selector", AnnotationEgress)
	default:
		return &service.Egress{Selector: o.Spec.Selector}
	}
	return nil
}

// annotationLimit is longer than any valid value, in bytes. The API allows 256 KiB, which would be in every message
// about the value.
const annotationLimit = 64

// ReadAnnotation returns the first bytes of an annotation, without surrounding space.
func ReadAnnotation(value string) string {
	if value = strings.TrimSpace(value); len(value) > annotationLimit {
		return api.Cut(value, annotationLimit) + "…"
	}
	return value
}
