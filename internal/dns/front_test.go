package dns

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/ipv6"
)

// Answers over the network come from the front, count in CoreDNS's metrics as CoreDNS's own do, and come from the address
// that the client asked. A client that acl blocks is refused.
func TestFrontAnswersAndCounts(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	serve(t, Config{Corefile: corefile(t, `.:5361 {
    errors
    acl {
        block net 127.0.0.9
    }
    kubernetes cluster.local {
        endpoint %s
        pods insecure
        ttl 30
    }
    prometheus :9161
    loadbalance
    cache 30
}
`, api.URL)})
	p := portOf(t, 5361)
	var asked []*dns.Msg
	for _, name := range []string{"web.prod.svc.cluster.local.", "db.prod.svc.cluster.local.", "nobody.prod.svc.cluster.local."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			asked = append(asked, new(dns.Msg).SetQuestion(name, qtype), new(dns.Msg).SetQuestion(name, qtype).SetEdns0(1232, true))
		}
	}
	for _, to := range []string{"127.0.0.1", "127.0.0.5", "::1"} {
		askAll(t, to, asked) // acl admits the client
		before := counts(t)
		askAll(t, to, asked)
		fast := difference(counts(t), before)
		before = counts(t)
		client := &net.UDPAddr{IP: net.ParseIP(to), Port: 4000}
		for _, m := range asked {
			p.coreDNS(pack(t, m), client)
		}
		slow := difference(counts(t), before)
		if fast != slow {
			t.Errorf("asked at %s, kept answers count\n%s\nCoreDNS's\n%s", to, fast, slow)
		}
		if !strings.Contains(fast, "coredns_dns_requests_total") || !strings.Contains(fast, "coredns_acl_allowed_requests_total") {
			t.Errorf("kept answers count only\n%s", fast)
		}
	}
	if n := len(p.kept.all); n < 6 {
		t.Errorf("%d answers are kept, want 6 or more", n)
	}
	if text, err := get("http://127.0.0.1:9161/metrics"); err != nil || !strings.Contains(text, "\nfairway_dns_kept_answers_total ") || strings.Contains(text, "\nfairway_dns_kept_answers_total 0\n") {
		t.Errorf("the metrics do not count kept answers: %v", err)
	}
	m, err := askFrom("udp", "127.0.0.9", "127.0.0.1", 5361, "web.prod.svc.cluster.local.")
	if err != nil || m.Rcode != dns.RcodeRefused {
		t.Errorf("a blocked client gets %v %v, want REFUSED", m, err)
	}
}

// askAll asks at an address of the server, and waits until the answers are counted.
func askAll(t *testing.T, to string, asked []*dns.Msg) {
	t.Helper()
	before := counts(t)
	for _, m := range asked {
		if r, _, err := new(dns.Client).Exchange(m, net.JoinHostPort(to, "5361")); err != nil || r.Id != m.Id {
			t.Fatalf("ask %s: %v", to, err)
		}
	}
	eventually(t, "all answers to be counted", func() error {
		now := counts(t)
		for _, last := range []string{"coredns_dns_responses_total", "coredns_dns_response_size_bytes"} {
			if n := total(now, last) - total(before, last); n != float64(len(asked)) {
				return fmt.Errorf("%s counts %g", last, n)
			}
		}
		return nil
	})
}

// counts returns CoreDNS's counters of questions, and of bytes without their sums of time.
func counts(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "coredns_dns_") && !strings.HasPrefix(f.GetName(), "coredns_acl_") {
			continue
		}
		for _, m := range f.Metric {
			name := f.GetName() + " " + fmt.Sprint(m.Label)
			if h := m.GetHistogram(); h != nil {
				all[name+" count"] = float64(h.GetSampleCount())
				if !strings.Contains(f.GetName(), "duration") {
					all[name+" sum"] = h.GetSampleSum()
				}
			} else if c := m.GetCounter(); c != nil {
				all[name] = c.GetValue()
			}
		}
	}
	return all
}

// total returns the sum of a metric over its labels; of a histogram the number of observations.
func total(all map[string]float64, metric string) (sum float64) {
	for name, n := range all {
		if strings.HasPrefix(name, metric+" ") && !strings.HasSuffix(name, " sum") {
			sum += n
		}
	}
	return sum
}

