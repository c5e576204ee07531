package announce

import (
	"fmt"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// TestStranded: which addresses of node-2 no other node may announce.
func TestStranded(t *testing.T) {
	held := []Holding{{Service: api.Name{Namespace: "shop", Name: "web"}, Node: "node-2", Protocol: L2}}
	const alone = "[{192.0.2.2 [shop/web]}]"
	for name, c := range map[string]struct {
		change func(*BGPInput)
		want   string
	}{
		"others may":               {func(in *BGPInput) { in.Peers = nil }, "[]"},
		"only routers hear others": {func(in *BGPInput) { in.L2 = nil }, "[]"},
		"the last endpoint, Local": {func(in *BGPInput) { in.Services[0].Local = true }, alone},
		"others are drained":       {func(in *BGPInput) { in.Nodes[0].Excluded, in.Nodes[2].Excluded = "drained", "drained" }, alone},
		"drained, and not announced": {func(in *BGPInput) {
			in.Nodes[0].Excluded, in.Nodes[2].Excluded = "drained", "drained"
			in.Services[0].Name.Name = "other"
		}, "[]"},
		"advertised from it alone": {func(in *BGPInput) {
			in.Peers, in.L2[0] = nil, &L2Advertisement{NodeSelectors: []api.Selector{is("name", "node-2")}}
		}, alone},
	} {
		in := bgpWorld(t)
		c.change(&in)
		if got := fmt.Sprint(Stranded(in, held, "node-2")); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
