package page

import (
	"context"
	"fmt"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/path/page"
)

var state = page.State{Cluster: "https://127.0.0.1:6443", Loaded: true, Nodes: []string{"node-1", "node-2", "node-3"}}

// rows makes n Services in 40 namespaces.
func rows(n int) []page.Service {
	all := make([]page.Service, n)
	for i := range all {
		s := page.Service{Namespace: fmt.Sprintf("team-%d", i%40), Name: fmt.Sprintf("web-%d", i), Type: "ClusterIP", Addresses: []string{fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)},
			Ports: []string{"80/TCP"}, Ready: 2, Endpoints: 2}
		switch i % 25 {
		case 3:
			s.Type, s.Ports = "NodePort", []string{fmt.Sprintf("80:%d/TCP", 30000+i%2768), "53/UDP"}
		case 4:
			s.Type, s.Announcers = "LoadBalancer", []string{"node-2"}
			s.Addresses = append(s.Addresses, fmt.Sprintf("203.0.113.%d", i%250))
		case 5:
			s.Ready, s.Endpoints, s.Finding = 0, 0, "no endpoints"
		case 6:
			s.Ready, s.Finding = 0, "no endpoint is ready"
		case 8:
			s.Type, s.Addresses, s.Ports, s.Ready, s.Endpoints = "ExternalName", []string{"db.example.com"}, nil, 0, 0
		}
		all[i] = s
	}
	return all
}

func is(f float64) *float64 { return &f }

// A cluster answers with one Service and one path.
type cluster struct{}

func (cluster) View(_ context.Context, name api.Name, node, from string) (*page.View, error) {
	if name.String() != "shop/web" {
		return nil, nil
	}
	ends := []page.Endpoint{
		{Address: "10.244.1.5:8080", Pod: "web-7d9f-a", Node: "node-1", Used: true, Share: 0.75, Health: "ready"},
		{Address: "10.244.2.6:8080", Pod: "web-7d9f-b", Node: "node-2", Used: true, Share: 0.25, Health: "ready"},
		{Address: "10.244.2.7:8080", Pod: "web-7d9f-c", Node: "node-2", Reason: "not ready", Health: "not ready: its readiness probe fails (HTTP :8080/healthz)"},
		{Address: "10.244.3.8:8080", Pod: "web-7d9f-d", Node: "node-3", Reason: "its zone hint is b, node-1 is in a", Health: "ready"},
	}
	return &page.View{
		Service:  page.Service{Namespace: "shop", Name: "web", Type: "LoadBalancer", Addresses: []string{"10.96.0.9", "203.0.113.7", "203.0.113.8"}, Ports: []string{"80:30080/TCP"}, Ready: 3, Endpoints: 4},
		Selector: "app=web", Node: "node-1", Zone: "a", From: from,
		Groups: []page.Group{{Frontends: []page.Frontend{
			{Address: "10.96.0.9:80/TCP", Kind: "ClusterIP", Port: "http", Action: "forward", Source: "client", Options: []string{"affinity 3h0m0s"}},
			{Address: "203.0.113.7:80/TCP", Kind: "LoadBalancer", Port: "http", Action: "forward", Source: "node"},
			{Address: "0.0.0.0:30080/TCP", Kind: "NodePort", Port: "http", ServedAt: []string{"192.168.49.2"}, Action: "forward", Source: "node"},
		}, Endpoints: ends}},
		Policies: page.Policies{Pods: 4, Selecting: []page.PolicyOfPods{{Direction: "ingress", Name: "shop/allow-cart", Pods: 4}, {Direction: "egress", Name: "baseline", Tier: "Admin", Pods: 4}}},
		Announced: []page.Announced{
			{Address: "203.0.113.7", By: []page.Announce{{Node: "node-2", Protocol: "l2", Since: time.Now().Add(-3 * time.Hour), Through: []string{"eth0"}}},
				Elsewhere: []page.Announce{{Node: "node-1", Protocol: "l2", Reason: "node-2 comes before it in the election"}}},
			{Address: "203.0.113.8", By: []page.Announce{}, Reason: "no L2Advertisement selects its pool", Elsewhere: []page.Announce{}},
		},
		Events:   []page.Event{{Time: time.Now().Add(-5 * time.Minute), Type: "Warning", Reason: "FailedToUpdateEndpointSlices", Message: "Error updating Endpoint Slices for Service shop/web: conflict", Count: 4}},
		Findings: []string{"203.0.113.8 is announced by nobody"},
	}, nil
}

