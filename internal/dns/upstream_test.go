package dns

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// udpUpstream is an upstream that gives each query to reply, which writes what it likes.
func udpUpstream(t *testing.T, reply func(q *dns.Msg, write func(*dns.Msg))) string {
	t.Helper()
	testnet.NeedRoot(t, "opens the ports of a DNS server")
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return // the test has ended
			}
			q := new(dns.Msg)
			if q.Unpack(buf[:n]) != nil || len(q.Question) != 1 {
				continue
			}
			reply(q, func(m *dns.Msg) {
				if out, err := m.Pack(); err == nil {
					_, _ = pc.WriteTo(out, from)
				}
			})
		}
	}()
	return pc.LocalAddr().String()
}

// a returns an answer with one address for a name.
func a(q *dns.Msg, name, address string) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	if q.Question[0].Qtype == dns.TypeA || name != q.Question[0].Name {
		rr, err := dns.NewRR(name + " 300 IN A " + address)
		if err == nil {
			m.Answer = append(m.Answer, rr)
		}
	}
	return m
}

const flood = 4000 // questions; the built-in Corefile has 1,000 under way to upstreams

// TestUpstreamDead: questions about the world that nobody answers neither keep the cluster's names
// from being answered nor pile up; the world is answered again when the upstream is.
func TestUpstreamDead(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	var lives atomic.Bool
	up := udpUpstream(t, func(q *dns.Msg, write func(*dns.Msg)) {
		if lives.Load() {
			write(a(q, q.Question[0].Name, "192.0.2.7"))
		}
	})
	serve(t, Config{Corefile: builtinFor(t, 5331, api.URL, up)})
	before := runtime.NumGoroutine()
	floodOf(t, 5331)
	// Again, as a resolver does: the flood may overflow the socket for a moment.
	eventually(t, "the cluster's name while the upstream is dead", func() error {
		m, err := ask("udp", 5331, "web.prod.svc.cluster.local.", dns.TypeA)
		if err == nil && answer(m) != "NOERROR A 10.96.0.7" {
			err = fmt.Errorf("got %q", answer(m))
		}
		return err
	})
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	// A question under way has two goroutines at most, and the limit is 1,000 questions.
	if n := runtime.NumGoroutine() - before; n > 2500 || mem.HeapInuse > 100<<20 {
		t.Errorf("%d goroutines and %d MiB of heap for %d questions", n, mem.HeapInuse>>20, flood)
	}
	lives.Store(true)
	eventually(t, "the world to be answered again", func() error {
		m, err := ask("udp", 5331, "back.example.org.", dns.TypeA)
		if err == nil && answer(m) != "NOERROR A 192.0.2.7" {
			err = fmt.Errorf("got %q", answer(m))
		}
		return err
	})
}

// floodOf sends many questions about the world at once, without waiting, until a quarter of
// flood came back as errors.
func floodOf(t *testing.T, port int) {
	t.Helper()
	c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var refused atomic.Int64
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			if m.Unpack(buf[:n]) == nil && m.Rcode != dns.RcodeSuccess {
				refused.Add(1)
			}
		}
	}()
	// The socket of a server that gets no CPU time overflows, and what is lost meets no limit:
	// so it goes on until the limit was met.
	for i := 0; i < flood || refused.Load() < flood/4; i++ {
		if i == 100*flood {
			t.Fatalf("of %d questions %d were answered with an error at once", i, refused.Load())
		}
		out, err := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.org.", i), dns.TypeA).Pack()
		if err == nil {
			_, err = c.Write(out)
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			time.Sleep(time.Millisecond) // the socket's buffer has room for some hundred
		}
	}
}

// TestUpstreamLies: what an upstream says without being asked is neither passed on nor kept, and
// never becomes a name of the cluster.
func TestUpstreamLies(t *testing.T) {
	if !alone(t) {
		return
	}
	const lie = "203.0.113.66"
	api := newAPIServer(t)
	fill(api)
	var mu sync.Mutex
	asked := map[string]int{}
	up := udpUpstream(t, func(q *dns.Msg, write func(*dns.Msg)) {
		name := q.Question[0].Name
		mu.Lock()
		asked[name]++
		mu.Unlock()
		switch name {
		case "other-id.example.org.":
			m := a(q, name, lie)
			m.Id++
			write(m)
			write(a(q, name, "192.0.2.7"))
		case "other-question.example.org.":
			m := a(q, "web.prod.svc.cluster.local.", lie)
			m.Question[0].Name = "web.prod.svc.cluster.local."
			write(m)
		case "more.example.org.":
			m := a(q, name, "192.0.2.7")
			m.Answer = append(m.Answer, a(q, "victim.example.org.", lie).Answer...)
			m.Extra = append(m.Extra, a(q, "web.prod.svc.cluster.local.", lie).Answer...)
			write(m)
		default:
			write(a(q, name, "192.0.2.7"))
		}
	})
	serve(t, Config{Corefile: builtinFor(t, 5332, api.URL, up)})
	for _, c := range []struct{ name, want string }{
		{"other-id.example.org.", "NOERROR A 192.0.2.7"},
		{"other-question.example.org.", "FORMERR"},
		{"more.example.org.", ""}, // passed on as it is: the client asked this upstream
		{"victim.example.org.", "NOERROR A 192.0.2.7"},
		{"web.prod.svc.cluster.local.", "NOERROR A 10.96.0.7"},
	} {
		m, err := ask("udp", 5332, c.name, dns.TypeA)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := answer(m); c.want != "" && got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if asked["victim.example.org."] != 1 || asked["web.prod.svc.cluster.local."] != 0 {
		t.Errorf("the upstream was asked %v", asked)
	}
}
