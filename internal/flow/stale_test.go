package flow_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
)

// dns is a Service with a UDP and a TCP port, both with a NodePort.
func dns(change ...func(*service.Service)) *service.Service {
	svc := &service.Service{
		Name: api.Name{Namespace: "ns", Name: "dns"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []service.Port{
			{Name: "dns", Proto: api.UDP, Port: 53, NodePort: 30053},
			{Name: "tcp", Proto: api.TCP, Port: 53, NodePort: 30053},
		},
	}
	for _, c := range change {
		c(svc)
	}
	return svc
}

// tableOf returns the table of the Service with the given endpoints.
func tableOf(svc *service.Service, eps ...service.SliceEndpoint) *service.Table {
	return tableWith(service.Settings{}, svc, eps...)
}

func tableWith(s service.Settings, svc *service.Service, eps ...service.SliceEndpoint) *service.Table {
	slice := &service.Slice{Name: svc.Name, Service: svc.Name, Endpoints: eps, Ports: []service.SlicePort{
		{Name: "dns", Proto: api.UDP, Port: 5353}, {Name: "tcp", Proto: api.TCP, Port: 5353},
	}}
	var pods []string
	for _, e := range eps {
		pods = append(pods, map[bool]string{true: fmt.Sprint("pod-", e.Addr)}[e.Addr.Is4() && e.Addr.As4()[3] < 100])
	}
	slice.Pods = service.PackPodNames(pods)
	b := service.NewBuilder()
	b.Set(service.Compile(svc, []*service.Slice{slice}, service.Facts{Node: service.Node{Name: "n"}}))
	return b.Table(s)
}

// pod returns an endpoint. Endpoints from 100 on are not pods.
func pod(last byte, ready, serving, terminating bool) service.SliceEndpoint {
	return service.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, last}), Ready: ready, Serving: serving, Terminating: terminating}
}

