package dns

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A running is a Server under test and what it logged.
type running struct {
	log  *testnet.Log
	stop func() error // ends Run and returns its error; may be called again
}

// serve runs a Server until the test ends.
func serve(t *testing.T, cfg Config) *running {
	t.Helper()
	testnet.NeedRoot(t, "opens the ports of a DNS server")
	r := &running{log: &testnet.Log{}}
	cfg.Log = slog.New(slog.NewTextHandler(r.log, nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(cfg).Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			buf := make([]byte, 1<<20)
			return fmt.Errorf("Run did not return:\n%s", buf[:runtime.Stack(buf, true)])
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Logf("log of the server:\n%s", r.log)
		}
	})
	eventually(t, "the server to come up", func() error {
		select {
		case err := <-done:
			done <- err
			t.Fatalf("Run ended at once: %v", err)
		default:
		}
		return r.log.Has("serving DNS")
	})
	return r
}

// alone runs the calling test once more, in a process with namespaces of its own, and reports
// whether this is that process. CoreDNS opens the ports for metrics and readiness
// properly only once in the life of a process.
func alone(t *testing.T) bool {
	t.Helper()
	testnet.NeedRoot(t, "opens the ports of a DNS server")
	const child = "FAIRWAY_TEST_DNS_CHILD"
	if os.Getenv(child) != "" {
		return true
	}
	t.Parallel() // they mostly wait
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprintf("-update=%t", *update))
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("in a process of its own: %v:\n%s", err, out)
	}
	return false
}

// corefile writes a Corefile for the test and returns its path.
func corefile(t testing.TB, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "Corefile")
	rewrite(t, path, format, args...)
	return path
}

func rewrite(t testing.TB, path, format string, args ...any) {
	t.Helper()
	if err := os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// upstream is a DNS server for the rest of the world: every A query is answered
// with one address. It returns its host:port and a count of the queries it got.
func upstream(t testing.TB, address string) (addr string, queries func() int) {
	t.Helper()
	testnet.NeedRoot(t, "opens the ports of a DNS server")
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	n := 0
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		if q.Question[0].Qtype == dns.TypeA {
			n++
		}
		mu.Unlock()
		m := new(dns.Msg).SetReply(q)
		if rr, err := dns.NewRR(q.Question[0].Name + " 300 IN A " + address); err == nil && q.Question[0].Qtype == dns.TypeA {
			m.Answer = append(m.Answer, rr)
		}
		w.WriteMsg(m)
	})
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: ln, Handler: h}} {
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		go s.ActivateAndServe()
		<-up
		t.Cleanup(func() { s.Shutdown() })
	}
	return pc.LocalAddr().String(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// ask sends one query to the server at port on loopback.
func ask(network string, port int, name string, qtype uint16) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(name, qtype)
	c := &dns.Client{Net: network, Timeout: 2 * time.Second}
	m, _, err := c.Exchange(q, fmt.Sprintf("127.0.0.1:%d", port))
	return m, err
}

// answer is what a message says, short: its code and its sorted records' types and
// data, as "NOERROR A 10.0.0.1 | A 10.0.0.2".
func answer(m *dns.Msg) string {
	var records []string
	for _, rr := range m.Answer {
		data := strings.TrimPrefix(rr.String(), rr.Header().String())
		records = append(records, dns.TypeToString[rr.Header().Rrtype]+" "+data)
	}
	slices.Sort(records)
	return strings.TrimSpace(dns.RcodeToString[m.Rcode] + " " + strings.Join(records, " | "))
}

// eventually waits until cond has no complaint, and fails with the last one.
func eventually(t *testing.T, what string, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// noneLeft waits until no goroutine runs code of this package or of CoreDNS. Two kinds
// are left out, which CoreDNS cannot end: the keeper of an upstream's idle
// connections ends when the garbage collector finds it, and the loop plugin asks a
// server that has ended before its first probe for up to 30 s more.
func noneLeft(t *testing.T) {
	t.Helper()
	eventually(t, "every goroutine of the server to end", func() error {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		for _, g := range strings.Split(string(buf), "\n\n") {
			ours := strings.Contains(g, "internal/dns.(*Server)") || strings.Contains(g, "internal/dns.stop")
			theirs := strings.Contains(g, "coredns/") &&
				!strings.Contains(g, "connManager") && !strings.Contains(g, "plugin/loop.setup")
			if ours || theirs {
				return fmt.Errorf("still there:\n%s", g)
			}
		}
		return nil
	})
}