func difference(now, before map[string]float64) string {
	var lines []string
	for name, n := range now {
		if n != before[name] {
			lines = append(lines, fmt.Sprintf("%s %g", name, n-before[name]))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A Corefile that changes answers has no front, and a reload follows the Corefile.
func TestFrontFollowsTheCorefile(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	fill(api)
	const text = ".:%d {\n    kubernetes cluster.local {\n        endpoint %s\n        ttl %d\n    }\n    reload 2s 1s\n%s}\n"
	path := corefile(t, text, 5362, api.URL, 30, "")
	serve(t, Config{Corefile: path})
	answered := func(ttl uint32, zones int, want string) {
		t.Helper()
		eventually(t, want, func() error {
			m, err := ask("udp", 5362, "web.prod.svc.cluster.local.", dns.TypeA)
			if err != nil {
				return err
			}
			n := zonesOf(5362)
			if answer(m) != want || m.Answer[0].Header().Ttl != ttl || n != zones {
				return fmt.Errorf("got %v, %d zones", m, n)
			}
			return nil
		})
	}
	answered(30, 1, "NOERROR A 10.96.0.7")
	rewrite(t, path, text, 5362, api.URL, 31, "    hosts {\n        192.0.2.9 web.prod.svc.cluster.local\n        ttl 31\n    }\n")
	answered(31, 1, "NOERROR A 192.0.2.9") // the plugin hosts is asked first
	rewrite(t, path, text, 5362, api.URL, 34, "    rewrite name exact nobody.prod.svc.cluster.local web.prod.svc.cluster.local\n")
	answered(34, 0, "NOERROR A 10.96.0.7")
	rewrite(t, path, text, 5362, api.URL, 32, "")
	answered(32, 1, "NOERROR A 10.96.0.7")
	rewrite(t, path, text, 5363, api.URL, 33, "")
	portOf(t, 5363)
	eventually(t, "the previous port to be closed", func() error {
		c, err := net.ListenPacket("udp", ":5362")
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// The zones of a front, for server blocks.
func TestFrontZones(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	k := "kubernetes cluster.local in-addr.arpa {\n endpoint " + api.URL + "\n ttl 30\n}\n"
	for i, c := range []struct{ corefile, want string }{
		{". {\n" + k + "}\n", "cluster.local"},
		{"cluster.local in-addr.arpa {\n" + k + "}\n. {\n minimal\n}\n", "cluster.local"},
		{"cluster.local {\n" + k + "}\n. {\n forward . 127.0.0.1:1\n}\n", "cluster.local"},
		{". {\n" + k + "}\na.cluster.local {\n forward . 127.0.0.1:1\n}\n", ""},
		{". {\n" + k + "}\nlocal {\n forward . 127.0.0.1:1\n}\n", ""},
		{". {\n" + k + "}\ncorp.example {\n forward . 127.0.0.1:1\n}\n", "cluster.local"},
		{". {\n" + k + "log\n}\n", ""},
		{". {\n" + k + "hosts {\n 192.0.2.1 a\n fallthrough\n}\n}\n", "cluster.local"},
		{". {\n" + k + "rewrite name a b\n}\n", ""},
		{". {\n" + k + "template IN A {\n rcode NXDOMAIN\n}\n}\n", ""},
		{". {\n" + k + "acl svc.cluster.local {\n block\n}\n}\n", ""},
		{". {\n" + k + "acl {\n block type A net 192.0.2.0/24\n}\n}\n", "cluster.local"},
		{". {\n" + k + "cache\n}\n", "cluster.local 1800"},
		{". {\n" + k + "cache 10 {\n disable success cluster.local\n prefetch 2\n}\n}\n", "cluster.local 10"},
		{". {\n" + k + "cache 10 {\n success 100 20\n}\n}\n", ""},
		{". {\n" + k + "cache {\n serve_stale\n}\n}\n", ""},
		{". {\n" + k + "loadbalance round_robin\n}\n", "cluster.local"},
	} {
		r := serve(t, Config{Corefile: corefile(t, "%s", c.corefile), Port: uint16(5370 + i)})
		eventually(t, fmt.Sprintf("the zones %q of\n%s", c.want, c.corefile), func() error {
			fronts.mu.Lock()
			defer fronts.mu.Unlock()
			got := ""
			if f := fronts.open[fmt.Sprintf("dns://:%d", 5370+i)]; f != nil {
				for _, z := range f.port.Load().zones {
					got = strings.TrimSuffix(nameOf(z.wire), ".")
					if z.cached {
						got += fmt.Sprint(" ", z.maxTTL)
					}
				}
			}
			if got != c.want {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// An answer comes from the address that the client asked, also on a socket of a machine without IPv6.
func TestFrontAnswersFromTheAskedAddress(t *testing.T) {
	for _, c := range []struct{ listen, ask string }{{"0.0.0.0:0", "127.0.0.7"}, {"[::]:0", "127.0.0.7"}, {"[::]:0", "::1"}} {
		f, err := openFront("dns://"+c.listen, &frontPort{})
		if err != nil {
			t.Fatal(err)
		}
		f.closing.Store(true) // ends the readers, so that the test reads
		if err := f.conn.SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		f.running.Wait()
		if err := f.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(f.conn.LocalAddr().String())
		client, err := net.Dial("udp", net.JoinHostPort(c.ask, port)) // takes packets from this address only
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		m := []ipv6.Message{{Buffers: [][]byte{make([]byte, 100)}, OOB: make([]byte, 128)}}
		if _, err := f.packets.ReadBatch(m, 0); err != nil {
			t.Fatal(err)
		}
		m[0].OOB = replySource(m[0].OOB[:m[0].NN])
		f.write(m)
		_ = client.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := client.Read(make([]byte, 100)); err != nil {
			t.Errorf("asked %s at %s: %v", c.ask, c.listen, err)
		}
		_, _ = client.Close(), f.conn.Close()
	}
}
