package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/service"
)

// The annotations of Services and Pods that say what the API has no field for. Those of
// others are read so that a cluster can change its proxy without editing Services.
const (
	annotationBalance = "fairway.net/balance"
	annotationWeights = "fairway.net/weights"           // of a Service: "true" lets its pods' weights count
	annotationWeight  = "fairway.net/weight"            // of a Pod
	annotationClose   = "fairway.net/close-connections" // which TCP connections end with their endpoint
	kubeRouterBalance = "kube-router.io/service.scheduler"
	ciliumBalance     = "service.cilium.io/lb-algorithm"
)

const reasonAnnotation = "InvalidAnnotation"

// annotations reads a Service's annotations into svc. An invalid value counts as if
// it were not there.
func annotations(o *corev1.Service, svc *service.Service, bad *problems) {
	read := func(key string) (string, bool) {
		text, ok := o.Annotations[key]
		return readAnnotation(text), ok
	}
	for _, key := range [...]string{annotationBalance, kubeRouterBalance, ciliumBalance} {
		text, ok := read(key)
		if !ok {
			continue
		}
		a, err := service.ParseAlgorithm(text)
		if err != nil {
			bad.add(reasonAnnotation, "annotation %s: %v; the node's default counts", key, err)
		} else {
			svc.Balance, svc.Balanced = a, true
		}
		break // ours before theirs
	}
	if text, ok := read(annotationWeights); ok {
		switch text {
		case "true":
			svc.Weighted = true
		case "false":
		default:
			bad.add(reasonAnnotation, "annotation %s: %q is neither true nor false; its pods' weights do not count", annotationWeights, text)
		}
	}
	if text, ok := read(annotationClose); ok {
		c, err := service.ParseTerminationPolicy(text)
		if err != nil {
			bad.add(reasonAnnotation, "annotation %s: %v; %v counts", annotationClose, err, c)
		}
		svc.Termination = c
	}
}

// annotationLimit is more than any value that makes sense has, in bytes: the API allows
// 256 KiB, which would be in every message about it.
const annotationLimit = 64

// readAnnotation returns the part of an annotation's text that is read.
func readAnnotation(text string) string {
	if text = strings.TrimSpace(text); len(text) > annotationLimit {
		return service.Cut(text, annotationLimit) + "…"
	}
	return text
}
