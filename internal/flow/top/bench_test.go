package top

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// BenchmarkTally: one round with MaxEntries connections to 1,000 Services, and the memory that they need.
func BenchmarkTally(b *testing.B) {
	route := &service.Route{}
	var fronts []*service.Frontend
	at := func(net byte, n int, port uint16) netip.AddrPort {
		a := [4]byte{net}
		binary.BigEndian.PutUint16(a[2:], uint16(n))
		return netip.AddrPortFrom(netip.AddrFrom4(a), port)
	}
	for i := range 1000 {
		name := api.PortName{Name: api.Name{Namespace: "shop", Name: "web"}, Port: string(rune('a'+i%26)) + string(rune('a'+i/26))}
		fronts = append(fronts, &service.Frontend{Addr: at(10, i, 80), Proto: api.TCP, Service: name, Internal: route, External: route})
	}
	rules := []Rules{{Index: service.NewIndex(service.NewTable(service.Settings{}, fronts))}}
	var t Tally
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		t.Begin(rules)
		for i := range MaxEntries {
			t.Add(Connection{ID: uint32(i), Proto: api.TCP, Client: at(11, i, uint16(i)), Frontend: at(10, i%1000, 80), Endpoint: at(12, i%4000, 8080), Open: true, Bytes: 1000})
		}
		t.End()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
	runtime.KeepAlive(&t)
}
