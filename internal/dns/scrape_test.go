package dns

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/metrics"
)

// TestGreedyScrapes: a pod that opens hundreds of connections to the port of metrics has a few of them at a time, in
// each server block, and others are answered.
func TestGreedyScrapes(t *testing.T) {
	if !alone(t) {
		return
	}
	path := corefile(t, `.:5338 {
 prometheus 127.0.0.1:9153
 hosts {
  192.0.2.9 a.example
 }
}
.:5339 {
 prometheus 127.0.0.1:9154
 hosts {
  192.0.2.8 b.example
 }
}
`)
	serve(t, Config{Corefile: path})
	for _, to := range []string{"127.0.0.1:9153", "127.0.0.1:9154"} {
		for range 200 {
			c, err := net.Dial("tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		text, err := get("http://" + to + "/metrics") // when it is answered, all before it have been accepted
		if err != nil || !strings.Contains(text, "coredns_build_info") {
			t.Errorf("%s: %v, %d bytes", to, err, len(text))
		}
		n := 0
		for _, c := range connections() {
			if c.port == netip.MustParseAddrPort(to).Port() {
				n++
			}
		}
		if n > scrapeConns {
			t.Errorf("%s has %d connections, want %d at most", to, n, scrapeConns)
		}
	}
}

// TestConnectedAtStart: who connects to the port of metrics between CoreDNS's start and the limit, and says nothing, keeps
// no DNS server from starting.
func TestConnectedAtStart(t *testing.T) {
	if !alone(t) {
		return
	}
	m := metrics.New("127.0.0.1:9153")
	if err := m.OnStartup(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET")); err != nil {
		t.Fatal(err)
	}
	if err := replace(m); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = endScrapes() }()
	if text, err := get("http://" + m.Addr + "/metrics"); err != nil {
		t.Errorf("metrics: %v, %d bytes", err, len(text))
	}
}
