package service_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
)

// dnsTable is the table of a Service with a UDP and a TCP port, a NodePort, and the
// given endpoints.
func dnsTable(eps ...service.SliceEndpoint) *service.Table {
	name := service.Name{Namespace: "ns", Name: "dns"}
	svc := &service.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []service.Port{
			{Name: "dns", Proto: service.UDP, Port: 53, NodePort: 30053},
			{Name: "dns-tcp", Proto: service.TCP, Port: 53},
		},
	}
	slice := &service.Slice{Name: name, Service: name, Endpoints: eps, Ports: []service.SlicePort{
		{Name: "dns", Proto: service.UDP, Port: 5353}, {Name: "dns-tcp", Proto: service.TCP, Port: 5353},
	}}
	b := service.NewBuilder()
	b.Set(service.Compile(svc, []*service.Slice{slice}, service.Vantage{Node: "n"}))
	return b.Table(service.Settings{})
}

func TestStale(t *testing.T) {
	pod := func(last byte, ready, serving, terminating bool) service.SliceEndpoint {
		return service.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, last}), Ready: ready, Serving: serving, Terminating: terminating}
	}
	one, two := pod(1, true, true, false), pod(2, true, true, false)
	empty := &service.Table{}
	for name, test := range map[string]struct {
		from, to *service.Table
		want     string
	}{
		"nothing changed":          {dnsTable(one, two), dnsTable(one, two), "[]"},
		"one more":                 {dnsTable(one), dnsTable(one, two), "[]"},
		"one is gone":              {dnsTable(one, two), dnsTable(two), "[0.0.0.0:30053>10.244.1.1:5353 10.96.0.10:53>10.244.1.1:5353]"},
		"one drains":               {dnsTable(one, two), dnsTable(pod(1, false, true, true), two), "[]"},
		"one that drained is gone": {dnsTable(pod(1, false, true, true), two), dnsTable(two), "[0.0.0.0:30053>10.244.1.1:5353 10.96.0.10:53>10.244.1.1:5353]"},
		"one serves no more":       {dnsTable(one, two), dnsTable(pod(1, false, false, true), two), "[0.0.0.0:30053>10.244.1.1:5353 10.96.0.10:53>10.244.1.1:5353]"},
		"scaled to zero":           {dnsTable(one), dnsTable(), "[0.0.0.0:30053>10.244.1.1:5353 10.96.0.10:53>10.244.1.1:5353]"},
		"from zero":                {dnsTable(), dnsTable(one), "[0.0.0.0:30053>invalid AddrPort 10.96.0.10:53>invalid AddrPort]"},
		"new":                      {empty, dnsTable(one), "[0.0.0.0:30053>invalid AddrPort 10.96.0.10:53>invalid AddrPort]"},
		"deleted":                  {dnsTable(one), empty, "[0.0.0.0:30053>10.244.1.1:5353 10.96.0.10:53>10.244.1.1:5353]"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range service.Stale(test.from, test.to) {
				if f.Proto != service.UDP {
					t.Errorf("%v is not UDP", f)
				}
				got = append(got, fmt.Sprintf("%v>%v", f.Frontend, f.Endpoint))
			}
			if fmt.Sprint(got) != test.want {
				t.Errorf("got  %v\nwant %v", got, test.want)
			}
		})
	}
}
