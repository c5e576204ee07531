package conformance

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// refused: a refusal is a refusal each time. Every client of a Service without endpoints is refused at once, also the
// client that tries again 30 times, 50 ms apart. A client that hears nothing sends its SYN again after a second. The
// kernel has its default limits for ICMP errors.
func (s suite) refused(t testing.TB) {
	r := newRigOn(testnet.New(t), t, s, "node-1", nil)
	w := &scenario.World
	none := func(at string) *service.Frontend { return web("none", at, api.TCP) }
	var all []*service.Frontend
	for _, at := range []string{"10.96.0.1:80", "[fd00:10:96::1]:80"} {
		f := none(at)
		f.ClusterIP = true
		all = append(all, f)
	}
	for _, at := range []string{"203.0.113.5:80", "[2001:db8:9::5]:80"} {
		f := none(at)
		f.LoadBalancer = true
		all = append(all, f)
	}
	all = append(all, none("0.0.0.0:30080"), none("[::]:30080"))
	table := tableOf(all...)
	for _, a := range []netip.Addr{w.Node.V4, w.Node.V6} {
		table.Settings.NodePorts = append(table.Settings.NodePorts, netip.PrefixFrom(a, a.BitLen()))
	}
	report(t, r.sync(table))
	var wait sync.WaitGroup
	for _, place := range []scenario.Place{w.Pod, w.PodRemote, w.Node, w.Outside} {
		for _, to := range []netip.AddrPort{
			netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("[fd00:10:96::1]:80"),
			netip.MustParseAddrPort("10.96.0.1:81"), netip.MustParseAddrPort("[fd00:10:96::1]:81"),
			netip.MustParseAddrPort("203.0.113.5:80"), netip.MustParseAddrPort("[2001:db8:9::5]:80"),
			netip.AddrPortFrom(w.Node.V4, 30080), netip.AddrPortFrom(w.Node.V6, 30080),
		} {
			wait.Go(func() { r.refusedEachTime(place, to) })
		}
	}
	wait.Wait()
}

// refusedEachTime connects 30 times to an address, and wants each connection to be refused by the answer to its first
// SYN.
func (r *rig) refusedEachTime(from scenario.Place, to netip.AddrPort) {
	client := r.hosts[from.Addr(to.Addr().Is4())]
	for i := range 30 {
		if repeated, err := client.Connect(to, r.suite.patience); repeated > 0 || !errors.Is(err, unix.ECONNREFUSED) {
			r.t.Errorf("connection %d from %s to %v: the SYN was repeated %d times (%v), want refused at once", i, from.Name, to, repeated, err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
