package layer2

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
)

// TestAnnounced: metallb_speaker_announced has a row for each announced address and protocol, and no other. No
// protocol touches the other's rows.
func TestAnnounced(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry, "node-1")
	web := api.Name{Namespace: "shop", Name: "web"}
	check := func(want ...string) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var rows []string
		for _, f := range families {
			if f.GetName() != "metallb_speaker_announced" {
				continue
			}
			for _, row := range f.Metric {
				text := ""
				for _, l := range row.Label { // sorted by name
					text += l.GetValue() + " "
				}
				rows = append(rows, text+fmt.Sprint(row.Gauge.GetValue()))
			}
		}
		if slices.Sort(rows); !slices.Equal(rows, want) {
			t.Errorf("rows %q, want %q", rows, want)
		}
	}
	m.set(map[api.Name]Assignment{web: {Addrs: vips[:1]}})
	m.SetBGP(map[api.Name][]netip.Addr{web: vips[:2]})
	l2 := fmt.Sprintf("%v node-1 layer2 shop/web 1", vips[0])
	bgp := []string{fmt.Sprintf("%v node-1 bgp shop/web 1", vips[0]), fmt.Sprintf("%v node-1 bgp shop/web 1", vips[1])}
	both := append([]string{l2}, bgp...)
	slices.Sort(both)
	check(both...)
	m.set(nil)
	check(bgp...)
	m.SetBGP(nil)
	check()
}
