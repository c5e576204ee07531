package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestExplainChains: the kernel has the chains that Explain names, also the chains for policy checks.
func TestExplainChains(t *testing.T) {
	err := testnet.NewNamespace(t, "node").Do(func() error {
		d, err := New(Config{})
		if err != nil {
			return err
		}
		defer d.Close()
		to := &service.Route{Endpoints: []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.5:80"), Local: true}}}
		to6 := &service.Route{Endpoints: []service.Endpoint{{Addr: netip.MustParseAddrPort("[fd00:10:244::5]:80"), Local: true}}}
		refuse := &service.Route{Action: service.Drop}
		name := api.PortName{Name: api.Name{Namespace: "default", Name: "web"}}
		var all []*service.Frontend
		for _, addr := range []string{"10.96.0.1:80", "0.0.0.0:30080", "[fd00:10:96::1]:80", "[::]:30080"} {
			f := &service.Frontend{Addr: netip.MustParseAddrPort(addr), Proto: api.TCP, Service: name, Internal: to, External: refuse}
			if f.Addr.Addr().Is6() {
				f.Internal = to6
			}
			all = append(all, f)
		}
		if _, err := d.Sync(t.Context(), service.NewTable(service.Settings{}, all)); err != nil {
			return err
		}
		there, err := d.syncer.Table.Chains(t.Context())
		if err != nil {
			return err
		}
		for _, f := range all {
			objects, err := d.Explain(t.Context(), f.Key())
			if err != nil {
				return err
			}
			chains := 0
			for _, o := range objects {
				if o.Kind == "chain" {
					chains++
					if chain := strings.TrimPrefix(o.Name, "inet "+numbers.TableNFTables+" "); !there[chain] {
						t.Errorf("%v: Explain names chain %q, which the kernel does not have", f.Key(), chain)
					}
				}
			}
			if chains != 3 {
				t.Errorf("%v: Explain names %d chains, want the policy check and one for each class of traffic", f.Key(), chains)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