// flowsOf writes flows of one protocol as "vip>1" and "node>2": the frontend and the last number of the endpoint. "?"
// marks an unconfirmed flow, "!" an address that is no longer served, and "~" an unanswered connection.
func flowsOf(flows []flow.Flow, proto api.Proto) string {
	var out []string
	for _, f := range flows {
		if f.Proto != proto {
			continue
		}
		text := map[string]string{
			"10.96.0.10:53": "vip", "203.0.113.1:53": "lb", "0.0.0.0:30053": "node", "10.96.0.10:54": "vip54", "10.96.0.11:53": "new",
		}[f.Frontend.String()] + ">"
		if f.Endpoint.IsValid() {
			text += fmt.Sprint(f.Endpoint.Addr().As4()[3])
		}
		if f.Unconfirmed {
			text += "?"
		}
		if f.OnlyUnserved {
			text += "!"
		}
		if f.OnlyUnanswered {
			text += "~"
		}
		if f.Namespace != "ns" {
			text += " in " + f.Namespace
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func TestStale(t *testing.T) {
	one, two := pod(1, true, true, false), pod(2, true, true, false)
	noNodePort := func(s *service.Service) { s.Ports[0].NodePort, s.Ports[1].NodePort = 0, 0 }
	balancer := func(s *service.Service) { s.BalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")} }
	otherPort := func(s *service.Service) { s.Ports[0].Port, s.Ports[1].Port = 54, 54 }
	local := func(s *service.Service) { s.ExternalLocal = true }
	unready := func(s *service.Service) { s.Termination = service.TerminateUnready }
	never := func(s *service.Service) { s.Termination = service.TerminateNever }
	empty := &service.Table{}
	for name, test := range map[string]struct {
		from, to *service.Table
		udp, tcp string
	}{
		"nothing changed":               {tableOf(dns(), one, two), tableOf(dns(), one, two), "", ""},
		"one more":                      {tableOf(dns(), one), tableOf(dns(), one, two), "", ""},
		"one is gone":                   {tableOf(dns(), one, two), tableOf(dns(), two), "node>1 vip>1", "node>1? vip>1?"},
		"one is not ready":              {tableOf(dns(), one, two), tableOf(dns(), pod(1, false, true, false), two), "", "node>1~ vip>1~"},
		"one drains":                    {tableOf(dns(), one, two), tableOf(dns(), pod(1, false, true, true), two), "", "node>1~ vip>1~"},
		"one that drained is gone":      {tableOf(dns(), pod(1, false, true, true), two), tableOf(dns(), two), "node>1 vip>1", "node>1 vip>1"},
		"one that drained, and another": {tableOf(dns(), pod(1, false, true, true), two), tableOf(dns()), "node>1 node>2 vip>1 vip>2", "node>1? node>2? vip>1? vip>2?"},
		"two that drained are gone":     {tableOf(dns(), pod(1, false, true, true), pod(2, false, true, true)), tableOf(dns()), "node>1 node>2 vip>1 vip>2", "node>1 node>2 vip>1 vip>2"},
		"one that is no pod drained":    {tableOf(dns(), pod(100, false, true, true), two), tableOf(dns(), two), "node>100 vip>100", "node>100? vip>100?"},
		"one drained, all is deleted":   {tableOf(dns(), pod(1, false, true, true)), empty, "node>1 vip>1", "node>1? vip>1?"},
		"one serves no more":            {tableOf(dns(), one, two), tableOf(dns(), pod(1, false, false, true), two), "node>1 vip>1", "node>1~ vip>1~"},
		"one that stopped is gone":      {tableOf(dns(), pod(1, false, false, true), two), tableOf(dns(), two), "", "node>1 vip>1"},
		"one that never served is gone": {tableOf(dns(), pod(1, false, false, false), two), tableOf(dns(), two), "", "node>1? vip>1?"},
		"scaled to zero":                {tableOf(dns(), one), tableOf(dns()), "node>1 vip>1", "node>1? vip>1?"},
		"scaled to zero, of two":        {tableOf(dns(), one, two), tableOf(dns()), "node>1 node>2 vip>1 vip>2", "node>1? node>2? vip>1? vip>2?"},
		"from zero":                     {tableOf(dns()), tableOf(dns(), one), "node> vip>", ""},
		"from none that serves":         {tableOf(dns(), pod(1, false, false, false)), tableOf(dns(), one), "node> vip>", ""},
		"new":                           {empty, tableOf(dns(), one), "node> vip>", ""},
		"deleted":                       {tableOf(dns(), one), empty, "node>1 vip>1", "node>1? vip>1?"},
		"NodePort gone":                 {tableOf(dns(), one), tableOf(dns(noNodePort), one), "node>1", ""},
		"NodePort and endpoint gone":    {tableOf(dns(), one), tableOf(dns(noNodePort)), "node>1 vip>1", "node>1? vip>1?"},
		"balancer's address gone":       {tableOf(dns(balancer), one), tableOf(dns(), one), "lb>1", ""},
		"balancer's address is new":     {tableOf(dns(), one), tableOf(dns(balancer), one), "lb>", "lb>~"},
		"new address, no endpoint":      {tableOf(dns()), tableOf(dns(balancer)), "", ""},
		"port changed":                  {tableOf(dns(noNodePort), one), tableOf(dns(noNodePort, otherPort), one), "vip>1 vip54>", ""},
		"policy Local, not ready":       {tableOf(dns(local), one, two), tableOf(dns(local), pod(1, false, true, false), two), "", "node>1~ vip>1~"},
		"policy Local, gone":            {tableOf(dns(local), one, two), tableOf(dns(local), two), "node>1 vip>1", "node>1? vip>1?"},
		"unready: not ready":            {tableOf(dns(unready), one, two), tableOf(dns(unready), pod(1, false, true, false), two), "", "node>1~ vip>1~"},
		"unready: serves no more":       {tableOf(dns(unready), one, two), tableOf(dns(unready), pod(1, false, false, false), two), "node>1 vip>1", "node>1 vip>1"},
		"unready: gone":                 {tableOf(dns(unready), one, two), tableOf(dns(unready), two), "node>1 vip>1", "node>1 vip>1"},
		"unready from now on":           {tableOf(dns(), pod(1, false, false, false), two), tableOf(dns(unready), pod(1, false, false, false), two), "", "node>1 vip>1"},
		"unready: deleted":              {tableOf(dns(unready), one), empty, "node>1 vip>1", "node>1 vip>1"},
		"never: serves no more":         {tableOf(dns(never), one, two), tableOf(dns(never), pod(1, false, false, false), two), "node>1 vip>1", "node>1~ vip>1~"},
		"never: gone":                   {tableOf(dns(never), one, two), tableOf(dns(never), two), "node>1 vip>1", "node>1~ vip>1~"},
		"never: deleted":                {tableOf(dns(never), one), empty, "node>1 vip>1", ""},
		"never from now on, and gone":   {tableOf(dns(), one, two), tableOf(dns(never), two), "node>1 vip>1", "node>1~ vip>1~"},
		"not never any more, and gone":  {tableOf(dns(never), one, two), tableOf(dns(), two), "node>1 vip>1", "node>1? vip>1?"},
		"what a datapath reads back":    {readBack(tableOf(dns(), one, two)), tableOf(dns(), two), "node>1 vip>1", "node>1? vip>1?"},
		"read back, and nothing is new": {readBack(tableOf(dns(), one, pod(2, false, true, true))), tableOf(dns(), one, pod(2, false, true, true)), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			flows := flow.Stale(test.from, test.to)
			if udp, tcp := flowsOf(flows, api.UDP), flowsOf(flows, api.TCP); udp != test.udp || tcp != test.tcp {
				t.Errorf("UDP %q, want %q; TCP %q, want %q", udp, test.udp, tcp, test.tcp)
			}
			if !slices.IsSortedFunc(flows, func(a, b flow.Flow) int { return a.Frontend.Compare(b.Frontend) }) {
				t.Errorf("not sorted: %v", flows)
			}
		})
	}
}

// readBack returns the table without the fields that the kernel does not hold.
func readBack(t *service.Table) *service.Table {
	var all []*service.Frontend
	for f := range t.Frontends() {
		held := *f
		held.Retained, held.Termination = nil, service.TerminateGone
		all = append(all, &held)
	}
	return service.NewTable(t.Settings, all)
}

// An address moves to another Service, while the first Service still has the endpoint at its NodePort.
func TestStaleNewOwner(t *testing.T) {
	from := tableOf(dns(), pod(1, true, true, false))
	elsewhere := dns(func(s *service.Service) { s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11")} })
	other := dns(func(s *service.Service) { s.Name.Name = "other"; s.Ports = s.Ports[1:]; s.Ports[0].NodePort = 0 })
	all := slices.Concat(
		slices.Collect(tableOf(elsewhere, pod(1, true, true, false)).Frontends()),
		slices.Collect(tableOf(other, pod(2, true, true, false)).Frontends()),
	)
	flows := flow.Stale(from, service.NewTable(service.Settings{}, all))
	if udp, tcp := flowsOf(flows, api.UDP), flowsOf(flows, api.TCP); udp != "vip>1 new>" || tcp != "vip>1~" {
		t.Errorf("UDP %q, TCP %q", udp, tcp)
	}
}

// NodePorts that move to other addresses of the node leave UDP flows behind.
func TestStaleMoved(t *testing.T) {
	on := func(addr string) service.Settings {
		return service.Settings{NodePorts: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	one, two := pod(1, true, true, false), pod(2, true, true, false)
	from := tableWith(on("172.18.0.11/32"), dns(), one, two)
	for name, test := range map[string]struct {
		to   *service.Table
		want string
	}{
		"moved":              {tableWith(on("172.18.0.99/32"), dns(), one, two), "node> node>1! node>2!"},
		"moved, and one new": {tableWith(on("172.18.0.99/32"), dns(), one, pod(3, true, true, false)), "node> node>1! node>2 node>3! vip>2"},
		"moved, and empty":   {tableWith(on("172.18.0.99/32"), dns()), "node>1 node>2 vip>1 vip>2"},
		"moved, and gone":    {tableWith(on("172.18.0.99/32"), dns(func(s *service.Service) { s.Ports[0].NodePort = 0 }), one, two), "node>1 node>2"},
		"not moved":          {tableWith(on("172.18.0.11/32"), dns(), one, two), ""},
	} {
		if got := flowsOf(flow.Stale(from, test.to), api.UDP); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
