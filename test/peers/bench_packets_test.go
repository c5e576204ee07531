package peers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// BenchmarkPackets measures what a connection of a pod costs: to another pod of its
// node directly, through a ClusterIP and through a NodePort, with kube-proxy and with
// us, at 10 and at 10,000 Services. Rounds of all take turns, so that what else the
// machine does hits all alike; the fastest hundredth (p1) is the least disturbed, and
// there we may be two hundredths slower than kube-proxy at most.
func BenchmarkPackets(b *testing.B) {
	var cells []*cell
	for _, n := range []int{10, 10000} {
		o := newOracle(b, configured(podsKnown), configured(podsKnown))
		o.fill(n)
		for _, tw := range []*twin{o.theirs, o.ours} {
			o.awaitPort(b, tw)
			tw.deafServers(b)
			for _, way := range []struct {
				name string
				to   netip.AddrPort
			}{
				{"pod", netip.AddrPortFrom(benchEndpoint(0), benchTarget)},
				{"ClusterIP", netip.AddrPortFrom(netip.MustParseAddr(stable4), uint16(stableTCP))},
				{"NodePort", netip.AddrPortFrom(scenario.World.Node.V4, uint16(stableNodeTCP))},
			} {
				cells = append(cells, &cell{tw: tw, services: n, way: way.name, to: way.to})
			}
		}
	}
	for b.Loop() {
		for range benchRounds {
			rand.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
			for _, c := range cells {
				if err := c.round(benchPerRound); err != nil {
					b.Fatalf("%v: %v", c, err)
				}
				if err := c.tw.forget(); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op") // of everything together: it says nothing
	judge(b, cells)
}

const (
	benchRounds, benchPerRound = 60, 200
	benchTarget                = 9000
	slower                     = 1.02 // than kube-proxy at p1, at most
)

func benchEndpoint(i int) netip.Addr {
	var here []netip.Addr
	for k := range pods {
		if a, node := scenario.PodAddr(k, true); node == "node-1" {
			here = append(here, a)
		}
	}
	return here[i]
}

// fill makes n Services of two endpoints each; those of the first answer.
func (o *oracle) fill(n int) {
	for i := range n {
		ip := fmt.Sprintf("10.97.%d.%d", i/250, 1+i%250)
		eps := []string{fmt.Sprintf("10.128.%d.%d", i/250, 1+i%250), fmt.Sprintf("10.129.%d.%d", i/250, 1+i%250)}
		meta := metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("many-%d", i)}
		spec := corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: stableTCP}},
		}
		target := int32(8080)
		if i == 0 {
			ip, eps, target = stable4, []string{benchEndpoint(0).String(), benchEndpoint(1).String()}, benchTarget
			spec.Type, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, stableNodeTCP
		}
		spec.ClusterIP, spec.ClusterIPs, spec.IPFamilies = ip, []string{ip}, []corev1.IPFamily{corev1.IPv4Protocol}
		o.api.Put(&corev1.Service{ObjectMeta: meta, Spec: spec})
		s := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: &target}}}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
		for _, a := range eps {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("node-1")})
		}
		o.api.Put(s)
	}
}

// awaitPort waits until a program has done all Services: the sentinel comes last.
func (o *oracle) awaitPort(b *testing.B, tw *twin) {
	b.Helper()
	if tw == o.theirs {
		o.mark(o.zone)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("10.96.255.1"), uint16(o.markPort()))
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		done, err := o.caughtUp(tw, to, o.zone)
		if err != nil {
			b.Fatal(err)
		}
		if done {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s has not caught up; it says:\n%s", tw.name, end(tw.proc.Output()))
		}
	}
}

