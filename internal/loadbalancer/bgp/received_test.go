package bgp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestOffers: path attributes decide which router is preferred.
func TestOffers(t *testing.T) {
	asPath := func(n int) wire.PathAttributeInterface {
		all := make([]uint32, n)
		for i := range all {
			all[i] = uint32(64500 + i)
		}
		return wire.NewPathAttributeAsPath([]wire.AsPathParamInterface{wire.NewAs4PathParam(wire.BGP_ASPATH_ATTR_TYPE_SEQ, all)})
	}
	leaving := wire.NewPathAttributeCommunities([]uint32{announce.GracefulShutdown.Number()})
	for _, test := range []struct {
		a, b []wire.PathAttributeInterface
		want int
	}{
		{nil, nil, 0},
		{nil, []wire.PathAttributeInterface{wire.NewPathAttributeLocalPref(100)}, 0},
		{[]wire.PathAttributeInterface{wire.NewPathAttributeLocalPref(101), asPath(5)}, []wire.PathAttributeInterface{asPath(1)}, 1},
		{[]wire.PathAttributeInterface{asPath(2)}, []wire.PathAttributeInterface{asPath(3)}, 1},
		{[]wire.PathAttributeInterface{asPath(2)}, []wire.PathAttributeInterface{asPath(2)}, 0},
		{[]wire.PathAttributeInterface{leaving, asPath(1), wire.NewPathAttributeLocalPref(300)}, []wire.PathAttributeInterface{asPath(9)}, -1},
	} {
		a, b := receivedPathOf(&apiutil.Path{Attrs: test.a}), receivedPathOf(&apiutil.Path{Attrs: test.b})
		if got, back := a.compare(b), b.compare(a); got != test.want || back != -test.want {
			t.Errorf("%v against %v: %d and %d, want %d", a, b, got, back, test.want)
		}
	}
}

// TestUnreadablePodCIDRs: after an error nothing is withdrawn.
func TestUnreadablePodCIDRs(t *testing.T) {
	dir := podroutes.Dir(t.TempDir())
	s := &Speaker{cfg: Config{RIB: dir, Log: slog.New(slog.DiscardHandler)}}
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	if err := dir.SetPodCIDRs(cidrs); err != nil {
		t.Fatal(err)
	}
	if got := s.podCIDRs(); !slices.Equal(got, cidrs) {
		t.Errorf("to announce are %v", got)
	}
	s.cfg.RIB = podroutes.Dir(fmt.Sprintf("%s/%0300d", t.TempDir(), 0)) // this name is too long to exist
	if got := s.podCIDRs(); !slices.Equal(got, cidrs) {
		t.Errorf("after an error to announce are %v", got)
	}
}
