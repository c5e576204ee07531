package conformance

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// explained: Explain returns the kernel objects of a frontend, with one for each endpoint. It returns none for an
// address without a frontend.
func (s suite) explained(t testing.TB) {
	r := sixRig(t, s)
	f := web("a", "10.96.0.1:80", api.TCP, 0, 1)
	report(t, r.sync(tableOf(f, web("b", "10.96.0.2:80", api.TCP, 2))))
	explain := func(k service.Key) (all []datapath.Object) {
		report(t, r.node.Do(func() (err error) { all, err = r.dp.Explain(context.Background(), k); return err }))
		return all
	}
	all := explain(f.Key())
	for _, e := range f.Internal.Endpoints {
		if !slices.ContainsFunc(all, func(o datapath.Object) bool { return strings.Contains(o.Text, e.Addr.Addr().String()) }) {
			t.Errorf("Explain of %v does not name endpoint %v: %v", f.Key(), e.Addr, all)
		}
	}
	for _, o := range all {
		if o.Kind == "" || o.Name == "" {
			t.Errorf("Explain of %v: an object without kind or name: %+v", f.Key(), o)
		}
	}
	none := service.Key{Addr: netip.MustParseAddrPort("10.96.0.3:80"), Proto: api.TCP}
	if all := explain(none); len(all) > 0 {
		t.Errorf("Explain of %v, which has no frontend: %v", none, all)
	}
}
