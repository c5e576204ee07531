package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// The parts of Kubernetes objects that the demo reads.
type (
	nodeList struct{ Items []node }
	node     struct {
		Metadata struct{ Name string }
		Status   struct {
			Addresses  []struct{ Type, Address string }
			Conditions []struct{ Type, Status string }
		}
	}
	podList struct{ Items []pod }
	pod     struct {
		Metadata struct {
			Name              string
			DeletionTimestamp *string
		}
		Spec   struct{ NodeName string }
		Status struct {
			PodIP      netip.Addr
			Conditions []struct{ Type, Status string }
		}
	}
	service struct {
		Spec struct {
			ClusterIP netip.Addr
			Ports     []struct{ Port, NodePort uint16 }
		}
	}
	sliceList struct {
		Items []struct {
			Endpoints []struct {
				Addresses  []netip.Addr
				Conditions struct{ Ready *bool }
			}
		}
	}
)

// ready reports whether a pod takes requests and is not terminating.
func (p pod) ready() bool {
	return p.Metadata.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions,
		func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
}

// address returns the node's address in the lab's network.
func (n node) address() (netip.Addr, error) {
	for _, a := range n.Status.Addresses {
		if a.Type == "InternalIP" {
			return netip.ParseAddr(a.Address)
		}
	}
	return netip.Addr{}, fmt.Errorf("node %s has no InternalIP", n.Metadata.Name)
}

func (n node) ready() bool {
	return slices.ContainsFunc(n.Status.Conditions,
		func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
}

// pods returns the pods of one app of the example, terminating ones too.
func (d *demo) pods(ctx context.Context, app string) ([]pod, error) {
	var list podList
	err := d.get(ctx, &list, "pods", "-l", "app="+app)
	return list.Items, err
}

// service returns a Service's first address and port.
func (d *demo) service(ctx context.Context, name string) (at netip.AddrPort, nodePort uint16, err error) {
	var s service
	if err := d.get(ctx, &s, "service", name); err != nil {
		return at, 0, err
	}
	if len(s.Spec.Ports) == 0 || !s.Spec.ClusterIP.IsValid() {
		return at, 0, fmt.Errorf("service %s has no address or no port", name)
	}
	p := s.Spec.Ports[0]
	return netip.AddrPortFrom(s.Spec.ClusterIP, p.Port), p.NodePort, nil
}

// endpoints returns the addresses that a Service's requests may go to.
func (d *demo) endpoints(ctx context.Context, service string) ([]netip.Addr, error) {
	var list sliceList
	if err := d.get(ctx, &list, "endpointslices", "-l", "kubernetes.io/service-name="+service); err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				addrs = append(addrs, e.Addresses...)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, nil
}

// scale sets a deployment's replicas. It waits until exactly this many pods exist, all ready, and are the Service's
// endpoints.
func (d *demo) scale(ctx context.Context, app string, replicas int) error {
	if _, err := d.kubectl(ctx, "scale", "deployment", app+"-deployment", fmt.Sprintf("--replicas=%d", replicas)); err != nil {
		return err
	}
	return d.awaitReplicas(ctx, app, replicas)
}

func (d *demo) awaitReplicas(ctx context.Context, app string, replicas int) error {
	want := fmt.Sprintf("%d ready pods of the %s, and as many endpoints", replicas, app)
	return until(ctx, want, func() (string, bool, error) {
		pods, err := d.pods(ctx, app)
		if err != nil {
			return "", false, err
		}
		ready := 0
		for _, p := range pods {
			if p.ready() {
				ready++
			}
		}
		endpoints, err := d.endpoints(ctx, app+"-service")
		seen := fmt.Sprintf("%d pods, %d ready, endpoints %v", len(pods), ready, endpoints)
		return seen, ready == replicas && len(pods) == replicas && len(endpoints) == replicas, err
	})
}