// deafServers listen for connections that they never accept: with DEFER_ACCEPT the
// kernel answers the SYN and waits for data, so that no program of the server's side
// takes part.
func (tw *twin) deafServers(b *testing.B) {
	b.Helper()
	for i := range 2 {
		a := benchEndpoint(i)
		err := tw.hosts[a].Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return os.NewSyscallError("socket", err)
			}
			b.Cleanup(func() { _ = unix.Close(fd) })
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 60); err != nil {
				return os.NewSyscallError("setsockopt TCP_DEFER_ACCEPT", err)
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: a.As4(), Port: benchTarget}); err != nil {
				return os.NewSyscallError("bind", err)
			}
			return os.NewSyscallError("listen", unix.Listen(fd, 4096))
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// A cell is one way with one program.
type cell struct {
	tw       *twin
	services int
	way      string
	to       netip.AddrPort
	connects []time.Duration
	elapsed  time.Duration // of all rounds: socket, connect and close
}

func (c *cell) String() string {
	return fmt.Sprintf("%s of %s at %d Services", c.way, c.tw.name, c.services)
}

// round connects n times, one after the other.
func (c *cell) round(n int) error {
	client := c.tw.hosts[scenario.World.Pod.V4]
	return client.Do(func() error {
		sa := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: c.to.Addr().As4()}
		port := (*[2]byte)(unsafe.Pointer(&sa.Port))
		port[0], port[1] = byte(c.to.Port()>>8), byte(c.to.Port())
		start := time.Now()
		for done := 0; done < n; {
			took, err := connect(&sa)
			if errors.Is(err, unix.EINTR) {
				continue // Go's scheduler wanted something; that one does not count
			}
			if err != nil {
				return err
			}
			c.connects = append(c.connects, took)
			done++
		}
		c.elapsed += time.Since(start)
		return nil
	})
}

// connect measures one connect(2), without notifying Go's scheduler, which would act on it.
func connect(sa *unix.RawSockaddrInet4) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		return 0, os.NewSyscallError("setsockopt SO_SNDTIMEO", err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, os.NewSyscallError("setsockopt SO_LINGER", err)
	}
	start := time.Now()
	_, _, code := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(sa)), unsafe.Sizeof(*sa))
	took := time.Since(start)
	if code != 0 {
		return 0, os.NewSyscallError("connect", code)
	}
	return took, nil
}

// p returns a percentile.
func (c *cell) p(percent int) time.Duration {
	all := slices.Sorted(slices.Values(c.connects))
	return all[min(len(all)*percent/100, len(all)-1)]
}

// judge prints the table and fails where we are slower than kube-proxy.
func judge(b *testing.B, cells []*cell) {
	b.Helper()
	find := func(name, way string, n int) *cell {
		return cells[slices.IndexFunc(cells, func(c *cell) bool { return c.tw.name == name && c.way == way && c.services == n })]
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\nconnect latency from a pod, µs, %d connections each; load %s\n\n", len(cells[0].connects), strings.Fields(string(load))[0])
	fmt.Fprintln(&out, "| | kube-proxy p1 / p50 / p99 | connections/s | fairway p1 / p50 / p99 | connections/s | p1 ratio |")
	fmt.Fprintln(&out, "|---|---:|---:|---:|---:|---:|")
	var tooSlow []string
	for _, n := range []int{10, 10000} {
		for _, way := range []string{"pod", "ClusterIP", "NodePort"} {
			theirs, ours := find("kube-proxy", way, n), find("fairway", way, n)
			ratio := float64(ours.p(1)) / float64(theirs.p(1))
			fmt.Fprintf(&out, "| %s, %d Services | %s | %s | %.3f |\n", way, n, theirs.row(), ours.row(), ratio)
			if ratio > slower && way != "pod" {
				tooSlow = append(tooSlow, fmt.Sprintf("%v: %.3f of kube-proxy's p1", ours, ratio))
			}
		}
	}
	fmt.Println(out.String())
	if len(tooSlow) > 0 {
		b.Errorf("slower than kube-proxy: %s", strings.Join(tooSlow, "; "))
	}
}

func (c *cell) row() string {
	us := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1000) }
	return fmt.Sprintf("%s / %s / %s | %.0f", us(c.p(1)), us(c.p(50)), us(c.p(99)), float64(len(c.connects))/c.elapsed.Seconds())
}
