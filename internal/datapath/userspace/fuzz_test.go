package userspace

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
)

// FuzzElements: an element of the kernel's sets, possibly from another release, is read or refused. An element that was
// read can be written.
func FuzzElements(f *testing.F) {
	sets := []nftset.Set{nftset.Frontends, nftset.Nodeports, nftset.FrontendsExternal, nftset.NodeportsExternal, endpoints, endpointsExternal}
	front := &service.Frontend{
		Service: api.PortName{Name: api.Name{Namespace: "a", Name: "b"}, Port: "http"}, Addr: netip.MustParseAddrPort("10.96.0.1:80"), Proto: api.TCP,
		Affinity: time.Hour, ClusterIP: true, Internal: &service.Route{Endpoints: []service.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Local: true, Weight: 3}}},
	}
	front.External = &service.Route{Local: true, Action: service.Drop}
	for _, e := range render(front) {
		f.Add(uint8(0), e.key, e.data, e.comment, uint8(4), e.key+"xxxxxxxx", e.data)
	}
	f.Add(uint8(129), "\x06\x00\x00\x00\x00\x50\x00\x00", "\x01\x00\x00\x00", "a/b far rr affinity=9h", uint8(133), "", "")
	f.Fuzz(func(t *testing.T, set1 uint8, key1, data1, comment string, set2 uint8, key2, data2 string) {
		of := func(set uint8, key, data, comment string) element {
			return element{sets[int(set&127)%len(sets)], set < 128, key, data, comment}
		}
		all := []element{of(set1, key1, data1, comment), of(set2, key2, data2, comment), of(4, key1+key2, data2, ""), of(2, key1, data2, "all")}
		found, err := parse(all)
		if err != nil {
			return
		}
		for _, one := range found {
			for _, e := range render(one) {
				if e.key == "" || strings.Contains(e.comment, "\n") {
					t.Errorf("%v is rendered as %v", one, e)
				}
			}
		}
	})
}
