package service

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

func TestWriteDiff(t *testing.T) {
	frontend := func(name string, ip byte) *Frontend {
		return &Frontend{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, ip}), 80), Proto: api.TCP,
			Service:  api.PortName{Name: api.Name{Namespace: "ns", Name: name}},
			Internal: &Route{Action: Reject}, External: &Route{Action: Reject},
		}
	}
	have := NewTable(Settings{}, []*Frontend{frontend("same", 1), frontend("gone", 2)})
	want := NewTable(Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, []*Frontend{frontend("same", 1), frontend("new", 3)})
	var text strings.Builder
	d := Compare("nftables", have, want)
	if err := d.WriteTable(&text, false); !d.Any() || err != nil {
		t.Errorf("they differ: %v, %v", d, err)
	}
	const all = `   NAMESPACE  SERVICE  KIND        ADDRESS           FROM  ACTION  SNAT  ENDPOINTS
-  ns         gone     ExternalIP  10.96.0.2:80/TCP  any   reject  -     -
+  ns         new      ExternalIP  10.96.0.3:80/TCP  any   reject  -     -
- pods -
+ pods 10.244.0.0/16
`
	if text.String() != all {
		t.Errorf("%s\nwant\n%s", &text, all)
	}
	text.Reset()
	if d := Compare("nftables", want, want); d.Any() || d.WriteTable(&text, false) != nil || text.Len() > 0 {
		t.Errorf("a table differs from itself: %v, %q", d, &text)
	}
	if only := have.Only(api.Name{Namespace: "ns", Name: "gone"}); only == nil || only.Entry(api.Name{Namespace: "ns", Name: "same"}) != nil || only.Entry(api.Name{Namespace: "ns", Name: "gone"}) == nil {
		t.Errorf("the table of one Service: %v", only)
	}
	if have.Only(api.Name{Namespace: "ns", Name: "new"}) != nil {
		t.Error("a Service that is not in the table has one")
	}
}
