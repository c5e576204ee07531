package nftset

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// TestKeys: parsing a key returns the frontend of the key.
func TestKeys(t *testing.T) {
	for _, addr := range []string{"10.96.0.1:80", "[fd00:10:96::1]:65535", "0.0.0.0:30080", "[::]:1"} {
		for _, proto := range []api.Proto{api.TCP, api.UDP, api.SCTP} {
			k := service.Key{Addr: netip.MustParseAddrPort(addr), Proto: proto}
			is4, nodePort := k.Addr.Addr().Is4(), k.Addr.Addr().IsUnspecified()
			if got, err := ParseFrontendKey(FrontendKey(k), is4, nodePort); err != nil || got != k {
				t.Errorf("%v: got %v, error %v", k, got, err)
			}
			if _, err := ParseFrontendKey(FrontendKey(k)[1:], is4, nodePort); err == nil {
				t.Errorf("%v: a short key was read", k)
			}
		}
		a := netip.MustParseAddrPort(addr)
		if got, rest, err := ParseAddrPort(append(AddrPort(a), 1, 2), a.Addr().Is4()); err != nil || got != a || !slices.Equal(rest, []byte{1, 2}) {
			t.Errorf("%v: got %v and %v, error %v", a, got, rest, err)
		}
	}
	if n, err := ParseNumber(Number(0xf0000003)); err != nil || n != 0xf0000003 {
		t.Errorf("got %#x, error %v", n, err)
	}
}

// TestVerdicts: a verdict returns its route, except the endpoints.
func TestVerdicts(t *testing.T) {
	for _, r := range []*service.Route{
		{Action: service.Reject}, {Action: service.Drop}, {}, {Masquerade: service.MasqueradeAll}, {Masquerade: service.MasqueradeOffCluster},
	} {
		for i := range 4 {
			v, forwards := VerdictFor(r, i&1 != 0, i&2 != 0)
			if got := v.Route(); !got.Equal(r) || forwards != (r.Action == service.Forward) {
				t.Errorf("%+v: verdict %#x is %+v", r, v, got)
			}
		}
	}
}

// TestCounts: an address stays in the set while a frontend needs it.
func TestCounts(t *testing.T) {
	fr := func(port uint16) *service.Frontend {
		return &service.Frontend{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port), ClusterIP: true}
	}
	c := Counts{}
	for i, step := range []struct {
		changes  []service.Change
		full     bool
		add, del int
	}{
		{[]service.Change{{New: fr(80)}, {New: fr(81)}}, true, 1, 0},
		{[]service.Change{{Old: fr(80)}}, false, 0, 0},
		{[]service.Change{{Old: fr(81), New: fr(81)}}, false, 0, 0},
		{[]service.Change{{New: fr(81)}}, true, 0, 0},
		{[]service.Change{{Old: fr(81)}}, false, 0, 1},
		{[]service.Change{{New: fr(80)}}, false, 1, 0},
		{nil, true, 0, 1},
	} {
		changed := c.Change(step.changes, ClusterIPsOf, step.full)
		add, del := c.Writes(ClusterIPs, changed, netip.Addr.AsSlice)
		if len(add) != step.add || len(del) != step.del {
			t.Errorf("step %d: added %v, deleted %v", i, add, del)
		}
		c.Note(changed)
	}
}

// TestChangeSources: a restriction comes before its frontend serves, and its ranges exist as long as the restriction.
func TestChangeSources(t *testing.T) {
	k := service.Key{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Proto: api.TCP}
	restricted := SourcesOf(&service.Frontend{Addr: k.Addr, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/25")}})
	other := SourcesOf(&service.Frontend{Addr: k.Addr, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25")}})
	sets := func(ws []nft.Write) (all []string) {
		for _, w := range ws {
			all = append(all, map[bool]string{true: "+", false: "-"}[w.Add]+w.Set)
		}
		return all
	}
	for _, c := range []struct {
		was, is             Sources
		before, open, after []string
	}{
		{Sources{}, restricted, []string{"+source-ranges4", "+source-ranges4", "+source-restricted4"}, nil, nil},
		{restricted, other, []string{"-source-ranges4", "-source-ranges4", "+source-ranges4"}, nil, nil},
		{other, Sources{}, nil, []string{"-source-restricted4"}, []string{"-source-ranges4"}},
		{other, other, nil, nil, nil},
	} {
		got := ChangeSources(k, c.was, c.is)
		if !slices.Equal(sets(got.Before), c.before) || !slices.Equal(sets(got.Open), c.open) || !slices.Equal(sets(got.After), c.after) {
			t.Errorf("%+v to %+v: %v, %v, %v", c.was, c.is, sets(got.Before), sets(got.Open), sets(got.After))
		}
	}
}
