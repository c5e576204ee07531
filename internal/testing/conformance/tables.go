package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// pods returns the endpoints of all random tables.
func pods(r *scenario.Random) map[service.Key]string {
	all := map[service.Key]string{}
	for i := range r.Pods {
		for _, is4 := range []bool{true, false} {
			addr, node := scenario.PodAddr(i, is4)
			for _, p := range scenario.Ports() {
				for slice := range 3 {
					all[service.Key{Addr: netip.AddrPortFrom(addr, scenario.PortOf(p, slice)), Proto: p.Proto}] = node
				}
			}
		}
	}
	return all
}

// empty: a datapath starts in a namespace without its rules.
func (s suite) empty(t testing.TB) {
	r := newRig(t, s, "node-1", nil)
	zero := &service.Table{}
	report(t, r.node.Do(func() error {
		got, err := r.dp.Adopt(context.Background())
		if err != nil {
			return fmt.Errorf("adopt before the first sync: %w", err)
		}
		return compareTables(zero, got.Table)
	}))
	report(t, r.sync(zero))
	report(t, r.checkSynced(zero))
	report(t, r.restart(zero))
}

// random: random tables follow each other, and each is compared with the kernel.
func (s suite) random(t testing.TB) {
	rng := testnet.Random(t)
	gen := s.objects(rng)
	facts := gen.Facts()
	r := newRig(t, s, facts.Name, pods(gen))
	state := scenario.NewState(facts)
	for round := range s.changes / 12 {
		for step := range 8 {
			for range 1 + rng.IntN(3) {
				state.Apply(gen.Event())
			}
			if rng.IntN(6) == 0 {
				changed := facts
				changed.Settings.NodePorts = gen.Facts().Settings.NodePorts
				state.Apply(scenario.Event{Facts: &changed})
			}
			if rng.IntN(6) == 0 {
				r.reopen()
			}
			table := state.Table()
			if err := r.sync(table); err != nil {
				t.Fatalf("round %d, step %d: %v", round, step, err)
			}
			if err := r.checkSynced(table); err != nil {
				t.Fatalf("round %d, step %d: %v", round, step, err)
			}
		}
		err := errors.Join(r.forget(), r.packets(sample(rng, r.everywhere(state.Table()), 60)))
		if err != nil {
			report(t, err)
			t.Fatalf("round %d, with the table\n%s", round, state.Table())
		}
	}
}

// sample returns n packets. Few of them are to be dropped, because those take long.
func sample(rng *rand.Rand, all []scenario.Packet, n int) []scenario.Packet {
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var out []scenario.Packet
	drops := 0
	for _, p := range all {
		if p.Want.Action == service.Drop {
			if drops++; drops > 4 {
				continue
			}
		}
		if len(out) < n {
			out = append(out, p)
		}
	}
	return out
}

// large: a table with more frontends than fit into one message to the kernel is added at once, changed by half, and
// removed.
func (s suite) large(t testing.TB) {
	r := newRig(t, s, "node-1", nil)
	settings := service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	b := service.NewBuilder()
	for round := range 2 {
		for i := range s.services / (1 + round) {
			b.Set(service.Compile(bigService(i, round)))
		}
		table := b.Table(settings)
		report(t, r.sync(table))
		report(t, r.checkSynced(table))
	}
	report(t, r.restart(b.Table(settings)))
	for i := range s.services {
		b.Delete(bigName(i))
	}
	report(t, r.sync(b.Table(settings)))
	report(t, r.checkSynced(b.Table(settings)))
}

func bigName(i int) api.Name {
	return api.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
}

func bigService(i, round int) (*service.Service, []*service.Slice, service.Facts) {
	hi, lo := byte(i/256), byte(i%256)
	s := &service.Service{
		Name:       bigName(i),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 97, hi, lo}), netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", i+1))},
		Ports:      []service.Port{{Name: "http", Proto: api.TCP, Port: 80}},
	}
	four := &service.Slice{Name: bigName(i), Service: s.Name, Ports: []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}}}
	for n := range 1 + (i+round)%4 {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(n), lo})
		four.Endpoints = append(four.Endpoints, service.SliceEndpoint{Addr: addr, Ready: true, Serving: true, Node: fmt.Sprintf("node-%d", n)})
	}
	return s, []*service.Slice{four}, service.Facts{Node: service.Node{Name: "node-1", Settings: service.Settings{PodInterfaces: []string{"veth*"}}}}
}

// adopt: a new instance finds the rules of another table. It writes only the difference, with an equal result.
func (s suite) adopt(t testing.TB) {
	rng := testnet.Random(t)
	gen := s.objects(rng)
	facts := gen.Facts()
	r := newRig(t, s, facts.Name, pods(gen))
	state := scenario.NewState(facts)
	for range 60 {
		state.Apply(gen.Event())
	}
	first := state.Table()
	report(t, r.sync(first))
	state.Apply(gen.Event())
	second := state.Table()
	r.reopen()
	stats, err := r.syncStats(second)
	report(t, err)
	if want := len(service.Diff(first, second)); stats.Frontends > want {
		t.Errorf("the new instance changed %d frontends, the tables differ in %d", stats.Frontends, want)
	}
	report(t, r.checkSynced(second))
	report(t, r.packets(sample(rng, r.everywhere(second), 60)))
}
