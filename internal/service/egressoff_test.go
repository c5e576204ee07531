package service_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// TestEgressOff: a Service that asks for egress addresses gets a problem if the node has none. Other Services get no
// problem.
func TestEgressOff(t *testing.T) {
	for _, test := range []struct {
		egress *service.Egress
		off    bool
		want   string
	}{
		{&service.Egress{All: true}, true, "EgressUnavailable"},
		{&service.Egress{All: true}, false, ""},
		{nil, true, ""},
	} {
		svc := &service.Service{Name: api.Name{Namespace: "shop", Name: "out"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}, Egress: test.egress}
		var got []string
		for _, p := range service.Compile(svc, nil, service.Facts{Node: service.Node{EgressOff: test.off}}).Problems {
			got = append(got, p.Reason)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("egress %v, off %t: problems %q, want %q", test.egress, test.off, got, test.want)
		}
	}
}
