package service

import (
	"net/netip"
	"strings"
	"testing"
)

func TestWriteDiff(t *testing.T) {
	frontend := func(name string, ip byte) *Frontend {
		return &Frontend{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, ip}), 80), Proto: TCP,
			Service:  PortName{Name: Name{"ns", name}},
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
	if only := have.Only(Name{"ns", "gone"}); only == nil || only.Entry(Name{"ns", "same"}) != nil || only.Entry(Name{"ns", "gone"}) == nil {
		t.Errorf("the table of one Service: %v", only)
	}
	if have.Only(Name{"ns", "new"}) != nil {
		t.Error("a Service that is not in the table has one")
	}
}
