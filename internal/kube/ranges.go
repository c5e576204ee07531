package kube

import (
	"context"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/service"
)

// serviceRange is a ServiceCIDR: what ClusterIPs are taken from (KEP-1880).
type serviceRange struct{ prefixes []netip.Prefix }

func cutRange(obj any) (*serviceRange, int64) {
	o, ok := obj.(*networkingv1.ServiceCIDR)
	if !ok {
		return nil, 0
	}
	r := &serviceRange{}
	for _, text := range o.Spec.CIDRs {
		if p, ok := parsePrefix(text); ok { // the API server has checked it
			r.prefixes = append(r.prefixes, p)
		}
	}
	return r, 0
}

// ServiceCIDRs returns what ClusterIPs are taken from, sorted; none where the API server
// does not say (before Kubernetes 1.33, or without the right to read it).
func (s *Source) ServiceCIDRs() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []netip.Prefix
	for _, r := range s.ranges.all {
		all = append(all, r.prefixes...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// watchRanges watches ServiceCIDRs, if the API server has them: an older one must not
// keep the agent from working.
func (s *Source) watchRanges(ctx context.Context) {
	client := s.cfg.Client.NetworkingV1().ServiceCIDRs()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		_, err := client.List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err == nil:
			reflector(s, "servicecidrs", &networkingv1.ServiceCIDR{}, s.ranges, metav1.ListOptions{}, client).RunWithContext(ctx)
			return
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsMethodNotSupported(err):
			s.cfg.Log.Info("packets to ClusterIPs that no Service has are passed on: the API server does not tell which addresses are ClusterIPs", "err", oneLine(err))
			s.mu.Lock()
			s.ranges.listed = true
			s.mu.Unlock()
			s.firstList()
			return
		}
		t := time.NewTimer(pause) // the others log that the server is away
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// rangeFeed returns the feed of ServiceCIDRs. They are part of the node's settings.
func (s *Source) rangeFeed() *feed[serviceRange] {
	return &feed[serviceRange]{
		src: s, all: map[service.Name]*serviceRange{}, cut: cutRange,
		changed: func(service.Name, *serviceRange, *serviceRange, int64) { s.ring(s.nodeWake) },
	}
}