func (cluster) Traffic(ctx context.Context, service api.Name, send func(page.Traffic)) error {
	all := page.Traffic{Nodes: 3, Of: 3, Edges: []page.Edge{
		{Node: "node-1", To: "shop/web:http", Service: "shop/web", Connections: 120, New: is(14), Bytes: is(2.5e6)},
		{Node: "node-2", To: "shop/web:http", Service: "shop/web", Connections: 40, New: is(3), Bytes: is(4e5)},
		{Node: "node-3", To: "kube-system/kube-dns:dns", Service: "kube-system/kube-dns", Connections: 9, New: is(30), Bytes: is(9000)},
		{Node: "node-1", To: "shop/db", Service: "shop/db", Connections: 3, New: is(0), Refused: 4},
	}, Notes: []page.Note{{Text: "node-3: conntrack counts no bytes there", Advice: "sysctl -w net.netfilter.nf_conntrack_acct=1 on the node"}}}
	if service.Name != "" {
		all.Edges = []page.Edge{
			{Node: "node-1", To: "10.244.1.5:8080", Service: "shop/web", Pod: "web-7d9f-a", At: "node-1", Connections: 90, New: is(10), Bytes: is(2e6)},
			{Node: "node-1", To: "10.244.2.6:8080", Service: "shop/web", Pod: "web-7d9f-b", At: "node-2", Connections: 30, New: is(4), Bytes: is(5e5)},
			{Node: "node-2", To: "10.244.2.6:8080", Service: "shop/web", Pod: "web-7d9f-b", At: "node-2", Connections: 40, New: is(3), Bytes: is(4e5), Unanswered: 2},
		}
	}
	for ctx.Err() == nil {
		send(all)
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func (cluster) Ask(ctx context.Context, q page.Question, send func(page.Answer)) error {
	p := &path.Path{
		From: path.End{Kind: "Pod", NS: "shop", Name: "cart", IP: "10.244.1.100", Node: "node-1"}, To: path.Target{Asked: q.To, Service: "shop/web:http", Key: "10.96.0.9:80/TCP"},
		Verdict: path.Verdict{Predicted: path.Delivered, Step: 4},
		Steps: []path.Step{
			{N: 1, Node: "node-1", Kind: path.KindService, State: path.Accepted, Text: "ClusterIP", Detail: "internalTrafficPolicy Cluster, random", Refs: []path.Ref{{API: "Service", NS: "shop", Name: "web", Field: "spec.ports[0]"}}},
			{N: 2, Node: "node-1", Kind: path.KindNAT, State: path.Accepted, Text: "dnat, one of 2", Before: &path.Addresses{Src: "10.244.1.100:61044", Dst: "10.96.0.9:80"}, After: &path.Addresses{Src: "10.244.1.100:61044", Dst: "10.244.2.6:8080"}},
			{N: 3, Node: "node-1", Kind: path.KindRoute, State: path.Accepted, Text: "route 10.244.2.0/24", Detail: "to node-2"},
			{N: 4, Node: "node-2", Kind: path.KindSocket, State: path.Delivered, Text: "to web-7d9f-b", Detail: "policies allow it"},
		},
		Candidates: []path.Candidate{{Addr: "10.244.1.5:8080", Pod: "web-7d9f-a", Node: "node-1", Kept: true, Share: 0.5}, {Addr: "10.244.2.6:8080", Pod: "web-7d9f-b", Node: "node-2", Kept: true, Share: 0.5, Followed: true},
			{Addr: "10.244.2.7:8080", Pod: "web-7d9f-c", Node: "node-2", Reason: "not ready: its readiness probe fails (HTTP :8080/healthz)"}},
		Reply: []path.Step{}, Findings: []path.Finding{}, NotLooked: []string{},
	}
	send(page.Answer{Path: p})
	if !q.Prove {
		return nil
	}
	for _, text := range []string{"prerouting inet fairway services #12: goto", "prerouting inet fairway pick-2 #61: accept", "forward ip firewall forward #2: drop"} {
		time.Sleep(100 * time.Millisecond)
		send(page.Answer{Seen: &page.Seen{Node: "node-1", Text: text}})
	}
	no := false
	q2 := *p
	q2.Verdict.Observed, q2.Verdict.Agree = path.Dropped, &no
	q2.Steps = append([]path.Step{}, p.Steps[:3]...)
	for i := range q2.Steps[:2] {
		q2.Steps[i].Observed = path.Accepted
	}
	q2.Steps[2] = path.Step{N: 3, Node: "node-1", Kind: path.KindFilter, State: path.Dropped, Observed: path.Dropped, Predicted: &path.Foreseen{State: path.Delivered}, Text: "ends at forward by a rule", Detail: "ip firewall forward #2"}
	q2.Findings = []path.Finding{{Level: path.Fatal, Text: "Another program's rule ends it: ip firewall forward #2.", Advice: "nft -a list chain ip firewall forward"}}
	q2.Hops = []path.Hop{{Node: "node-1", In: "fw3f9a1c", TTL: 64, Agree: true, Observed: &path.Addresses{Src: "10.244.1.100:61044", Dst: "10.244.2.6:8080"}, Predicted: &path.Addresses{Src: "10.244.1.100:61044", Dst: "10.244.2.6:8080"}}}
	send(page.Answer{Path: &q2})
	return nil
}
