package page

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/fairway-net/fairway/internal/command/agent"
	kubepath "github.com/fairway-net/fairway/internal/kube/path"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/path"
	web "github.com/fairway-net/fairway/internal/path/page"
	"github.com/fairway-net/fairway/internal/service"
)

const (
	maxEndpoints = 500 // of a group. The used ones come first
	maxGroups    = 20
	maxFrontends = 200 // of a Service. A tenant may have thousands
)

// health knows the pods of a namespace and the endpoints of a Service.
type health struct {
	pods   map[string]*path.Pod
	slices []*service.Slice
}

// of says in words how an endpoint is.
func (h health) of(pod, addr string) string {
	for _, s := range h.slices {
		for i, e := range s.Endpoints {
			if e.Addr.String() != addr || s.Pods.At(i) != pod {
				continue
			}
			switch p := h.pods[pod]; {
			case e.Terminating && e.Serving:
				return "terminating, still serves"
			case e.Terminating:
				return "terminating"
			case e.Ready:
				return "ready"
			case p != nil && p.Unready() != "":
				return "not ready: " + p.Unready()
			}
			return "not ready"
		}
	}
	return "not known"
}

// groups puts frontends with the same endpoints together. It returns the number of frontends that are left out.
func groups(r service.Report, h health) (all []web.Group, more int) {
	all = []web.Group{}
	for i := range r.Frontends {
		f := &r.Frontends[i]
		if len(f.Traffic) == 0 {
			continue
		}
		if i >= maxFrontends {
			return all, more + len(r.Frontends) - i
		}
		t := f.Traffic[0]
		front := web.Frontend{Address: f.Address, Kind: string(f.Kind), Port: f.Port, ServedAt: f.ServedAt, Options: f.Options, Action: t.Action, Reason: t.Reason, Source: t.Source}
		eps, over := endpoints(t.Endpoints, h)
		same := slices.IndexFunc(all, func(g web.Group) bool { return g.More == over && reflect.DeepEqual(g.Endpoints, eps) })
		if same < 0 && len(all) == maxGroups {
			more++
		} else if same >= 0 {
			all[same].Frontends = append(all[same].Frontends, front)
		} else {
			all = append(all, web.Group{Frontends: []web.Frontend{front}, Endpoints: eps, More: over})
		}
	}
	return all, more
}

// endpoints converts the endpoints of one frontend. The shares count new connections.
func endpoints(from []service.EndpointReport, h health) (all []web.Endpoint, more int) {
	all = []web.Endpoint{}
	weight := func(e service.EndpointReport) int {
		if e.Weight != nil {
			return int(*e.Weight)
		}
		return 1
	}
	total, used := 0, 0
	for _, e := range from {
		if e.Used {
			total += weight(e)
			used++
		}
	}
	from = slices.Clone(from)
	slices.SortStableFunc(from, func(a, b service.EndpointReport) int {
		switch {
		case a.Used == b.Used:
			return 0
		case a.Used:
			return -1
		}
		return 1
	})
	more = max(0, len(from)-maxEndpoints)
	for _, e := range from[:len(from)-more] {
		addr := e.Address
		if ap, err := netip.ParseAddrPort(addr); err == nil {
			addr = ap.Addr().String()
		}
		x := web.Endpoint{Address: e.Address, Pod: e.Pod, Node: e.Node, Used: e.Used, Reason: e.Reason, Health: h.of(e.Pod, addr)}
		switch {
		case !e.Used:
		case total == 0: // weights of 0 only count as equal
			x.Share = 1 / float64(used)
		default:
			x.Share = float64(weight(e)) / float64(total)
		}
		all = append(all, x)
	}
	return all, more
}

// headless lists the endpoints of a Service without frontends. DNS answers with the ready endpoints.
func headless(eps []*service.Slice, h health) web.Group {
	g := web.Group{Frontends: []web.Frontend{}, Endpoints: []web.Endpoint{}}
	for _, s := range eps {
		for i, e := range s.Endpoints {
			x := web.Endpoint{Address: e.Addr.String(), Pod: s.Pods.At(i), Node: e.Node, Used: e.Ready}
			if x.Health = h.of(x.Pod, x.Address); !e.Ready {
				x.Reason = "the Service's name leaves out what is not ready"
			}
			g.Endpoints = append(g.Endpoints, x)
		}
	}
	slices.SortStableFunc(g.Endpoints, func(a, b web.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Pod, b.Pod))
	})
	g.More = max(0, len(g.Endpoints)-maxEndpoints)
	g.Endpoints = g.Endpoints[:len(g.Endpoints)-g.More]
	return g
}

// policies counts, for each policy and direction, the pods of the endpoints that it decides about.
func (s *source) policies(ctx context.Context, tool *agent.Tool, around *kubepath.Around, eps []*service.Slice) (web.Policies, error) {
	out := web.Policies{Selecting: []web.PolicyOfPods{}}
	seen := map[string]bool{}
	for _, slice := range eps {
		for i := range slice.Endpoints {
			name := slice.Pods.At(i)
			pod := around.Pods[name]
			if pod == nil || seen[name] {
				continue
			}
			seen[name] = true
			out.Pods++
			if pod.HostNetwork {
				continue // policies do not see it
			}
			for _, x := range networkpolicy.ExplainPod(around.Policies, pod.Pod) {
				for _, by := range x.IsolatedBy {
					out.Selecting = count(out.Selecting, web.PolicyOfPods{Direction: x.Direction, Name: by})
				}
				for _, by := range x.JudgedBy {
					out.Selecting = count(out.Selecting, web.PolicyOfPods{Direction: x.Direction, Name: fmt.Sprint(by.Name), Tier: by.Tier})
				}
			}
		}
	}
	if out.Pods == 0 {
		return out, nil
	}
	var err error
	out.NotEnforced, err = tool.PoliciesNotEnforced(ctx)
	return out, err
}

func count(all []web.PolicyOfPods, one web.PolicyOfPods) []web.PolicyOfPods {
	i := slices.IndexFunc(all, func(x web.PolicyOfPods) bool {
		return x.Direction == one.Direction && x.Name == one.Name && x.Tier == one.Tier
	})
	if i < 0 {
		all, i = append(all, one), len(all)
	}
	all[i].Pods++
	return all
}

func events(all []kubepath.Event) []web.Event {
	out := []web.Event{}
	for _, e := range all {
		out = append(out, web.Event(e))
	}
	return out
}
