package ipvs

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// FuzzReplies: no reply of IPVS makes the parsers panic. A request has the form of a reply, so the parsers read it
// back.
func FuzzReplies(f *testing.F) {
	for _, addr := range []string{"10.96.0.1:80", "[fd00::1]:80"} {
		o := serverOp{
			cmd: cmdNewReal, server: serverID{netip.MustParseAddrPort(addr), api.TCP}, definition: &virtualServer{sched: "rr", persist: 30},
			real: netip.MustParseAddrPort(addr), weight: 7,
		}
		m, err := o.message(30)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(m.Data)
		i, found, err := parseServer(m.Data)
		if err != nil || i != o.server || found.sched != "rr" || found.persist != 30 {
			f.Errorf("wrote %v, read %v, %+v, error %v", o.server, i, found, err)
		}
		real, state, err := parseReal(m.Data, i.Addr.Addr().Is4())
		if err != nil || real != o.real || state.weight != 7 {
			f.Errorf("wrote %v, read %v, %+v, error %v", o.real, real, state, err)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, found, err := parseServer(b); err == nil && len(found.sched) > len(b) {
			t.Fatalf("scheduler %q in %d bytes", found.sched, len(b))
		}
		for _, is4 := range nftset.Families {
			_, _, _ = parseReal(b, is4)
		}
	})
}
