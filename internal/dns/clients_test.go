package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestGreedyQuestions: a pod that asks for names whose servers are silent, as many as it can, keeps
// no other pod from asking upstreams, with the built-in Corefile and with one that knows no limits.
func TestGreedyQuestions(t *testing.T) {
	if !alone(t) {
		return
	}
	addAddresses(t, "10.1.2.3/32")
	api := newAPIServer(t)
	fill(api)
	var silent atomic.Int64
	up := udpUpstream(t, func(q *dns.Msg, write func(*dns.Msg)) {
		if name := q.Question[0].Name; !strings.HasSuffix(name, "example.org.") {
			write(a(q, name, "192.0.2.7"))
			return
		}
		silent.Add(1)
	})
	own := corefile(t, ".:5337 { # a comment\n forward . %s {\n max_concurrent 1000\n }\n}\n", up)
	for port, path := range map[int]string{5336: builtinFor(t, 5336, api.URL, up), 5337: own} {
		r := serve(t, Config{Corefile: path})
		floodOf(t, port) // it ends when the greedy client's questions are refused
		for i := range 20 {
			var m *dns.Msg
			eventually(t, "an answer to another client", func() (err error) { // the flood may overflow the socket for a moment
				m, err = askFrom("udp", "10.1.2.3", "127.0.0.1", port, fmt.Sprintf("n%d.example.com.", i))
				return err
			})
			if got := answer(m); got != "NOERROR A 192.0.2.7" {
				t.Errorf("port %d: another client got %q", port, got)
			}
		}
		if silent.Swap(0) < 200 {
			t.Error("the greedy client had few questions under way")
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestGreedyConnections: a pod that opens connections and says nothing, at the ports of DNS and of
// metrics, has a bounded number of them, and others are answered.
func TestGreedyConnections(t *testing.T) {
	if !alone(t) {
		return
	}
	addAddresses(t, "10.1.2.3/32")
	path := corefile(t, ".:5338 {\n prometheus 127.0.0.1:9153\n hosts {\n 192.0.2.9 a.example\n }\n}\n")
	serve(t, Config{Corefile: path})
	const many = 4000
	for _, to := range []string{"127.0.0.1:5338", "127.0.0.1:9153"} {
		var d net.Dialer
		for i := range many {
			c, err := d.DialContext(t.Context(), "tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if i%100 == 0 {
				time.Sleep(time.Millisecond) // the queue of the listening socket has room for some hundred
			}
		}
		port := netip.MustParseAddrPort(to).Port()
		eventually(t, "the connections beyond a client's share to end", func() error {
			n := 0
			for _, c := range connections() {
				if c.port == port {
					n++
				}
			}
			if n > maxConnections/2 {
				return fmt.Errorf("port %d has %d connections", port, n)
			}
			return nil
		})
	}
	m, err := askFrom("tcp", "10.1.2.3", "127.0.0.1", 5338, "a.example.")
	if err != nil || answer(m) != "NOERROR A 192.0.2.9" {
		t.Errorf("another client: %v, %v", m, err)
	}
	metrics, err := get("http://127.0.0.1:9153/metrics")
	if err != nil || !strings.Contains(metrics, `fairway_dns_client_refused_total{what="connection"} `) {
		t.Errorf("metrics: %v, %d bytes", err, len(metrics))
	}
}

// TestShare: who has nothing gets something while others take all they can.
func TestShare(t *testing.T) {
	s := newShare(12)
	take := func(client string) (n int) {
		for s.take(netip.MustParseAddr(client)) {
			n++
		}
		return n
	}
	if a, b, c := take("10.0.0.1"), take("10.0.0.2"), take("10.0.0.3"); a != 6 || b != 3 || c != 2 {
		t.Errorf("three greedy clients of 12 have %d, %d, %d", a, b, c)
	}
	for range 6 {
		s.give(netip.MustParseAddr("10.0.0.1"))
	}
	if a, b := take("10.0.0.4"), len(s.byClient); a != 4 || b != 3 {
		t.Errorf("a fourth has %d, %d clients are counted", a, b)
	}
}

// TestTooMany: of connections those are ended that their client's share does not hold.
func TestTooMany(t *testing.T) {
	var all []connection
	add := func(client string, port uint16, many int) {
		for i := range many {
			all = append(all, connection{len(all), port, netip.AddrPortFrom(netip.MustParseAddr(client), uint16(1000+i))})
		}
	}
	add("10.0.0.1", 53, 100)
	add("10.0.0.2", 53, 3)
	add("10.0.0.1", 9153, 5)
	ended := map[string]int{}
	for _, c := range tooMany(all, 20) {
		ended[fmt.Sprint(c.client.Addr(), " ", c.port)]++
	}
	if got := fmt.Sprint(ended); got != "map[10.0.0.1 53:92]" {
		t.Errorf("ended: %s", got)
	}
}

// TestWithClients: Corefiles that lack the plugin get it, and the lines before its place keep their numbers.
func TestWithClients(t *testing.T) {
	for text, want := range map[string]string{
		".:53 {\n errors\n}\n":                                  ".:53 {\n errors\n\nclients\n}\n",
		".:53 {\n hosts {\n }\n}\n# }\n":                        ".:53 {\n hosts {\n }\n\nclients\n}\n# }\n",
		"(s) {\n errors\n}\na.org, b.org { # { x\n import s\n}": "(s) {\n errors\n}\na.org, b.org { # { x\n import s\n\nclients\n}",
		"b.org {\n errors\n}\n(s) {\n errors\n}\n":              "b.org {\n errors\n\nclients\n}\n(s) {\n errors\n}\n",
		"a {\n errors\n}\nb {\n clients 7\n}\n":                 "a {\n errors\n}\nb {\n clients 7\n}\n",
		".:53\nerrors\n":                                        ".:53\nerrors\n",
		"import x-*\n. {\r\n errors\n}\r\n":                     "import x-*\n. {\r\n errors\n\nclients\n}\r\n",
	} {
		blocks, err := parseBlocks("Corefile", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got := string(withClients("Corefile", []byte(text), blocks))
		if got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
		again, err := parseBlocks("Corefile", []byte(got))
		if err != nil || len(again) != len(blocks) {
			t.Errorf("%q: %d blocks, were %d: %v", got, len(again), len(blocks), err)
		}
	}
}
