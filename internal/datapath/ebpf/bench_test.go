package ebpf_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/service"
)

// A sample has the durations of each way. Its figures are the first percentile in µs, the value that a busy machine
// changes least.
type sample map[string][]time.Duration

func (s sample) add(way string, begin time.Time) { s[way] = append(s[way], time.Since(begin)) }

func (s sample) p1(way string) float64 {
	slices.Sort(s[way])
	return float64(s[way][len(s[way])/100].Nanoseconds()) / 1000
}

func (s sample) report(b *testing.B, what string) {
	for way := range s {
		b.ReportMetric(s.p1(way), what+"-"+way+"-µs")
	}
}

// ways returns the addresses of a direct connection, one that nf_tables translates and one that the programs translate,
// with so many other Services.
func (r *rig) ways(others int) map[string]netip.AddrPort {
	left := r.front("10.96.0.3:80")
	left.Sources = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	all := []*service.Frontend{r.front(web.String()), left}
	addr := netip.MustParseAddr("10.97.0.0")
	for range others {
		addr = addr.Next()
		all = append(all, r.front(netip.AddrPortFrom(addr, 80).String()))
	}
	r.sync(all...)
	return map[string]netip.AddrPort{"direct": r.endpoints[0], "nftables": left.Addr, "ebpf": web}
}

// connects opens and closes one connection each way.
func (r *rig) connects(ways map[string]netip.AddrPort, s sample) error {
	return r.client.Do(func() error {
		for way, to := range ways {
			begin := time.Now()
			c, err := dial(to)(&net.Dialer{Timeout: time.Second})
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			s.add(way, begin)
			c.Close()
		}
		return nil
	})
}

// BenchmarkWays compares the ways of a connect, in turns.
func BenchmarkWays(b *testing.B) {
	r := newRig(b)
	ways, s := r.ways(0), sample{}
	for range max(b.N, 2000) {
		if err := r.connects(ways, s); err != nil {
			b.Fatal(err)
		}
	}
	s.report(b, "connect")
}

// BenchmarkServices compares connects at 10 and at 50,000 Services, in turns.
func BenchmarkServices(b *testing.B) {
	few, many := newRig(b), newRig(b)
	waysFew, waysMany, atFew, atMany := few.ways(10), many.ways(50_000), sample{}, sample{}
	for range max(b.N, 2000) {
		if err := few.connects(waysFew, atFew); err != nil {
			b.Fatal(err)
		}
		if err := many.connects(waysMany, atMany); err != nil {
			b.Fatal(err)
		}
	}
	atFew.report(b, "10")
	atMany.report(b, "50000")
	b.ReportMetric(atMany.p1("ebpf")/atFew.p1("ebpf"), "ebpf-50000/10")
}

// BenchmarkEstablished compares a request and its answer on open connections, in turns.
func BenchmarkEstablished(b *testing.B) {
	r := newRig(b)
	s, buffer := sample{}, make([]byte, 1024)
	err := r.client.Do(func() error {
		open := map[string]int{}
		for way, to := range r.ways(0) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			open[way] = fd
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			if _, err := unix.Read(fd, buffer); err != nil { // the server's greeting
				return fmt.Errorf("%s: %w", way, err)
			}
		}
		for range max(b.N, 10_000) {
			for way, fd := range open {
				begin := time.Now()
				if _, err := unix.Write(fd, []byte("who?\n")); err != nil {
					return err
				}
				if _, err := unix.Read(fd, buffer); err != nil {
					return fmt.Errorf("%s: %w", way, err)
				}
				s.add(way, begin)
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	s.report(b, "request")
	b.ReportMetric(s.p1("ebpf")/s.p1("direct"), "ebpf/direct")
	b.ReportMetric(s.p1("nftables")/s.p1("direct"), "nftables/direct")
}

// BenchmarkCounts checks the counts after 100,000 connections and 100 killed clients.
func BenchmarkCounts(b *testing.B) {
	r := newRig(b)
	f := r.counted(web.String(), service.LeastConn)
	r.sync(f)
	for range b.N {
		r.churn(f, 100_000, 100)
	}
	r.expectOpen("after all", f, 0, 0)
}

// BenchmarkAlgorithms compares connects by random and by lc, with 2 endpoints and with the 32 that lc compares at most,
// in turns.
func BenchmarkAlgorithms(b *testing.B) {
	r := newRig(b)
	lc, long := r.counted("10.96.0.2:80", service.LeastConn), r.counted("10.96.0.3:80", service.LeastConn)
	at := r.endpoints[1]
	for len(long.Internal.Endpoints) < 32 {
		at = netip.AddrPortFrom(at.Addr(), at.Port()+1)
		r.pods[1].Serve("tcp", at)
		long.Internal.Endpoints = append(long.Internal.Endpoints, service.Endpoint{Addr: at, Local: true})
	}
	r.sync(r.front(web.String()), lc, long)
	s := sample{}
	for range max(b.N, 2000) {
		if err := r.connects(map[string]netip.AddrPort{"direct": r.endpoints[0], "random": web, "lc-2": lc.Addr, "lc-32": long.Addr}, s); err != nil {
			b.Fatal(err)
		}
	}
	s.report(b, "connect")
	b.ReportMetric(s.p1("lc-2")/s.p1("direct"), "lc-2/direct")
	b.ReportMetric(s.p1("lc-32")/s.p1("direct"), "lc-32/direct")
}

// BenchmarkEject connects 10,000 times to three endpoints, one of which refuses or stays silent.
func BenchmarkEject(b *testing.B) {
	r := newRig(b)
	for what, dead := range map[string]netip.AddrPort{"refused": netip.AddrPortFrom(r.endpoints[0].Addr(), 9), "silent": r.silence()} {
		f := r.ejecting("10.96.0.1:80", dead, time.Minute)
		r.sync(f)
		b.ReportMetric(float64(r.fail(f.Addr, 10_000, 4*time.Second)), what+"-failed")
		r.clean()
	}
}
