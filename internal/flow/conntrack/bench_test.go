package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// BenchmarkDelete measures the deletion of one flow in tables of several sizes, with the kernel's filter and with a
// dump of the whole table.
func BenchmarkDelete(b *testing.B) {
	for _, others := range []int{0, 1000, 100_000} {
		w := newWorld(b, testnet.NewNamespace(b, "node"), Config{})
		w.create(crowd(others)...)
		for _, family := range [][3]string{
			{"10.9.9.9:4000", "10.96.0.10:53", "10.244.1.5:53"},
			{"[fd00:9::9]:4000", "[fd00:96::10]:53", "[fd00:244::5]:53"},
		} {
			for _, attr := range []uint16{ctaFilter, 60} {
				e := want{proto: api.UDP, client: ap(family[0]), to: ap(family[1]), by: ap(family[2])}
				b.Run(fmt.Sprintf("others=%d/ipv4=%v/reads=%v", others, e.to.Addr().Is4(), attr != ctaFilter), func(b *testing.B) {
					w.filterAttr = attr
					for range b.N {
						b.StopTimer()
						w.create(e)
						b.StartTimer()
						if n := w.delete(flow.Flow{Proto: e.proto, Frontend: e.to, Endpoint: e.by}); n != 1 {
							b.Fatalf("%d deleted", n)
						}
					}
				})
			}
		}
	}
}

// BenchmarkDump justifies maxDumps. One dump that copies all UDP flows costs as much as this number of dumps with the
// kernel's filter.
func BenchmarkDump(b *testing.B) {
	for _, others := range []int{1000, 10_000, 100_000} {
		w := newWorld(b, testnet.NewNamespace(b, "node"), Config{})
		w.create(crowd(others)...)
		whole := filter{is4: true, proto: api.UDP}
		one := whole
		one.to = tupleEndOf(ap("10.96.0.10:53"))
		set, err := newSet(manyFlows(2000), w.cfg)
		if err != nil {
			b.Fatal(err)
		}
		for name, f := range map[string]filter{"filtered": one, "whole": whole} {
			b.Run(fmt.Sprintf("others=%d/%s", others, name), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					err := w.socket.dump(b.Context(), f.request(w.filterAttr), func(msg []byte) {
						if e, ok := parse(msg); ok {
							if _, found := set.match(e); found {
								b.Fatal("found")
							}
						}
					})
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkMany deletes one flow for each of 1,000 frontends, among 100,000 other flows.
func BenchmarkMany(b *testing.B) {
	w := newWorld(b, testnet.NewNamespace(b, "node"), Config{})
	w.create(crowd(100_000)...)
	flows := manyFlows(1000)
	for range b.N {
		b.StopTimer()
		for i, f := range flows {
			client := netip.AddrPortFrom(netip.MustParseAddr("10.9.9.9"), uint16(1024+i))
			w.create(want{proto: f.Proto, client: client, to: f.Frontend, by: f.Endpoint})
		}
		b.StartTimer()
		if n := w.delete(flows...); n != len(flows) {
			b.Fatalf("%d deleted", n)
		}
	}
}

// manyFlows returns flows that are not in the crowd.
func manyFlows(n int) []flow.Flow {
	all := make([]flow.Flow, n)
	for i := range all {
		at := netip.AddrFrom4([4]byte{10, 98, byte(i >> 8), byte(i)})
		all[i] = flow.Flow{Proto: api.UDP, Frontend: netip.AddrPortFrom(at, 53), Endpoint: netip.AddrPortFrom(at, 5353)}
	}
	return all
}
