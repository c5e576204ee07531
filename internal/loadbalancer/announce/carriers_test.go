package announce

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// TestCarriers: which nodes may have connections to an address by way of routers, and that first come those that are to have
// no new ones; what has not changed is the same Decision.
func TestCarriers(t *testing.T) {
	in := world(t)
	in.Routed = []*BGPAdvertisement{{}}
	local := *in.Services[0]
	local.Local = true
	set := func(nodes ...string) map[string]bool {
		all := map[string]bool{}
		for _, n := range nodes {
			all[n] = true
		}
		return all
	}
	var r Decider
	for _, step := range []struct {
		what   string
		change func()
		want   string
	}{
		{"all nodes", func() {}, "[node-1 node-2 node-3]"},
		{"one is drained", func() { in.Nodes = slices.Clone(in.Nodes); in.Nodes[1].Excluded = "drained" }, "[node-2 node-1 node-3]"},
		{"no node is selected", func() { in.Routed = []*BGPAdvertisement{{NodeSelectors: []api.Selector{is("name", "none")}}} }, "[]"},
		{"an advertisement that counts for nothing", func() { in.Routed = []*BGPAdvertisement{{Problems: []api.Problem{{}}}} }, "[]"},
		{"for another pool", func() { in.Routed = []*BGPAdvertisement{{IPAddressPools: []string{"another"}}} }, "[]"},
		{"two of which one is for it", func() { in.Routed = append(in.Routed, &BGPAdvertisement{}) }, "[node-2 node-1 node-3]"},
		{"policy Local", func() {
			in.Services = []*Service{&local}
			in.Endpoints = func(api.Name) Endpoints {
				return Endpoints{Any: true, Ready: set("node-1", "node-2"), Serving: set("node-1", "node-2")}
			}
		}, "[node-2 node-1]"},
		{"the last endpoint of a node terminates", func() {
			in.Endpoints = func(api.Name) Endpoints {
				return Endpoints{Any: true, Ready: set("node-1"), Serving: set("node-1", "node-3")}
			}
		}, "[node-3 node-1]"},
		{"and is gone", func() {
			in.Endpoints = func(api.Name) Endpoints {
				return Endpoints{Any: true, Ready: set("node-1"), Serving: set("node-1")}
			}
		}, "[node-1]"},
	} {
		step.change()
		d := r.Decide(in)[vip]
		if got := fmt.Sprint(d.Carriers); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
		if r.Decide(in)[vip] != d {
			t.Errorf("%s: decided anew while nothing has changed", step.what)
		}
	}
}
