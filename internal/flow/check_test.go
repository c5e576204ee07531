package flow_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
)

// TestChecker: the flows that a table allows, each by itself.
func TestChecker(t *testing.T) {
	name := api.Name{Namespace: "shop", Name: "dns"}
	ap := netip.MustParseAddrPort
	table := func(closing service.TerminationPolicy, endpoints ...service.SliceEndpoint) *service.Table {
		b := service.NewBuilder()
		b.Set(service.Compile(&service.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Termination: closing,
			Ports: []service.Port{{Name: "udp", Proto: api.UDP, Port: 53, NodePort: 30053}, {Name: "tcp", Proto: api.TCP, Port: 53, NodePort: 30053}},
		}, []*service.Slice{{Name: name, Service: name, Endpoints: endpoints, Ports: []service.SlicePort{
			{Name: "udp", Proto: api.UDP, Port: 5353}, {Name: "tcp", Proto: api.TCP, Port: 5353},
		}}}, service.Facts{Node: service.Node{Name: "n"}}))
		return b.Table(service.Settings{
			NodePorts:    []netip.Prefix{netip.MustParsePrefix("172.18.0.0/24")},
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		})
	}
	pod := func(last byte, ready bool) service.SliceEndpoint {
		return service.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, last}), Ready: ready, Serving: ready}
	}
	two := []service.SliceEndpoint{pod(1, true), pod(2, false)} // endpoint 2 is in the Service but not ready
	const right, wrong, unconfirmed, unanswered = "right", "wrong", "wrong if shop has no such pod", "wrong if not answered"
	for _, c := range []struct {
		what     string
		table    *service.Table
		proto    api.Proto
		to, by   string
		want     string
		endpoint string // in the answer, if it differs
	}{
		{what: "to an endpoint", proto: api.UDP, to: "10.96.0.10:53", by: "10.244.1.1:5353", want: right},
		{what: "to an endpoint by the NodePort", proto: api.UDP, to: "172.18.0.11:30053", by: "10.244.1.1:5353", want: right},
		{what: "to one that does not serve", proto: api.UDP, to: "10.96.0.10:53", by: "10.244.1.2:5353", want: wrong},
		{what: "to one that is not there", proto: api.UDP, to: "10.96.0.10:53", by: "10.244.1.3:5353", want: wrong},
		{what: "to one that is not there, by the NodePort", proto: api.UDP, to: "172.18.0.11:30053", by: "10.244.1.3:5353", want: wrong},
		{what: "NodePort on an address without", proto: api.UDP, to: "172.19.0.11:30053", by: "10.244.1.3:5353", want: right},
		{what: "untranslated", proto: api.UDP, to: "10.96.0.10:53", by: "10.96.0.10:53", want: wrong, endpoint: "none"},
		{what: "untranslated, no endpoint", table: table(0), proto: api.UDP, to: "10.96.0.10:53", by: "10.96.0.10:53", want: right, endpoint: "none"},
		{what: "untranslated NodePort of ours", proto: api.UDP, to: "172.18.0.11:30053", by: "172.18.0.11:30053", want: wrong, endpoint: "none"},
		{what: "untranslated NodePort of another node", proto: api.UDP, to: "172.18.0.12:30053", by: "172.18.0.12:30053", want: right, endpoint: "none"},
		{what: "a Service that is gone", proto: api.UDP, to: "10.96.0.11:53", by: "10.244.1.1:5353", want: wrong},
		{what: "a Service that is gone, TCP", proto: api.TCP, to: "10.96.0.11:53", by: "10.244.1.1:5353", want: right},
		{what: "a client of the ClusterIPs' range that was not translated", proto: api.UDP, to: "10.96.0.11:53", by: "10.96.0.11:53", want: right, endpoint: "none"},
		{what: "nothing of ours", proto: api.UDP, to: "192.0.2.1:53", by: "192.0.2.7:53", want: right},
		{what: "TCP to an endpoint", proto: api.TCP, to: "10.96.0.10:53", by: "10.244.1.1:5353", want: right},
		{what: "TCP to one that is not ready", proto: api.TCP, to: "10.96.0.10:53", by: "10.244.1.2:5353", want: unanswered},
		{what: "TCP to one that is not ready, which ends it", table: table(service.TerminateUnready, two...), proto: api.TCP, to: "10.96.0.10:53", by: "10.244.1.2:5353", want: wrong},
		{what: "TCP to one that is not there", proto: api.TCP, to: "172.18.0.11:30053", by: "10.244.1.3:5353", want: unconfirmed},
		{what: "TCP that never ends", table: table(service.TerminateNever, two...), proto: api.TCP, to: "10.96.0.10:53", by: "10.244.1.3:5353", want: unanswered},
		{what: "TCP untranslated", proto: api.TCP, to: "10.96.0.10:53", by: "10.96.0.10:53", want: unanswered, endpoint: "none"},
		{what: "TCP untranslated, no endpoint", table: table(0), proto: api.TCP, to: "10.96.0.10:53", by: "10.96.0.10:53", want: right, endpoint: "none"},
		{what: "TCP untranslated, NodePort of another node", proto: api.TCP, to: "172.18.0.12:30053", by: "172.18.0.12:30053", want: right, endpoint: "none"},
	} {
		if c.table == nil {
			c.table = table(service.TerminateGone, two...)
		}
		local := func(a netip.Addr) bool { return a == netip.MustParseAddr("172.18.0.11") }
		got, is := flow.NewChecker(c.table).Check(flow.Flow{Proto: c.proto, Frontend: ap(c.to), Endpoint: ap(c.by)}, local)
		verdict := map[bool]string{true: wrong, false: right}[is]
		switch {
		case is && got.Unconfirmed:
			verdict = fmt.Sprintf("wrong if %s has no such pod", got.Namespace)
		case is && got.OnlyUnanswered:
			verdict = unanswered
		}
		endpoint := map[bool]netip.AddrPort{false: ap(c.by)}[c.endpoint == "none"]
		if verdict != c.want || got.Endpoint != endpoint || got.Frontend != ap(c.to) {
			t.Errorf("%s: %s (%+v), want %s", c.what, verdict, got, c.want)
		}
	}
}
