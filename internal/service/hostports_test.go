package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// TestLoopbackPorts: the host ports on loopback addresses, and the winner if two pods ask for the same port.
func TestLoopbackPorts(t *testing.T) {
	pod := func(name string, created int64, addrs string, ports ...string) HostPod {
		p := HostPod{Name: api.Name{Namespace: "default", Name: name}, Created: created}
		for a := range strings.SplitSeq(addrs, ",") {
			p.Addrs = append(p.Addrs, netip.MustParseAddr(a))
		}
		for _, text := range ports { // [HOSTIP=]PORT
			port := HostPort{Proto: api.TCP, To: 80}
			ip, n, ok := strings.Cut(text, "=")
			if ok {
				port.Addr = netip.MustParseAddr(ip)
			} else {
				n = text
			}
			fmt.Sscan(n, &port.Port)
			p.Ports = append(p.Ports, port)
		}
		return p
	}
	h := HostPorts{Pods: []HostPod{
		pod("young", 2, "10.244.1.6", "8080"),
		pod("old", 1, "10.244.1.5,fd00::5", "8080", "127.0.0.1=8081", "::1=8082", "192.0.2.1=8083", "0.0.0.0=8084", "::=8085", "127.0.0.2=8086"),
		pod("six", 3, "fd00::7", "8087"),
	}}
	var got []string
	for k, to := range h.Loopback() {
		got = append(got, fmt.Sprint(k, " ", to))
	}
	slices.Sort(got)
	want := []string{
		"127.0.0.1:8080/TCP 10.244.1.5:80",
		"127.0.0.1:8081/TCP 10.244.1.5:80",
		"127.0.0.1:8084/TCP 10.244.1.5:80",
		"[::1]:8080/TCP [fd00::5]:80",
		"[::1]:8082/TCP [fd00::5]:80",
		"[::1]:8085/TCP [fd00::5]:80",
		"[::1]:8087/TCP [fd00::7]:80",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
